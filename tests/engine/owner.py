"""A program for tests with two processes: it drives runs in the folder it is given, and tells on stdout what happens.

Each line of its input is a wish: `start TASK`, `release` (let everyone who looks have seen), `try ID` (touch a run).
"""

import asyncio
import sys
from typing import Any

import msgspec

import retinue
from retinue.core.errors import RetinueError
from retinue.core.run import Lifecycle
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from tests.engine.delegation import Delegate, delegates
from tests.internals import engine_of

LINES = (
    Script()
    .play("main", delegates("digger", task="look", lifecycle=Lifecycle(awaited=True)), says("done"), task="dig")
    .play("main", calls("press"), says("done"), task="press")
    .play("main", says("hello"), says("I am fine"), task="chat")
    .play("digger", calls("look"), says("gold"))
)


def tell(**news: object) -> None:
    """One line of news."""
    print(msgspec.json.encode(news).decode(), flush=True)


def open_here(home: str, released: asyncio.Event | None, **options: Any) -> retinue.Retinue:
    """A retinue with this program's lines and tools; with `released`, looking takes until then."""

    @retinue.tool(kind="pure")
    async def look(context: retinue.CallContext) -> str:
        """Look."""
        if released is not None:
            await engine_of(opened).journal.flush()  # from here on there is nothing left to write
            tell(looking=context.run_id)
            await released.wait()
        return "seen"

    @retinue.tool
    async def press() -> str:
        """Press the button, when somebody allows it."""
        return "pressed"

    delegate = Delegate()
    delegate.retinue = lambda: opened
    opened = retinue.open(
        provider=ScriptedProvider(LINES),
        home=home,
        dialects=(),
        tools=(delegate, look, press),
        policy=retinue.Policy(always_ask=("press",)),
        approvals="wait",
        **options,
    )
    return opened


async def follow(r: retinue.Retinue, task: str) -> None:
    """Start a run and tell what becomes of it."""
    handle = await r.spawn(task, keep_alive=task == "chat")
    tell(started=handle.run_id)
    try:
        async for what in handle.events():
            await engine_of(r).journal.flush()  # what is told here can be seen from everywhere
            tell(run=handle.run_id, event=type(what).__name__)
        outcome = await handle.wait()
        tell(ended=handle.run_id, result=outcome.result, text=outcome.text)
    except RetinueError as error:
        tell(lost=handle.run_id, error=type(error).__name__)


async def touch(r: retinue.Retinue, run_id: str) -> None:
    """Try to write something about a run, and about another."""
    errors: list[str] = []
    for verb in (r.send(run_id, "hello"), r.cancel(run_id), r.run("dig")):
        try:
            await verb
        except RetinueError as error:
            errors.append(type(error).__name__)
    tell(errors=errors)


async def main(home: str) -> None:
    """Do what the lines of the input say, until they end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    released = asyncio.Event()
    # It beats so rarely that it is certain not to hold the file's lock in the moment when a test stops it.
    async with open_here(home, released, lease=0.5) as r, asyncio.TaskGroup() as following:
        tell(ready=True)
        while line := (await reader.readline()).decode().strip():
            match line.split(" "):
                case ["start", task]:
                    following.create_task(follow(r, task))
                case ["release"]:
                    released.set()
                case ["try", run_id]:
                    await touch(r, run_id)
                case _:
                    tell(unknown=line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
