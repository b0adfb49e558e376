"""Markdown of a model on a terminal: rendered in blocks as it arrives, and never a control code of its own."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import RenderableType

from retinue.cli.output.markdown import MarkdownPrinter, blocks, is_plain, markdown, page_console
from retinue.cli.output.parsed_markdown import block_starts, parsed
from retinue.core.text import clean

HOSTILE = (
    "# \x1b[2Jtitle\n\n\x1b]8;;http://evil.example\x07link\x1b]8;;\x07 and [a](http://evil.example/\x1b[31m) "
    "&#27;[31m &#x9b;31m &#155; &#x202e; `\x1b[5m`\n\n```python\nx = '\x1b]0;owned\x07'  # \x9b2J\n```\n\n"
    "| a \x1b[1m | b |\n|---|---|\n| \x1b[2K | c |\n\n> \x1b[8m\n\n<b>\x1b[31m</b>\n\n- \x1b[31mone\n"
)
OWN_CODES = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def printer(width: int = 60, *, plain: bool = False) -> MarkdownPrinter:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    return MarkdownPrinter(page_console(Terminal(), width=width, plain=plain))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_no_control_code_of_a_model_reaches_the_terminal(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    page, written = printer(), ""
    for start in range(0, len(HOSTILE), size):
        page.add(HOSTILE[start : start + size])
        written += page.take_finished()
        written += "\n".join(line.plain for line in page.preview(5)) if size > 1 else ""
    written += page.end()

    assert CONTROL.search(OWN_CODES.sub("", written)) is None
    assert "evil.example" in written


def test_blocks_are_printed_as_they_are_finished_and_the_rest_at_the_end() -> None:
    page = printer(plain=True)
    page.add("# Title\n\nOne *two*")
    first = page.take_finished()
    page.add(" three.\n\n```\nco")
    second = page.take_finished()
    page.add("de\n```")
    third, rest = page.take_finished(), page.end()

    assert [first, second, third] == ["Title\n", "\nOne two three.\n", ""]
    assert rest.split() == ["code"]


def test_any_number_of_empty_lines_is_read_in_a_moment() -> None:
    """The search for marks of lists took a time that grew with the square of their number: 20 s for 50,000."""
    page = printer(plain=True)
    page.add(f"One.{chr(10) * 150_000}Two.")

    assert (page.take_finished(), page.end().split()) == ("One.\n", ["Two."])


def test_words_wrap_and_no_line_is_longer_than_the_terminal() -> None:
    page = printer(40, plain=True)
    page.add("word " * 50 + "\n\n- " + "item " * 30)
    lines = page.end().split("\n")

    assert max(map(len, lines)) <= 40
    assert set(" ".join(lines).split()) == {"word", "item", "•"}
    assert not [line for line in lines if line != line.rstrip()]


PIECES = (
    "# Why\n\nOne.\n",
    "\n- a\n- b\n",
    "\n```python\nx = 1\n```\n",
    "\n| a |\n|---|\n| b |\n",
    "\nEnd.\n",
)


@pytest.mark.parametrize("pieces", [PIECES, ["".join(PIECES)]], ids=["one by one", "all at once"])
def test_blocks_are_one_empty_line_apart_however_they_arrive(pieces: Sequence[str]) -> None:
    page = printer(40, plain=True)
    written = ""
    for piece in pieces:
        page.add(piece)
        written += page.take_finished()
    written += page.end()

    lines = [line.strip() for line in written.rstrip("\n").split("\n")]
    assert lines == ["Why", "", "One.", "", "• a", "• b", "", "x = 1", "", "a", "─", "b", "", "End."]


def test_a_block_does_not_move_when_it_is_finished() -> None:
    page = printer(plain=True)
    page.add("# Why\n\nOne")
    written = page.take_finished()
    preview = [line.plain.rstrip() for line in page.preview(5)]

    assert "".join(f"{line}\n" for line in preview) == page.end() == "\nOne\n"
    assert written == "Why\n"


def test_text_that_was_not_printed_can_be_taken_back() -> None:
    page = printer(plain=True)
    page.add("It was ")
    assert (page.take_back(), page.end()) == (True, "")
    page.add("One.\n\nTwo")
    page.take_finished()
    assert (page.take_back(), page.end()) == (False, "\nTwo\n")


def test_the_preview_is_the_end_of_the_unfinished_block() -> None:
    page = printer(plain=True)
    page.add("```\n" + "\n".join(f"line {number}" for number in range(100)))

    assert [line.plain.strip() for line in page.preview(4)][-2:] == ["line 99", ""]
    page.add("x" * 30_000)
    assert len(page.preview(4)) == 4


WORDS = st.lists(
    st.sampled_from(
        ["One", "ein.", "1", "1)", "2.", "(a)", "-", "b-c", "+", ":", "Äö", "\u4e2d\u6587", "x" * 50, "!", "%", "'s"]
    )
    | st.sampled_from([" ", " ", " ", "  ", "\n", "\n", "\n\n", " \n", "\n \n", "    "]),
    max_size=30,
).map("".join)


@given(WORDS)
def test_plain_paragraphs_look_as_if_they_had_been_parsed(text: str) -> None:
    assume(text.strip() and is_plain(text))
    lines = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    ends = [*(lines[start] for start in block_starts(text)[1:]), len(text)]

    assert list(accumulate(map(len, blocks(text)))) == ends
    for block in blocks(text):
        assert rendered(markdown(block)) == rendered(parsed(clean(block)))


def rendered(block: RenderableType) -> list[str]:
    page = page_console(io.StringIO(), width=30)
    with page.capture() as captured:
        page.print(block)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_plain_paragraphs_are_printed_without_the_parser_of_markdown() -> None:
    script = (
        "import sys; from retinue.cli.output.markdown import MarkdownPrinter, page_console\n"
        "page = MarkdownPrinter(page_console(sys.stdout, width=30)); page.add(sys.argv[1])\n"
        "print(page.take_finished(), page.preview(3), page.end(), any(name in sys.modules for name in "
        "('markdown_it', 'pygments', 'rich.markdown', 'rich.syntax')))\n"
    )
    answers = ["It is 42,\nas you said.\n\nYes.", "It is *42*."]
    shown = [subprocess.check_output([sys.executable, "-c", script, text], text=True, timeout=60) for text in answers]

    assert [text.split()[-1] for text in shown] == ["False", "True"]


def test_a_very_long_text_is_printed_as_it_is() -> None:
    """Rendering a megabyte takes half a minute, in which the chat and all its runs would stand still."""
    page = printer(plain=True)
    page.add("One.\n\n")
    first = page.take_finished()
    page.add("*a* \x1b[2J" * 20_000)

    assert (first, page.end()) == ("", "One.\n\n" + ("*a* ␛[2J" * 20_000) + "\n")

    page.add("```\n" + "code\n" * 50_000 + "mo")
    block = page.take_finished()
    assert block == "```\n" + "code\n" * 50_000
    page.add("re")
    assert page.end().strip() == "more"
