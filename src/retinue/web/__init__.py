"""The HTTP API and the page of `retinue serve`."""

__all__ = ["access", "api", "openapi", "server", "service", "static_files"]
