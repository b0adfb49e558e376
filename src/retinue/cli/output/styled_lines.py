"""Lines of styled parts for a rich console, already cut to its width.

A text or a table of Rich would be measured, wrapped and cropped again for every line and every frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from retinue.core.text import clean_line

StyledText: TypeAlias = tuple[str, str]
"""A text and its style."""


class StyledLines:
    """Lines of parts. A segment does not pass the check of `PrintableConsole`, so each text is made printable here."""

    def __init__(self, lines: Sequence[Sequence[StyledText]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._lines:
            for text, style in line:
                if text:
                    is_printable = text.isascii() and text.isprintable()
                    yield Segment(text if is_printable else clean_line(text), Style.parse(style) if style else None)
            yield Segment.line()


def width_of(parts: Sequence[StyledText]) -> int:
    """The columns of a line."""
    return sum(cell_len(text) for text, _ in parts)


def cut_line(parts: list[StyledText], width: int) -> list[StyledText]:
    """The parts, cut to a width in columns; the last one ends with an ellipsis then."""
    if width_of(parts) <= width:
        return parts
    left, kept = width - 1, list[StyledText]()
    for text, style in parts:
        if cell_len(text) > left:
            kept.append((set_cell_size(text, left) + "…", style))
            break
        kept.append((text, style))
        left -= cell_len(text)
    return kept
