"""Log output, traces and metrics."""

__all__ = ["exporters", "log_files", "logs", "otel", "rust_log", "spans"]
