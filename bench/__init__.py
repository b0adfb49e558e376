"""The cost of retinue next to a bare loop that does the same work; run by `make bench`."""
