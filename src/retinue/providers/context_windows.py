"""How much models can read: a dated table of the vendors' context windows, and what the user says instead.

A number is the most tokens that a question may have, together with its answer unless the vendor limits it alone to
less. Nobody's guess stands in for a model that is not listed: it has none, and its provider says when it is too much.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.providers.pricing import list_prices, names_of


class WindowList(Struct, frozen=True):
    """A table of context windows, and the day on which they were seen."""

    as_of: str
    models: dict[str, int]

    def window(self, model: str) -> int | None:
        """The window of a model, by its name or the name of one of its versions.

        >>> listed_windows().window("anthropic/claude-sonnet-4-5-20250929"), listed_windows().window("my-own-model")
        (200000, None)
        """
        aliases = list_prices().aliases
        found = (self.models.get(name) or self.models.get(aliases.get(name, "")) for name in names_of(model))
        return next((window for window in found if window is not None), None)


@cache
def listed_windows() -> WindowList:
    """What the vendors say; read when first needed."""
    return msgspec.json.decode(Path(__file__).with_name("windows.json").read_bytes(), type=WindowList)


class ContextWindows:
    """The windows of one provider's models: what the user says first, then the list unless the models are one's own.

    A server on one's own machine gives a model as much memory as it likes, whatever the model could read.

    >>> ContextWindows(32_768).window("qwen3"), ContextWindows(listed=False).window("gpt-4o")
    (32768, None)
    """

    def __init__(self, said: int | None = None, *, listed: bool = True) -> None:
        self._said = said
        self._listed = listed
        self._found: dict[str, int | None] = {}

    def window(self, model: str) -> int | None:
        """The tokens that a question to this model may have with its answer, or None if nobody knows."""
        if self._said is not None or not self._listed:
            return self._said
        if model not in self._found:  # every run asks, and most of them about the same model
            self._found[model] = listed_windows().window(model)
        return self._found[model]
