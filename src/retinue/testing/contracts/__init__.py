"""Promises that every implementation of a port keeps, as test classes: inherit one, say how yours is made,
run pytest.
"""
