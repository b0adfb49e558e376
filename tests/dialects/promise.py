"""What the dialects promise, one sentence each; the tests prove every one, and the reference pages show them."""

from __future__ import annotations

from typing import NamedTuple


class Promise(NamedTuple):
    """One thing that a dialect does, always; `section` is where its document says so."""

    id: str
    section: str
    text: str
