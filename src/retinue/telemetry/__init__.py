"""Log output and metrics."""

__all__ = ["logs", "otel", "rust_log"]
