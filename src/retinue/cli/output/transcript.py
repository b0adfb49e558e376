"""The entries of a conversation as headings and texts that can be printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from retinue.app.transcript import EntryKind, TranscriptEntry
from retinue.cli.output.terminal import HEADING
from retinue.core.text import clean_body, clean_line


def headed(conversation: Iterable[TranscriptEntry]) -> Iterator[tuple[str, str]]:
    """The heading and text of each entry, printable; no line of a text looks like a heading."""
    for entry in conversation:
        turn = f" (turn {entry.turn})" if entry.turn is not None else ""
        headings: dict[EntryKind, str] = {
            "words": f"said by {entry.name}",
            "thinking": f"thought{turn}",
            "reply": f"reply{turn}{', cut off' if entry.failed else ''}",
            "call": f"call {entry.name}{turn}",
            "result": f"result of {entry.name}{turn}{', failed' if entry.failed else ''}",
            "error": f"error{turn}",
        }
        yield clean_line(headings.get(entry.kind, entry.kind)), clean_body(entry.text, HEADING) or "(nothing)"
