"""A delegation whose process stops after each write, one after the other: the next process takes it over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from retinue.core.errors import StoreError
from retinue.core.ports import Store
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.native.harness import TASK, NativeHarness

H = TypeVar("H", bound=NativeHarness)

Told = dict[str, list[str]]
"""What is compared of the conversation of every run, by path."""


class Crash(Struct, Generic[H]):
    """The tree after a stop behind `writes` writes, and the tree that was not disturbed."""

    writes: int
    harness: H
    text: str
    told: Told
    undisturbed: H
    whole: Told


async def crashes(
    kind: str, folder: Path, story: Callable[[Store], H], told: Callable[[H], Awaitable[Told]]
) -> AsyncIterator[Crash[H]]:
    """Play a story to its end, then once for each of its writes with a stop behind it.

    All runs of a tree have completed, and `kind` names the store: memory or sqlite. Lines that were not played are no
    failure: how many a run needs may follow from the order of ends.
    """

    def new_store(name: str) -> Store:
        return MemoryStore() if kind == "memory" else SqliteStore(folder / f"{name}.db")

    undisturbed = story(new_store("undisturbed"))
    await undisturbed.open()
    assert (await undisturbed.run(TASK, key="root")).text == "Thanks."
    whole = await told(undisturbed)
    writes = undisturbed.written
    await undisturbed.close()

    for n in range(writes + 1):
        harness = story(new_store(str(n)))
        with suppress(StoreError):
            await harness.open(killed_after=n)
        if harness.alive:
            with suppress(StoreError):
                await harness.run(TASK, key="root")
            await harness.kill()
        await harness.open(adopt=True)
        outcome = await harness.run(TASK, key="root")
        conversations = await told(harness)
        await harness.close()

        ends = {row.path: row.progress.outcome and row.progress.outcome.result for row in harness.rows()}
        assert ends == dict.fromkeys(whole, "completed"), n
        yield Crash(n, harness, outcome.text, conversations, undisturbed, whole)
        harness.store.close()
    undisturbed.store.close()
