"""`retinue demo`: an incident, three agents and a crash, played by a scripted model before the viewer's eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.cli.demo.viewer import Played

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

    return perform(_show(fast=fast, keep=keep))


async def _show(*, fast: bool, keep: bool) -> int:
    import shutil
    import tempfile
    from pathlib import Path

    from retinue.app.follow import unless_stopped
    from retinue.cli.event_loop import INTERRUPTED, interrupts
    from retinue.cli.output.terminal import say

    home = Path(tempfile.mkdtemp(prefix="retinue-demo-"))
    code = 1

    async def play_and_tell() -> None:
        nonlocal code
        code = await _play(home, fast=fast)

    try:
        with interrupts() as asked_to_stop:
            if not await unless_stopped(play_and_tell(), asked_to_stop):
                say("interrupted")
                code = INTERRUPTED
    finally:
        if keep:
            say(f"kept in {home}; look around with: RETINUE_HOME={home} retinue runs")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return code


async def _play(home: Path, *, fast: bool) -> int:
    from retinue.cli.demo import story as story
    from retinue.cli.demo.screen import demo_screen
    from retinue.cli.demo.viewer import FAST, TO_FOLLOW, last_words, play
    from retinue.cli.output.terminal import say
    from retinue.core.errors import RetinueError

    try:
        with demo_screen() as screen:
            screen.say(
                f"Played by a scripted model ({story.PROVIDER}:{story.MODEL}): its words are prepared.", style="bold"
            )
            screen.say("Agents, tools, processes and the crash are real; the prices are made up.")
            played = await play(home, screen, FAST if fast else TO_FOLLOW)
    except (RetinueError, TimeoutError) as wrong:
        say(f"error: {wrong}{last_words(home)}")
        return 1
    return tell(played)


def tell(played: Played) -> int:
    """Print the answer, who worked for it, what the crash cost, and how to do it with a real model; the exit code."""
    from retinue.cli.demo import story as story
    from retinue.cli.demo.screen import DemoScreen
    from retinue.cli.output.terminal import answer, console, say
    from retinue.cli.runs.list_show import print_tree
    from retinue.core.text import clean

    screen = DemoScreen(console(), None)
    root = played.tree[0]
    screen.say("\nThe answer", style="bold")
    screen.say(clean(root.outcome.text if root.outcome else ""))
    screen.say("\nWho worked for it", style="bold")
    print_tree(played.tree)
    screen.say(f"\n{played.count}", style="bold green" if not played.count.again else "bold red")
    screen.say("\nThe same with a real model:", style="bold")
    answer(f'retinue run --model {REAL_MODEL} \\\n  --config {_seen_from_here(story.SETTINGS)} \\\n  "{story.TASK}"')
    for complaint in played.complaints():
        say(f"error: {complaint}")
    return 1 if played.complaints() else 0


def _seen_from_here(path: Path) -> str:
    """A path as one types it in this folder."""
    import shlex
    from pathlib import Path

    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
