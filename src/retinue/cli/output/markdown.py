"""Markdown of a model on a terminal: the blocks of a text that arrives in pieces, and the console for them.

Many answers are paragraphs of plain words. They are wrapped here: the parser of Markdown and the highlighter of code,
behind `parsed_markdown`, take longer to load than such an answer takes to print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from retinue.core.text import clean

THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.hr": "dim",
        "markdown.link": "",
        "markdown.link_url": "dim underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


class PageConsole(Console):
    """A console for texts of several lines: every text and every segment is made printable, with its line ends.

    Markdown can write any character as an entity, so cleaning its source alone would not do.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, without control characters and links."""
        if isinstance(renderable, Text) and (plain := _printable(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain  # of the same length, so that the styles of its parts still fit
        elif isinstance(renderable, str):
            renderable = _printable(renderable)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: object) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A text without markup."""
        return Text(_printable(text))


def _printable(text: str) -> str:
    return clean(text.replace("\r\n", " \n"))


def page_console(stream: TextIO, *, width: int | None = None, plain: bool = False) -> PageConsole:
    """A console for Markdown on this stream; `plain` is without colours."""
    return PageConsole(
        file=stream,
        theme=THEME,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )


class MarkdownPrinter:
    """Renders a text that arrives in pieces: blocks as they are finished, and a preview of the one that grows."""

    def __init__(self, page: PageConsole) -> None:
        self._page = page
        self._text = ""
        """What is not printed yet."""
        self._has_printed = False
        """Whether a block of the current text was printed."""
        self._parsed = 0
        """The line ends of the text when it was parsed last: only a new line can finish a block."""

    @property
    def is_unfinished(self) -> bool:
        """Whether there is text that was not printed."""
        return bool(self._text)

    def add(self, piece: str) -> None:
        """Add a piece of the text."""
        self._text += piece

    def take_finished(self) -> str:
        """The blocks that are finished now, rendered; empty if there are none."""
        lines = self._text.count("\n")
        if lines < self._parsed + (1 if len(self._text) <= MAX_PARSED else LINES_BETWEEN):
            return ""
        self._parsed = lines
        size = finished(self._text) if len(self._text) <= MAX_UNFINISHED else self._text.rfind("\n") + 1
        block, self._text = self._text[:size], self._text[size:]
        if size:
            self._parsed = 0
        return self._rendered(block)

    def end(self) -> str:
        """The rest of the text, rendered; the next piece begins a new text."""
        block, self._text, self._parsed = self._text, "", 0
        rendered = self._rendered(block)
        self._has_printed = False
        return rendered

    def take_back(self) -> bool:
        """Discard the text since the last `end`; False if a part of it has been printed."""
        if self._has_printed:
            return False
        self._text, self._parsed = "", 0
        return True

    def preview(self, height: int) -> list[Text]:
        """The last lines of the unfinished block."""
        if not self._text.strip():
            return []
        shown = self._text
        if len(shown) > MAX_PARSED:
            return [Text(line[: self._page.width], no_wrap=True) for line in clean(shown).split("\n")[-height:]]
        rendered = self._page.render_lines(markdown(shown), self._page.options, pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in rendered]
        # The empty line that will be printed above the block, so that nothing moves when it is finished.
        gap = [Text()] if self._has_printed and lines and lines[0].plain.strip() else []
        return [*gap, *lines][-height:]

    def _rendered(self, text: str) -> str:
        """The blocks of a text, one empty line apart; a very long text as it is."""
        if len(text) > MAX_RENDERED:
            gap = "\n" if self._has_printed else ""
            self._has_printed = True
            return f"{gap}{clean(text).rstrip()}\n"
        return "".join(map(self._rendered_block, blocks(text)))

    def _rendered_block(self, block: str) -> str:
        if not block.strip():
            return ""
        with self._page.capture() as captured:
            self._page.print(markdown(block))
        gap = "\n" if self._has_printed else ""
        self._has_printed = True
        # Rich fills lines with blanks, which a person would copy with the text.
        lines = re.sub(r"[ ]+$", "", captured.get(), flags=re.MULTILINE).split("\n")
        # Some blocks bring empty lines of their own, around which there would be another one.
        written = [number for number, line in enumerate(lines) if _CODES.sub("", line).strip()]
        return gap + "".join(f"{line}\n" for line in lines[written[0] : written[-1] + 1]) if written else ""


_CODES = re.compile(r"\x1b\[[\d;]*m")

MAX_PARSED = 20_000
"""Characters of an unfinished block that are parsed for each frame; of a longer one the end is shown as it is."""


MAX_RENDERED = 50_000
"""Characters of blocks that are rendered at once: a model may write megabytes, and everything waits for it."""

MAX_UNFINISHED = 200_000
"""Characters of a block after which it is printed although it goes on."""

LINES_BETWEEN = 100
"""New lines of such a block after which it is parsed again."""


def finished(text: str) -> int:
    """The length of the blocks at the beginning of a text that more text cannot change.

    >>> finished("One.\\n\\nTwo."), finished("One."), finished("```\\ncode\\n\\nmore")
    (6, 0, 0)
    """
    return sum(map(len, blocks(text)[:-1]))


def blocks(text: str) -> list[str]:
    """The blocks of a text, in order and each with the line ends behind it.

    >>> blocks("# Why\\n\\nOne.\\n- a\\n- b"), blocks("```\\ncode\\n\\nmore"), blocks("One,\\ntwo.\\n\\nThree.")
    (['# Why\\n\\n', 'One.\\n', '- a\\n- b'], ['```\\ncode\\n\\nmore'], ['One,\\ntwo.\\n\\n', 'Three.'])
    """
    if "\n" not in text:
        return [text]
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = _paragraph_starts(lines) if is_plain(text) else _block_starts(text)
    return ["".join(lines[start:end]) for start, end in pairwise([0, *starts[1:], len(lines)])]


def _paragraph_starts(lines: Sequence[str]) -> list[int]:
    """The numbers of the lines that follow an empty one, or none."""
    filled = [bool(line.strip()) for line in lines]
    return [number for number, is_filled in enumerate(filled) if is_filled and not (number and filled[number - 1])]


def _block_starts(text: str) -> list[int]:
    from retinue.cli.output.parsed_markdown import block_starts

    return block_starts(text)


def markdown(text: str) -> RenderableType:
    """The text as Markdown."""
    if is_plain(text) and len(blocks(text)) == 1:
        return Text(" ".join(filter(None, map(str.strip, clean(text).split("\n")))), justify="left")
    from retinue.cli.output.parsed_markdown import parsed

    return parsed(clean(text))


def is_plain(text: str) -> bool:
    """Whether a text is nothing but paragraphs of words, each of whose lines ends where a blank could stand.

    >>> is_plain("It is 42.\\n\\nYes (I am sure)."), is_plain("*Sure.*"), is_plain("- one"), is_plain("1. one")
    (True, False, False, False)
    """
    return text.replace("\n", "").isprintable() and not _MARKED.search(text)


_MARKED = re.compile(
    r"[\\`*_\[\]<>&#|~=]"  # marks of Markdown, wherever they stand
    r"|^\ *+([-+:]|\d+[.)])"  # of a list, a line, or a table; other blanks are not printable, and line ends are many
    r"|^\ {4}"  # code
    r"|\ {2}$",  # a line end that stays
    re.MULTILINE,
)
"""What may make a text more than paragraphs; a text with one of these is parsed, whatever it means there."""
