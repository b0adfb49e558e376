"""Log output and metrics."""

__all__ = ["log_files", "logs", "otel", "payloads", "rust_log"]
