"""HTTP client for model APIs, server-sent events, and guarded web fetches."""

__all__ = ["compression", "encryption", "event_stream", "fetcher", "guard", "http", "http1", "loopback", "sse"]
