"""How bytes travel: one HTTP session, one reader of event streams."""

__all__ = ["fetcher", "guard", "http", "sse"]
