"""Tables for people: drawn on a terminal with as many columns as fit, and as plain aligned text into a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from retinue.cli.terminal import answer, console

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """A column: its title, the text of its cells, and below which width of the terminal it is left out."""

    title: str
    cell: Callable[[T], str]
    piped: Callable[[T], str] | None = None
    """The text in a pipe, where that differs: whole ids, for example."""
    right: bool = False
    least_width: int = 0
    style: str = ""


def print_table(rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
    """The rows on stdout."""
    screen = console()
    if screen.is_terminal:
        from rich.table import Table

        shown = [column for column in columns if screen.width >= column.least_width]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for column in shown:
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                style=column.style or None,
            )
        for row in rows:
            table.add_row(*(column.cell(row) for column in shown))
        screen.print(table)
    else:
        answer(as_text(rows, columns))


def as_text(rows: Sequence[T], columns: Sequence[Column[T]]) -> str:
    """The rows as aligned lines under a line of titles; a cell never has a line break, an empty one is a dash."""
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
    return " ".join(cell.split()) or "-"
