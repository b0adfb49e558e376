"""Log output and metrics."""

__all__ = ["logs", "otel", "payloads", "rust_log"]
