"""A program for tests with two processes: drives runs in a folder or store and reports on stdout, in JSON lines.

Commands on stdin: `start TASK [SECONDS]`, `release` (let all calls of `look` return), `try ID` (try to write to a run).
"""

import asyncio
import sys
from typing import Any

import msgspec

import retinue
from retinue.core.errors import RetinueError
from retinue.core.ports import Request
from retinue.core.run import Lifecycle
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says
from tests.engine.delegation import Delegate, delegates
from tests.internals import engine_of

WORDS = "Also name the day."


def report_words(request: Request) -> Line:
    """Say whether the words of another process were read."""
    return says("read" if any(message.text == WORDS for message in request.messages) else "unread")


LINES = (
    Script()
    .play("main", delegates("digger", task="look", lifecycle=Lifecycle(awaited=True)), says("done"), task="dig")
    .play("main", calls("press"), says("done"), task="press")
    .play("main", says("hello"), says("I am fine"), task="chat")
    .play("main", report_words, report_words, task="quick")
    .play("digger", calls("look"), says("gold"))
)


def report(**fields: object) -> None:
    """Print one line."""
    print(msgspec.json.encode(fields).decode(), flush=True)


def open_here(place: str, released: asyncio.Event | None, **options: Any) -> retinue.Retinue:
    """A retinue with this program's lines and tools, in a folder or in the store at an address.

    With `released`, `look` waits for it.
    """

    @retinue.tool(kind="pure")
    async def look(context: retinue.CallContext) -> str:
        """Look."""
        if released is not None:
            await engine_of(opened).journal.flush()  # nothing is left to write
            report(looking=context.run_id)
            await released.wait()
        return "seen"

    @retinue.tool
    async def press() -> str:
        """Press the button; needs an approval."""
        return "pressed"

    delegate = Delegate()
    delegate.retinue = lambda: opened
    opened = retinue.open(
        provider=ScriptedProvider(LINES),
        **({"store": place} if place.startswith("postgresql:") else {"home": place}),
        dialects=(),
        tools=(delegate, look, press),
        policy=retinue.Policy(always_ask=("press",)),
        approvals="wait",
        **options,
    )
    return opened


async def follow(r: retinue.Retinue, task: str, seconds: float | None = None) -> None:
    """Start a run and report its events and its outcome."""
    limits = None if seconds is None else retinue.Limits(timeout=seconds)
    handle = await r.spawn(task, keep_alive=task == "chat", limits=limits)
    report(started=handle.run_id)
    try:
        async for what in handle.events():
            await engine_of(r).journal.flush()  # what is reported here is visible to other processes
            report(run=handle.run_id, event=type(what).__name__)
        outcome = await handle.wait()
        report(ended=handle.run_id, result=outcome.result, text=outcome.text)
    except RetinueError as error:
        report(lost=handle.run_id, error=type(error).__name__)


async def try_to_write(r: retinue.Retinue, run_id: str) -> None:
    """Try to write to a run, and to start another."""
    errors: list[str] = []
    for verb in (r.send(run_id, "hello"), r.cancel(run_id), r.run("dig")):
        try:
            await verb
        except RetinueError as error:
            errors.append(type(error).__name__)
    report(errors=errors)


async def main(place: str) -> None:
    """Execute the commands on stdin until it ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    released = asyncio.Event()
    # The heartbeat is so rare that the process does not hold the file lock at the moment when a test stops it.
    async with open_here(place, released, lease=0.5) as r, asyncio.TaskGroup() as following:
        report(ready=True)
        while line := (await reader.readline()).decode().strip():
            match line.split(" "):
                case ["start", task]:
                    following.create_task(follow(r, task))
                case ["start", task, seconds]:
                    following.create_task(follow(r, task, float(seconds)))
                case ["release"]:
                    released.set()
                case ["try", run_id]:
                    await try_to_write(r, run_id)
                case _:
                    report(unknown=line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
