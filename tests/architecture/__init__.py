"""Rules about the structure of the source: doors of packages, first lines of modules, public names."""
