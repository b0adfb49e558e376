"""Context windows of models: the vendors' windows with their date, or the window that the user configured.

A window is the number of tokens of a request together with its answer, or of the request alone where the vendor limits
that to less. A model that is not listed has none: its provider reports when a request is too long.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.providers.pricing import find_model, list_prices


class WindowList(Struct, frozen=True):
    """A table of context windows, and the day on which they were read."""

    as_of: str
    models: dict[str, int]

    def window(self, model: str) -> int | None:
        """The window of a model, by its name or the name of one of its versions.

        >>> listed_windows().window("anthropic/claude-sonnet-4-5-20250929"), listed_windows().window("my-own-model")
        (200000, None)
        """
        return find_model(self.models, model, list_prices().aliases)


@cache
def listed_windows() -> WindowList:
    """The vendors' context windows; read on first use."""
    return msgspec.json.decode(Path(__file__).with_name("windows.json").read_bytes(), type=WindowList)


class ContextWindows:
    """The context windows of one provider's models: the configured one, else the listed ones.

    A local server is not `listed`: it gives a model as much context as it likes, whatever the model could read.

    >>> ContextWindows(32_768).window("qwen3"), ContextWindows(listed=False).window("gpt-4o")
    (32768, None)
    """

    def __init__(self, configured: int | None = None, *, listed: bool = True) -> None:
        self._configured = configured
        self._listed = listed
        self._known: dict[str, int | None] = {}

    def window(self, model: str) -> int | None:
        """The context window of a model, in tokens, or None if unknown."""
        if self._configured is not None or not self._listed:
            return self._configured
        if model not in self._known:  # looked up for every run, and mostly for the same model
            self._known[model] = listed_windows().window(model)
        return self._known[model]
