"""Dialects: sets of tools with which a model delegates. Each parses a call, uses a verb of the engine, renders the end.

A dialect's tool names, fields, settings and texts are in its own package and nowhere else. `registry` has the table of
dialects; packages above this one reach a dialect through it, and the engine never learns which one a run uses.
"""

__all__ = [
    "arguments",
    "base",
    "buzzllm",
    "child_process",
    "context",
    "log_format",
    "meerkat",
    "registry",
    "shared_context",
    "spec",
    "text",
    "xzatoma",
    "zeroclaw",
]
