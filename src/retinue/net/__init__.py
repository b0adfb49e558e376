"""HTTP client for model APIs, server-sent events, and guarded web fetches."""

__all__ = ["compression", "encryption", "fetcher", "guard", "http", "http1", "loopback", "sse"]
