"""The worker process of `retinue demo`: starts the story, or resumes it after a crash.

Started by the viewer as `python -m retinue.cli.demo.worker HOME PROCESS PACE`. It ends when its stdin is closed, so it
does not outlive the viewer.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from retinue.app.open import open as open_retinue
from retinue.app.settings_file import load_settings
from retinue.app.tool_modules import load_tools
from retinue.cli.demo import story
from retinue.cli.event_loop import perform
from retinue.providers.scripted import ScriptedProvider


def log_of(home: Path, process: int) -> Path:
    """The file in which the scripted model of a process logs its calls."""
    return home / f"model-calls-{process}"


async def work(home: Path, process: int, pace: float) -> int:
    """Drive the story to its end: the question to the user, the user's answer, and the rest."""
    settings = load_settings(story.SETTINGS)
    model = ScriptedProvider(
        story.script(pace, process=process), latency=pace, prices=story.PRICES, log=log_of(home, process)
    )
    async with open_retinue(
        providers={story.PROVIDER: model},
        model=f"{story.PROVIDER}:{story.MODEL}",
        agents=settings.core_agents(),
        tools=load_tools(settings.tool_modules),
        session=story.SESSION,
        home=home,
        adopt=True,
    ) as retinue:
        # The same key is the same run: the second process finds the run of the first, which it has adopted.
        root = await retinue.spawn(story.TASK, key=story.KEY, tools=(), keep_alive=True)
        await root.answer(2)
        outcome = await root.close()
    return 0 if outcome.ok else 1


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(perform(work(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
