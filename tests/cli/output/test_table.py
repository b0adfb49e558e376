"""Tables: alignment in a pipe, and shrinking columns on a terminal."""

from __future__ import annotations

import pytest

from retinue.cli.output.table import Column, as_text, fitted

COLUMNS: list[Column[tuple[str, int]]] = [
    Column(title="NAME", cell=lambda row: row[0], piped=lambda row: f"whole {row[0]}", shrinks=True),
    Column(title="N", cell=lambda row: str(row[1]), right=True),
]


def test_in_a_pipe_columns_are_aligned_and_no_cell_is_empty_or_on_two_lines() -> None:
    empty: list[Column[str]] = [Column(title="A", cell=str), Column(title="B", cell=lambda row: "")]

    assert as_text([("a", 1), ("long\nname", 20)], COLUMNS) == (
        "NAME              N\nwhole a           1\nwhole long name  20"
    )
    assert as_text(["x"], empty) == "A  B\nx  -"


@pytest.mark.parametrize("width", [12, 20, 40])
def test_only_shrinking_columns_are_shortened(width: int) -> None:
    ((name, number),) = fitted([("a-name-that-is-too-long-for-any-of-these-terminals", 12345)], COLUMNS, width)

    assert number == "12345"
    assert len(name) + 2 + len(number) == width
    assert name.endswith("…")
