"""Dialects: sets of tools with which a model delegates; each tool parses a call, uses the supervisor, renders a result.

A dialect's tool names, fields, settings and texts are in its own package and nowhere else. `registry` has the table of
dialects; packages above this one reach a dialect through it, and the engine does not know which one a run uses.
"""

__all__ = [
    "arguments",
    "base",
    "buzzllm",
    "child_process",
    "claude",
    "codex",
    "context",
    "meerkat",
    "native",
    "registry",
    "shared_context",
    "spec",
    "xzatoma",
    "zeroclaw",
]
