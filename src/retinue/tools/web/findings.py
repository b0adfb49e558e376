"""What a search comes to, whoever searched: a short list of pages in order, each once, nothing long or invisible."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from retinue.tools.web.extract import visible

MAX_FINDINGS = 10
MAX_QUERY_CHARS = 400


class Finding(Struct, frozen=True):
    """One page that an engine names."""

    title: str
    url: str
    description: str


Search: TypeAlias = Callable[[str], Awaitable[list[Finding]]]
"""Finds pages for a query that is not blank; finds none when nobody answers."""


def findings(found: Iterable[tuple[object, object, object]]) -> list[Finding]:
    """Titles, addresses and descriptions as a model gets them: each address once, in order, ten of them, none long."""
    kept: dict[str, Finding] = {}
    for title, url, description in found:
        if len(kept) == MAX_FINDINGS:
            break
        address = _line(url, 2000)
        if address.startswith(("http://", "https://")):
            kept.setdefault(address, Finding(_line(title, 200), address, _line(description, 500)))
    return list(kept.values())


def _line(value: object, most: int) -> str:
    return " ".join(visible(value).split())[:most] if isinstance(value, str) else ""
