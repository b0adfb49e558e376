"""`Retinue.events` with `tree=True`: one stream for a run and all runs below it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.events import CallReturned, ReplyReceived, RunAccepted, RunEnded, TreeEvent
from retinue.messages import TextDelta
from retinue.testing import Script, ScriptedProvider, calls, says, streams
from tests.internals import engine_of


def lead_and_child() -> ScriptedProvider:
    script = Script()
    script.play("main", calls("run_agent", agent="dig", task="Find it."), says("It was the pool."))
    script.play("dig", streams("Found ", "it."))
    return ScriptedProvider(script)


def open_tree(provider: ScriptedProvider, home: str | Path = retinue.MEMORY) -> retinue.Retinue:
    return retinue.open(provider=provider, home=home, dialects=["native"], agents=[retinue.Agent(name="dig")])


def summary(items: list[TreeEvent]) -> list[tuple[str, str]]:
    return [(item.path, type(item.event).__name__) for item in items]


async def collect(events: AsyncIterator[TreeEvent]) -> list[TreeEvent]:
    return [item async for item in events]


def stored(items: list[TreeEvent]) -> list[TreeEvent]:
    return [item for item in items if item.seq]


def by_run(items: list[TreeEvent]) -> list[tuple[str, int, object]]:
    return [(item.run, item.seq, item.event) for item in sorted(stored(items), key=lambda item: (item.run, item.seq))]


async def test_the_events_of_a_tree_have_births_paths_and_parents() -> None:
    async with open_tree(lead_and_child()) as r:
        root = await r.spawn("Why is it slow?")
        items = await collect(r.events(root, tree=True))

    assert [name for path, name in summary(stored(items)) if path == "root"] == [
        "RunAccepted",
        "ReplyReceived",
        "ResultCollected",
        "CallReturned",
        "ReplyReceived",
        "RunEnded",
    ]
    child = [item for item in items if item.run != root.run_id]
    assert isinstance(child[0].event, RunAccepted)
    assert {item.parent for item in child} == {root.run_id}
    assert "".join(item.event.text for item in child if isinstance(item.event, TextDelta)) == "Found it."
    assert isinstance(child[-1].event, RunEnded)
    assert [item.seq for item in child if item.seq] == [1, 2, 3]
    births = [item.run for item in items if isinstance(item.event, RunAccepted)]
    assert births == [root.run_id, child[0].run]


async def test_a_returned_call_has_the_name_of_its_tool_and_its_duration() -> None:
    @retinue.tool(kind="pure")
    async def rest() -> str:
        await asyncio.sleep(1.5)
        return "rested"

    model = ScriptedProvider(Script().play("main", calls("rest"), calls("nap"), says("Done.")))
    async with retinue.open(provider=model, home=retinue.MEMORY, tools=[rest], dialects=()) as r:
        root = await r.spawn("Rest.")
        events = [event async for event in root.events() if isinstance(event, CallReturned)]

    assert [(event.tool, event.duration) for event in events] == [("rest", 1.5), ("nap", None)]


async def test_a_stream_goes_on_from_a_cursor() -> None:
    async with open_tree(lead_and_child()) as r:
        root = await r.spawn("Why is it slow?")
        seen: dict[str, int] = {}
        async for item in r.events(root, tree=True):
            if item.seq:
                seen[item.run] = item.seq
            if isinstance(item.event, RunEnded):
                break  # of the child: it ends before the root
        rest = await collect(r.events(root, tree=True, after=seen))

    assert [(item.run, item.seq) for item in rest if item.seq] == [(root.run_id, seq) for seq in (3, 4, 5, 6)]


async def test_the_tree_of_another_process_is_read_from_the_store(tmp_path: Path) -> None:
    async with open_tree(lead_and_child(), tmp_path) as first, open_tree(lead_and_child(), tmp_path) as second:
        root = await first.spawn("Why is it slow?")
        here, there = await asyncio.gather(
            collect(first.events(root, tree=True)), collect(second.events(root.run_id, tree=True))
        )

    assert by_run(there) == by_run(here)
    assert all(item.seq for item in there)


async def test_a_tree_that_ends_while_another_process_reads_its_rows_is_read_to_its_end(tmp_path: Path) -> None:
    ended = threading.Event()
    async with open_tree(lead_and_child(), tmp_path) as first, open_tree(lead_and_child(), tmp_path) as second:
        root = await first.spawn("Why is it slow?")
        store = engine_of(second).store
        rows_of = store.runs

        def runs(query: RunQuery) -> list[RunRow]:
            rows = rows_of(query)
            ended.wait(timeout=60)
            return rows

        store.runs = runs  # type: ignore[method-assign]
        reading = asyncio.create_task(collect(second.events(root.run_id, tree=True)))
        await root.wait()
        ended.set()
        items = await reading
        there = await collect(first.events(root, tree=True))

    assert by_run(items) == by_run(there)
    assert len(items) == 9


async def test_a_reader_that_joins_late_or_after_the_end_gets_everything() -> None:
    async with open_tree(lead_and_child()) as r:
        root = await r.spawn("Why is it slow?")
        live = await collect(r.events(root, tree=True))
        late = await collect(r.events(root, tree=True))

    assert sorted((item.run, item.seq) for item in stored(live)) == [
        (item.run, item.seq) for item in sorted(late, key=lambda item: (item.run, item.seq))
    ]


async def test_the_subtree_of_a_child_has_no_events_of_its_parent() -> None:
    async with open_tree(lead_and_child()) as r:
        root = await r.spawn("Why is it slow?")
        await root.wait()
        child = next(view for view in await r.tree(root) if view.parent_id is not None)
        items = await collect(r.events(child.run_id, tree=True))

    assert {item.run for item in items} == {child.run_id}


async def test_a_slow_reader_loses_deltas_and_no_event() -> None:
    pieces = [f"{number} " for number in range(3000)]
    model = ScriptedProvider(Script().play("main", streams(*pieces)))
    async with open_tree(model) as r:
        root = await r.spawn("Count.")
        events = r.events(root, tree=True)
        first = await anext(events)
        await root.wait()
        items = [first, *await collect(events)]

    assert [type(item.event) for item in stored(items)] == [RunAccepted, ReplyReceived, RunEnded]
    texts = [item.event.text for item in items if isinstance(item.event, TextDelta)]
    assert texts == pieces[: len(texts)]
    assert len(texts) < len(pieces)


async def test_the_tree_of_an_unknown_run_is_refused() -> None:
    async with open_tree(lead_and_child()) as r:
        with pytest.raises(retinue.RetinueError, match="'nothing'"):
            await collect(r.events("nothing", tree=True))
        with pytest.raises(retinue.RetinueError, match="give the number of the last event of each run"):
            r.events("nothing", tree=True, after=3)  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_the_stream_of_an_interrupted_tree_ends_with_what_is_stored(tmp_path: Path) -> None:
    async with open_tree(lead_and_child(), tmp_path) as r:
        detached = await r.spawn("Why is it slow?", detached=True)
        items = await collect(r.events(detached, tree=True))

    assert summary(items) == [("root", "RunAccepted")]


async def test_a_tree_that_this_process_adopts_is_read_without_a_gap(tmp_path: Path) -> None:
    async with open_tree(lead_and_child(), tmp_path) as reading:
        async with open_tree(lead_and_child(), tmp_path) as other:
            detached = await other.spawn("Why is it slow?", detached=True)
        events = reading.events(detached.run_id, tree=True)
        first = await anext(events)
        await reading.resume(detached.run_id)
        items = [first, *await collect(events)]

    assert {item.run for item in items if isinstance(item.event, RunEnded)} == {item.run for item in items}
    for run in {item.run for item in items}:
        numbers = [item.seq for item in stored(items) if item.run == run]
        assert numbers == list(range(1, len(numbers) + 1))
