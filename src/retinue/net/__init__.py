"""HTTP client for model APIs, server-sent events, JSON-RPC on pipes, and guarded web fetches."""

__all__ = [
    "compression",
    "event_stream",
    "fetcher",
    "guard",
    "http",
    "http1",
    "json_rpc",
    "loopback",
    "sse",
]
