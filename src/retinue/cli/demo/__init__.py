"""`retinue demo`: an incident, four agents and a crash, played by a scripted model."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import INTERRUPTED, answer, console, say
from retinue.core.errors import RetinueError

if TYPE_CHECKING:
    from retinue.cli.demo.crash_and_resume import Played

__all__ = ["demo"]

REAL_MODEL = "anthropic:claude-sonnet-4-5"


def demo(
    fast: Annotated[bool, option("--fast", help="Do not pause for reading.")] = False,
    keep: Annotated[bool, option("--keep", help="Keep the state folder and print its path.")] = False,
) -> int:
    """Watch agents delegate, share context, crash and resume; needs no model and no key.

    The model is scripted; processes, store and crash are real. Exit status: 0 success, 1 failure, 130 interrupted.
    """
    return perform(_demo(fast=fast, keep=keep))


async def _demo(*, fast: bool, keep: bool) -> int:
    import tempfile

    from retinue.app.follow import unless_stopped

    home = Path(tempfile.mkdtemp(prefix="retinue-demo-"))
    code = 1

    async def play() -> None:
        nonlocal code
        code = await _play(home, fast=fast)

    try:
        with interrupts() as stop:
            if not await unless_stopped(play(), stop):
                say("interrupted")
                code = INTERRUPTED
    finally:
        if keep:
            say(f"kept in {home}; inspect it with: RETINUE_HOME={home} retinue runs")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return code


async def _play(home: Path, *, fast: bool) -> int:
    from retinue.cli.demo import story
    from retinue.cli.demo.crash_and_resume import FAST, READABLE, demo_screen, last_line, play

    try:
        with demo_screen() as screen:
            model = f"{story.PROVIDER}:{story.MODEL}"
            screen.say(f"The model is scripted ({model}): its replies are prepared.", style="bold")
            screen.say("Agents, tools, processes and the crash are real; the prices are made up.")
            played = await play(home, screen, FAST if fast else READABLE)
    except (RetinueError, TimeoutError) as error:
        say(f"error: {error}{last_line(home)}")
        return 1
    return print_end(played)


def print_end(played: Played) -> int:
    """Print the answer, the tree, the model calls around the crash, and the command for a real model; the exit code."""
    from retinue.cli.demo import story
    from retinue.cli.demo.crash_and_resume import DemoScreen
    from retinue.cli.runs.list_show import print_tree

    screen = DemoScreen(console(), None)
    root = played.tree[0]
    screen.say("\nThe answer", style="bold")
    screen.say(root.outcome.text if root.outcome else "")
    screen.say("\nThe runs", style="bold")
    print_tree(played.tree)
    screen.say(f"\n{played.summary()}", style="bold red" if played.repeated else "bold green")
    screen.say("\nThe same with a real model:", style="bold")
    answer(f'retinue run --model {REAL_MODEL} \\\n  --config {_relative(story.SETTINGS)} \\\n  "{story.TASK}"')
    for error in played.errors():
        say(f"error: {error}")
    return 1 if played.errors() else 0


def _relative(path: Path) -> str:
    """A path as it is typed in the current folder."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
