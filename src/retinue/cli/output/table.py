"""Tables on stdout: with as many columns as fit on a terminal, as plain aligned text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from retinue.cli.output.format import one_line
from retinue.cli.output.terminal import answer, console
from retinue.core.text import clean_line, middle_cut

T = TypeVar("T")


GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """A column: its title, the text of its cells, and the width of the terminal below which it is left out."""

    title: str
    cell: Callable[[T], str]
    piped: Callable[[T], str] | None = None
    """The text in a pipe if it differs, as whole ids do."""
    right: bool = False
    least_width: int = 0
    style: str = ""
    shrinks: bool = False
    """Whether its texts are shortened if a row is too long."""
    keeps_end: bool = False
    """Whether a shortened text keeps its beginning and its end, so that nothing can be hidden behind a long middle."""


def print_table(rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
    if not sys.stdout.isatty():
        answer(as_text(rows, columns))
        return
    from rich.table import Table

    screen = console()
    shown = [column for column in columns if screen.width >= column.least_width]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in shown:
        justify = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, style=column.style or None)
    for cells in fitted(rows, shown, screen.width):
        table.add_row(*cells)
    screen.print(table)


def fitted(rows: Sequence[T], columns: Sequence[Column[T]], width: int) -> list[list[str]]:
    """The cells of all rows, with those of shrinking columns cut to fit the width."""
    cells = [[clean_line(column.cell(row)) for column in columns] for row in rows]
    widths = [max(map(len, (column.title, *texts))) for column, *texts in zip(columns, *cells, strict=True)]
    room = width - GAP * (len(columns) - 1)
    room -= sum(each for each, column in zip(widths, columns, strict=True) if not column.shrinks)
    return [
        [
            _shortened(text, max(room, len(column.title)), column) if column.shrinks else text
            for text, column in zip(row, columns, strict=True)
        ]
        for row in cells
    ]


def _shortened(text: str, room: int, column: Column[T]) -> str:
    return middle_cut(" ".join(text.split()), room) if column.keeps_end else one_line(text, room)


def as_text(rows: Sequence[T], columns: Sequence[Column[T]]) -> str:
    """The rows as aligned lines under a line of titles; cells have no line breaks, and an empty cell is a dash."""
    lines = [[column.title for column in columns]]
    lines += [[_flat((column.piped or column.cell)(row)) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def _flat(cell: str) -> str:
    return " ".join(clean_line(cell).split()) or "-"
