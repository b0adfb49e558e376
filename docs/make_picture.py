"""Records a run of `retinue demo` as the SVG picture of the README.

`make picture` runs it in about half a minute. The processes, the crash and the figures are those of that run. The
picture contains no font, style or script of another host.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.cli.demo.crash_and_resume import READABLE, DemoScreen, Played, StoryLine, play
from retinue.cli.output.live import draw

PICTURE = Path(__file__).parent / "images" / "demo.svg"
WIDTH = 96
TITLE = "retinue demo"

LINES_BEFORE = 7
"""Lines of the story that are shown before the crash."""

LINES_AFTER = 5
"""Lines of the story that are shown after the crash."""

THEME = TerminalTheme(
    (22, 27, 34),
    (201, 209, 217),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)

FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- Made by `make picture` from a run of `retinue demo`. -->
<title>A run of `retinue demo`: the tree of agents at work, interrupted by kill -9, and completed.</title>
<style>
.{unique_id}-matrix {{
    font-family: Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
    white-space: pre;
}}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""The template of `Console.export_svg`; the one of rich loads fonts from another host."""


class Recorder(DemoScreen):
    """A screen without a live tree, which keeps the lines and the last tree of each part of the story."""

    def __init__(self) -> None:
        self._console = Console(
            file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
        )
        super().__init__(self._console, None)
        self._lines: list[tuple[StoryLine, float]] = []
        self._tree: Sequence[RunView] = ()

    def say(self, text: str, *, style: str = "") -> None:
        """Print the part of the story before this line, then the line."""
        if text.startswith("\nkill"):
            self._print_part(LINES_BEFORE)
        if self._tree and text.startswith("\nProcess"):
            self._console.print()
            self._print_tree()
        super().say(text, style=style)

    def print_line(self, line: StoryLine, *, since: float) -> None:
        """Keep a line of the story."""
        self._lines.append((line, since))

    def show(self, views: Sequence[RunView]) -> None:
        """Keep the tree."""
        self._tree = views

    def finish(self, played: Played) -> str:
        """Print the end of the story, and return the picture."""
        self._tree = played.tree
        self._print_part(LINES_AFTER)
        super().say(f"\n{played.summary()}", style="bold green")
        return self._console.export_svg(title=TITLE, theme=THEME, code_format=FORMAT, unique_id="demo")

    def _print_part(self, count: int) -> None:
        if len(self._lines) > count:
            self._console.print(Text("   ...", style="dim"))
        for line, since in self._lines[-count:]:
            super().print_line(line, since=since)
        self._lines.clear()
        self._console.print()
        self._print_tree()

    def _print_tree(self) -> None:
        self._console.print(draw(self._tree, now=time.time(), width=WIDTH, height=len(self._tree)))


async def picture() -> str:
    """Play the demo, and return its picture."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="retinue-picture-") as home:
        played = await play(Path(home), recorder, READABLE)
    if errors := played.errors():
        raise SystemExit("\n".join(errors))
    return recorder.finish(played)


def main() -> None:
    """Write the picture."""
    svg = asyncio.run(picture())
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    print(PICTURE.relative_to(Path.cwd()), file=sys.stderr)


if __name__ == "__main__":
    main()
