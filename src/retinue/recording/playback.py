"""Open a retinue whose models and tools are played from a recording, or one whose next tree is recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from retinue.app.open import MEMORY
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput
from retinue.core.ids import RunId
from retinue.recording.file import Recording, read_recording, write_recording
from retinue.recording.player import Player
from retinue.recording.recorder import Definitions, record_tree


def replay(file: str | Path, *, live_tools: bool = False, **options: Any) -> AbstractAsyncContextManager[Retinue]:
    """A retinue that plays a recording, for `async with`; options are those of `retinue.open`.

    Give the agents, tools, dialects and settings that the tree was recorded with. No model is called and no key is
    needed. Tools answer as recorded, but for those of dialects and those that start runs; with `live_tools` all are
    called. Leaving the block raises `ReplayDiffers`, an `AssertionError`, with a diff if a request was not the recorded
    one, or if something recorded did not happen.

    >>> import asyncio, tempfile
    >>> import retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, record, replay, says
    >>> @retinue.tool
    ... def look(at: str) -> str:
    ...     return f"saw {at}"
    >>> async def main(folder: str) -> None:
    ...     model = ScriptedProvider(Script().play("main", calls("look", at="the pool"), says("It is full.")))
    ...     async with record(f"{folder}/pool.jsonl", provider=model, tools=[look], dialects=()) as r:
    ...         await r.run("Why is it slow?")
    ...     async with replay(f"{folder}/pool.jsonl", tools=[look], dialects=()) as r:
    ...         print((await r.run("Why is it slow?")).text)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    It is full.
    """
    return _replay(Player(read_recording(file), live_tools=live_tools), options)


@asynccontextmanager
async def _replay(player: Player, options: dict[str, Any]) -> AsyncGenerator[Retinue]:
    async with open_retinue(**playing(player, options)) as r:
        player.attach(r)
        try:
            yield r
        except Exception as error:
            if player.differences:  # it explains why an assertion about the outcome failed
                raise player.differences[0] from error
            raise
    player.verify()


def playing(player: Player, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a retinue whose models are played."""
    recording = player.recording
    root = recording.spec(recording.tree.spec)
    names = dict.fromkeys(model.provider for model in recording.models)
    if options.get("provider") is not None or options.get("base_url") is not None:
        raise BadInput("replay: leave out provider= and base_url=: the models are those of the recording")
    return {
        "home": MEMORY,
        "model": f"{root.provider}:{root.model}",
        "approvals": player.approve,
        **options,
        "providers": dict.fromkeys(names, player),
        "hooks": [*options.get("hooks", ()), player.hooks],
    }


def record(file: str | Path, **options: Any) -> AbstractAsyncContextManager[Retinue]:
    """A retinue whose only tree is written to a file at the end of the block, without secrets; see `replay`.

    Options are those of `retinue.open`; the runs are kept in memory unless `home` or `store` is given. Raises
    `BadInput` if there is not exactly one tree, if it has not ended, or if a secret would be left in the file.
    """
    return _record(file, {"home": MEMORY} | options)


@asynccontextmanager
async def _record(file: str | Path, given: dict[str, Any]) -> AsyncGenerator[Retinue]:
    async with open_retinue(**given) as r:
        before = {row.run_id for row in await r.supervisor.stored.runs(RunQuery(roots_only=True))}
        yield r
        rows = await r.supervisor.stored.runs(RunQuery(roots_only=True))
        roots = [row.run_id for row in rows if row.run_id not in before]
        if len(roots) != 1:
            raise BadInput(f"{file} was not written: {len(roots)} root runs were started, and a recording has one")
        await write_tree(r, roots[0], file)


async def write_tree(retinue: Retinue, root_id: RunId, file: str | Path) -> Recording:
    """Record a tree of this retinue, with the definitions of its tools, in a file."""
    definitions = Definitions(
        retinue.supervisor.tools_of, retinue.supervisor.find_tool, retinue.supervisor.find_provider
    )
    recording = await record_tree(retinue.supervisor, root_id, definitions)
    write_recording(recording, file)
    return recording
