"""The HTTP API and the page of `retinue serve`."""

__all__ = ["access", "openapi", "routes", "server", "service", "static_files"]
