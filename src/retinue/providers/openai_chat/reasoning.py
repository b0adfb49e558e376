"""Reasoning that a server streams as lists of blocks (`reasoning_details`, `thinking_blocks`), or as text in tags.

Of blocks, each event has a list with the next pieces. What goes back to the server is the list of whole blocks: the
text of successive pieces of a block is joined, and its signature, which comes last, is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from retinue.providers.wire_json import decode_or_none

_TEXTS = ("text", "thinking", "summary")
"""The fields of a block that are streamed in pieces."""

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def block_text(raw: bytes) -> str:
    """The readable text of the blocks in one event.

    >>> block_text(b'[{"type":"reasoning.text","text":"Hm."},{"type":"reasoning.encrypted","data":"x"}]')
    'Hm.'
    """
    return "".join(
        block[key] for block in decode_or_none(_decode, raw) or () for key in _TEXTS if isinstance(block.get(key), str)
    )


def merged_blocks(events: Iterable[bytes]) -> tuple[msgspec.Raw, ...]:
    """The whole blocks of a reply, from the lists of its events.

    >>> pieces = [b'[{"type":"thinking","thinking":"Hm"}]', b'[{"type":"thinking","thinking":"."}]']
    >>> [bytes(block) for block in merged_blocks(pieces)]
    [b'{"type":"thinking","thinking":"Hm."}']
    """
    blocks: list[_Block] = []
    for raw in events:
        for piece in decode_or_none(_decode, raw) or ():
            if not blocks or not blocks[-1].is_continued_by(piece):
                blocks.append(_Block())
            blocks[-1].add(piece)
    return tuple(msgspec.Raw(msgspec.json.encode(block.whole())) for block in blocks)


class _Block:
    __slots__ = ("_fields", "_texts")

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}

    def is_continued_by(self, piece: dict[str, Any]) -> bool:
        """Whether a piece belongs to this block: same type, number and id, as far as given, and no signature so far."""
        if not self._texts or self._fields.get("signature") or not any(key in piece for key in _TEXTS):
            return False
        return all(
            self._fields.get(key) == piece.get(key) or None in (self._fields.get(key), piece.get(key))
            for key in ("type", "index", "id")
        )

    def add(self, piece: dict[str, Any]) -> None:
        for key, value in piece.items():
            if key in _TEXTS and isinstance(value, str):
                self._add_text(key, value, is_signed=bool(piece.get("signature")))
            elif key not in self._fields or value not in (None, ""):
                self._fields[key] = value

    def _add_text(self, key: str, text: str, *, is_signed: bool) -> None:
        self._fields.setdefault(key, "")  # keeps its place among the fields
        pieces = self._texts.setdefault(key, [])
        if is_signed and text == "".join(pieces):
            return  # the piece with the signature repeats the whole text
        pieces.append(text)

    def whole(self) -> dict[str, Any]:
        return self._fields | {key: "".join(pieces) for key, pieces in self._texts.items()}


class ThinkTags:
    """Separates `<think>...</think>` at the beginning of a text from the rest, piece by piece.

    >>> tags = ThinkTags()
    >>> [tags.feed(piece) for piece in ("<thi", "nk>Hm", ".</", "think>\\n\\nYes", " <think>")]
    [('', ''), ('Hm', ''), ('.', ''), ('', 'Yes'), ('', ' <think>')]
    """

    _OPENING, _CLOSING = "<think>", "</think>"

    def __init__(self) -> None:
        self._state: Literal["before", "inside", "after", "done"] = "before"
        self._held = ""

    @property
    def is_done(self) -> bool:
        """Whether all further text is text of the answer."""
        return self._state == "done"

    def feed(self, piece: str) -> tuple[str, str]:
        """The thinking and the text in the next piece; what may be a part of a tag is held back."""
        text, self._held = self._held + piece, ""
        thinking = ""
        if self._state == "before":
            start = text.lstrip()
            if self._OPENING.startswith(start[: len(self._OPENING)]) and len(start) < len(self._OPENING):
                self._held = text
                return "", ""
            if not start.startswith(self._OPENING):
                self._state = "done"
                return "", text
            self._state, text = "inside", start[len(self._OPENING) :]
        if self._state == "inside":
            thinking, closing, rest = text.partition(self._CLOSING)
            if not closing:
                kept = _overlap(text, self._CLOSING)
                self._held = text[len(text) - kept :]
                return text[: len(text) - kept], ""
            self._state, text = "after", rest
        if self._state == "after":
            text = text.lstrip()
            if text:
                self._state = "done"
        return thinking, text

    def rest(self) -> tuple[str, str]:
        """The thinking and the text that were held back, at the end of the answer."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "inside" else ("", held)


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-size:])), 0)
