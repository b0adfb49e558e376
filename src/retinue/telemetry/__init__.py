"""Who watches: readers of what happens, for people and for machines."""
