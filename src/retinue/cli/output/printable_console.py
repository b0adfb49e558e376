"""A rich console that makes every text printable; the escape codes of its own styles and cursor moves stay."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from retinue.core.text import clean_line


class PrintableConsole(Console):
    """Shows each text on one line, without control characters; a page of several lines is printed line by line."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; cells of tables and parts of live displays are rendered here, too."""
        return super().render(_printable(renderable), options)


def _printable(renderable: RenderableType) -> RenderableType:
    if isinstance(renderable, str):
        return clean_line(renderable)
    if isinstance(renderable, Text) and (plain := clean_line(renderable.plain)) != renderable.plain:
        renderable = renderable.copy()
        renderable.plain = plain  # of the same length, so that the styles of its parts still fit
    return renderable
