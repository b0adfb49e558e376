"""Log output, traces and metrics."""

__all__ = ["exporters", "log_files", "logs", "rust_log", "spans"]
