"""Markdown parsed by markdown-it and rendered by Rich, with plain headings, without links that hide their address.

Colours are those of the terminal's own palette, without backgrounds, so that they suit dark and light terminals.
"""

from __future__ import annotations

from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.style import Style
from rich.syntax import ANSISyntaxTheme

CODE = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True, italic=True),
        ("Keyword",): Style(color="magenta"),
        ("Literal", "String"): Style(color="green"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Name", "Function"): Style(bold=True),
        ("Name", "Class"): Style(bold=True),
        ("Name", "Decorator"): Style(color="yellow"),
        ("Name", "Builtin"): Style(color="cyan"),
        ("Operator", "Word"): Style(color="magenta"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Heading"): Style(bold=True),
    }
)


class _PlainHeading(Heading):
    """A heading at the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Answer(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _PlainHeading}


def parsed(text: str) -> RenderableType:
    """A text without control characters as Markdown."""
    return _Answer(text, code_theme=CODE, hyperlinks=False, inline_code_theme=None)  # pyright: ignore[reportArgumentType]


_PARSER = MarkdownIt("commonmark").enable("table")


def block_starts(text: str) -> list[int]:
    """The numbers of the lines with which the blocks of a text begin."""
    return [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map and token.nesting >= 0]
