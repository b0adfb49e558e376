"""The command line: answers on stdout, everything else on stderr. Everything without a terminal is in `app`."""

__all__ = ["call", "main"]
