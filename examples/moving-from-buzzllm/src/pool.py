"""A pool of connections."""

MAX_CONNECTIONS = 20


def open_pool() -> None:
    """Open the pool."""
    print("pool of", MAX_CONNECTIONS)
