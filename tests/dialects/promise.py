"""Promises of the dialects, one sentence each; tests prove them, and the reference pages list them."""

from __future__ import annotations

from typing import NamedTuple


class Promise(NamedTuple):
    """One thing that a dialect does, always; `section` is where its document says so."""

    id: str
    section: str
    text: str
