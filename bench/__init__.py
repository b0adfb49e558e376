"""How much retinue costs next to a bare loop that does the same work; run by `make bench`."""
