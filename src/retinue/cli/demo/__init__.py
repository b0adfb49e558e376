"""`retinue demo`: an incident, four agents and a crash, played by a scripted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.cli.demo.viewer import Played

__all__ = ["demo"]

REAL_MODEL = "anthropic:claude-sonnet-4-5"


def demo(
    fast: Annotated[bool, typer.Option("--fast", metavar="", help="Do not wait for people to read.")] = False,
    keep: Annotated[bool, typer.Option("--keep", metavar="", help="Keep the state folder, and say where.")] = False,
) -> int:
    """Watch agents delegate, share context, crash and go on; needs no model and no key.

    A scripted model plays the parts; processes, store and crash are real. Exit status: 0 all went well, 1 something
    did not, 130 interrupted.
    """
    from retinue.cli.event_loop import perform

    return perform(_demo(fast=fast, keep=keep))


async def _demo(*, fast: bool, keep: bool) -> int:
    import shutil
    import tempfile
    from pathlib import Path

    from retinue.app.follow import unless_stopped
    from retinue.cli.event_loop import INTERRUPTED, interrupts
    from retinue.cli.output.terminal import say

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
            say(f"kept in {home}; look around with: RETINUE_HOME={home} retinue runs")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return code


async def _play(home: Path, *, fast: bool) -> int:
    from retinue.cli.demo import story
    from retinue.cli.demo.viewer import FAST, READABLE, demo_screen, last_line, play
    from retinue.cli.output.terminal import say
    from retinue.core.errors import RetinueError

    try:
        with demo_screen() as screen:
            model = f"{story.PROVIDER}:{story.MODEL}"
            screen.say(f"Played by a scripted model ({model}): its words are prepared.", style="bold")
            screen.say("Agents, tools, processes and the crash are real; the prices are made up.")
            played = await play(home, screen, FAST if fast else READABLE)
    except (RetinueError, TimeoutError) as error:
        say(f"error: {error}{last_line(home)}")
        return 1
    return print_end(played)


def print_end(played: Played) -> int:
    """Print the answer, the tree, the model calls around the crash, and the command for a real model; the exit code."""
    from retinue.cli.demo import story
    from retinue.cli.demo.viewer import DemoScreen
    from retinue.cli.output.terminal import answer, console, say
    from retinue.cli.runs.list_show import print_tree
    from retinue.core.text import clean

    screen = DemoScreen(console(), None)
    root = played.tree[0]
    screen.say("\nThe answer", style="bold")
    screen.say(clean(root.outcome.text if root.outcome else ""))
    screen.say("\nWho worked for it", style="bold")
    print_tree(played.tree)
    screen.say(f"\n{played.summary()}", style="bold red" if played.repeated else "bold green")
    screen.say("\nThe same with a real model:", style="bold")
    answer(f'retinue run --model {REAL_MODEL} \\\n  --config {_relative(story.SETTINGS)} \\\n  "{story.TASK}"')
    for error in played.errors():
        say(f"error: {error}")
    return 1 if played.errors() else 0


def _relative(path: Path) -> str:
    """A path as it is typed in the current folder."""
    import shlex
    from pathlib import Path

    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
