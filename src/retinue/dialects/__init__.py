"""How a model asks: each dialect parses its own tool calls, uses a verb of the engine, and renders what came of it.

A dialect's tool names, fields and phrases live in its own files and nowhere else; the engine never learns which one
is speaking.
"""

__all__ = [
    "arguments",
    "base",
    "buzzllm",
    "context",
    "log_format",
    "meerkat",
    "shared_context",
    "spec",
    "text",
    "xzatoma",
]
