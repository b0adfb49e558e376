"""HTTP client for model APIs, server-sent events, and guarded web fetches."""

__all__ = ["compression", "fetcher", "guard", "http", "http1", "loopback", "sse"]
