"""The memory tools as a model meets them: what they say word for word, whose memories they touch, what crashes do."""

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.agent import RunSpec
from retinue.core.errors import StoreError
from retinue.core.policy import Autonomy, Policy, Risk
from retinue.core.ports import CallRisk, Store
from retinue.engine import SpawnRequest
from retinue.providers.scripted import calls, says
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.memory.backend import Note, Search
from retinue.tools.memory.memory_tools import MAX_CONTENT_CHARACTERS, memory_tools, open_memory, tools
from tests.tools.calling import DirectShelf, FixedClock, LateShelf, NoSandbox, context, refused, told

KINDS = ("sqlite", "markdown")


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    store = SqliteStore(tmp_path / "retinue.db", threaded=False)
    yield store
    store.close()


class Desk:
    """The three tools, their memory, and the hands of their clock."""

    def __init__(self, kind: str, home: Path | None, store: Store) -> None:
        self.clock = FixedClock()
        self.memory = open_memory(kind, home)
        self.store, self.recall, self.forget = memory_tools(self.memory, DirectShelf(store), self.clock)


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Desk:
    return Desk(request.param, tmp_path, store)


# ---- word for word ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-MEMORY-TEXTS")
async def test_what_is_stored_is_recalled_and_forgotten(desk: Desk) -> None:
    assert await told(desk.recall) == "No memories found."
    assert (
        await told(desk.store, context("r/1/0"), key="color", content="The user likes blue") == "Stored memory: color"
    )
    desk.clock.at += 1
    more = {"key": "team", "content": "Four people\nin Riga", "category": "daily"}
    assert await told(desk.store, context("r/2/0"), **more) == "Stored memory: team"

    assert await told(desk.recall) == (
        "Found 2 memories:\n- [daily] team: Four people\nin Riga\n- [core] color: The user likes blue"
    )
    assert await told(desk.recall, query="blue") == "Found 1 memories:\n- [core] color: The user likes blue [100%]"
    assert await told(desk.recall, query="green blue") == "Found 1 memories:\n- [core] color: The user likes blue [50%]"
    assert await told(desk.recall, query="yellow") == "No memories found."

    assert await told(desk.forget, context("r/3/0"), key="color") == "Forgot memory: color"
    assert await told(desk.forget, context("r/4/0"), key="color") == "No memory found with key: color"
    assert await told(desk.recall, query="blue") == "No memories found."


async def test_a_row_is_stamped_with_who_wrote_it(desk: Desk) -> None:
    await told(desk.store, context("r/1/0"), key="color", content="blue")
    writer = context("r/2/0", run_id="r2", session_id="s2", agent="child", identity="researcher")
    desk.clock.at += 10

    await told(desk.store, writer, key="color", content="red", category="mood")

    row = desk.memory.find("researcher", "color")
    assert row is not None
    assert (row.agent, row.run_id, row.session_id) == ("researcher", "r2", "s2")
    assert (row.category, row.created_at, row.updated_at) == ("mood", desk.clock.at - 10, desk.clock.at)


@pytest.mark.promise("ZC-MEMORY-TEXTS")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Missing 'key' parameter"),
        ({"content": "x"}, "Missing 'key' parameter"),
        ({"key": 7, "content": "x"}, "Missing 'key' parameter"),
        ({"key": " ", "content": "x"}, "Missing 'key' parameter"),
        ({"key": "k"}, "Missing 'content' parameter"),
        ({"key": "k", "content": ["x"]}, "Missing 'content' parameter"),
        ({"key": "k" * 257, "content": "x"}, "'key' has 257 characters; at most 256 are allowed."),
        (
            {"key": "k", "content": "x" * (MAX_CONTENT_CHARACTERS + 1)},
            "'content' has 100001 characters; at most 100000 can be stored under one key. "
            "Shorten it, or store parts of it under several keys.",
        ),
        (
            {"key": "k", "content": "x", "category": "a]\nb"},
            "Invalid 'category': expected core, daily, conversation, or a name of up to 64 letters, digits, _ and -.",
        ),
    ],
)
async def test_what_cannot_be_stored_is_told(desk: Desk, arguments: dict[str, Any], text: str) -> None:
    assert await refused(desk.store, **arguments) == text
    assert desk.memory.agents() == []


async def test_forgetting_needs_a_key(desk: Desk) -> None:
    assert await refused(desk.forget) == "Missing 'key' parameter"


DATE = "Expected RFC 3339 format, e.g. 2025-03-01T00:00:00Z"


@pytest.mark.promise("ZC-MEMORY-TEXTS")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"since": "yesterday"}, f"Invalid 'since' date: yesterday. {DATE}"),
        ({"until": "2025-03-01"}, f"Invalid 'until' date: 2025-03-01. {DATE}"),
        ({"until": "2025-02-30T00:00:00Z"}, f"Invalid 'until' date: 2025-02-30T00:00:00Z. {DATE}"),
        ({"since": "2025-W09-6T00:00:00Z"}, f"Invalid 'since' date: 2025-W09-6T00:00:00Z. {DATE}"),
        ({"since": 5}, f"Invalid 'since' date: 5. {DATE}"),
        ({"since": "2025-03-01T00:00:00Z", "until": "2025-03-01T01:00:00+01:00"}, "'since' must be before 'until'"),
        ({"since": "2025-03-02T00:00:00Z", "until": "2025-03-01T00:00:00Z"}, "'since' must be before 'until'"),
        ({"limit": 0}, "Invalid 'limit': expected a whole number from 1 to 100."),
        ({"limit": "many"}, "Invalid 'limit': expected a whole number from 1 to 100."),
        ({"query": {}, "limit": True}, "Invalid 'limit': expected a whole number from 1 to 100."),
        ({"query": ["x"]}, "Invalid 'query': expected words to look for."),
        ({"search_mode": "psychic"}, "Invalid 'search_mode': expected one of: bm25, embedding, hybrid."),
    ],
)
async def test_a_question_that_makes_no_sense_is_told(desk: Desk, arguments: dict[str, Any], text: str) -> None:
    assert await refused(desk.recall, **arguments) == text


@pytest.mark.parametrize("arguments", ["[]", "{", "nonsense", '"key"', "\ud800"])
async def test_arguments_that_are_no_object_are_told(desk: Desk, arguments: str) -> None:
    for tool in (desk.store, desk.recall, desk.forget):
        with pytest.raises(Exception, match=r"^Arguments must be one JSON object"):
            await tool.call(arguments, context())


async def test_times_limits_and_modes_narrow_what_is_recalled(desk: Desk) -> None:
    for number in range(7):
        await told(desk.store, context(f"r/{number}/0"), key=f"k{number}", content="word")
        desk.clock.at += 3600

    def listed(*numbers: int) -> str:
        return "\n".join([f"Found {len(numbers)} memories:", *(f"- [core] k{number}: word" for number in numbers)])

    assert await told(desk.recall) == listed(6, 5, 4, 3, 2)
    assert await told(desk.recall, limit=2.0) == listed(6, 5)
    assert await told(desk.recall, limit=1000) == listed(6, 5, 4, 3, 2, 1, 0)
    assert await told(desk.recall, since="2026-01-01T05:00:00Z") == listed(6, 5)
    assert await told(desk.recall, since="2026-01-01t02:00:00+01:00", until="2026-01-01T03:00:00.5Z") == listed(3, 2, 1)
    for mode in ("bm25", "embedding", "hybrid"):
        assert "k6: word [100%]" in await told(desk.recall, query="word", limit=1, search_mode=mode)


# ---- whose -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-MEMORY-SCOPE")
async def test_others_memories_are_read_where_they_were_given_and_never_written(desk: Desk) -> None:
    desk.memory.store(Note(agent="writer", key="style", content="plain", at=1.0))
    desk.memory.store(Note(agent="secret", key="pin", content="1234", at=2.0))
    reader = context("r/1/0", memory_from=("writer",))

    assert await told(desk.recall, context()) == "No memories found."
    assert await told(desk.recall, context(), query="style pin") == "No memories found."
    assert await told(desk.recall, reader) == "Found 1 memories:\n- [core] style: plain"
    assert await told(desk.forget, reader, key="style") == "No memory found with key: style"
    mine = {"key": "style", "content": "mine", "agent": "writer", "identity": "writer"}
    assert await told(desk.store, context("r/2/0", memory_from=("writer",)), **mine) == "Stored memory: style"
    rows = desk.memory.recall(Search(agents=("writer", "researcher", "secret"), limit=9))
    assert {(each.memory.agent, each.memory.content) for each in rows} == {
        ("writer", "plain"),
        ("researcher", "mine"),
        ("secret", "1234"),
    }


@pytest.mark.promise("ZC-MEMORY-GATED")
async def test_storing_and_forgetting_are_actions_and_recalling_is_none(desk: Desk) -> None:
    weights = [tool.prepare("{}").risk for tool in (desk.store, desk.recall, desk.forget)]

    assert weights == [CallRisk(Risk.LOW, acts=True), CallRisk(Risk.LOW), CallRisk(Risk.LOW, acts=True)]
    assert [tool.kind for tool in (desk.store, desk.recall, desk.forget)] == ["keyed", "pure", "keyed"]


async def test_a_kit_without_a_home_keeps_memories_for_as_long_as_its_tools_live(store: Store, tmp_path: Path) -> None:
    for kind in KINDS:
        dependencies = ToolDependencies(
            sandbox=NoSandbox(), key_value=DirectShelf(store), clock=FixedClock(), memory=kind
        )
        remember, recall, _ = tools(dependencies)
        await told(remember, context(f"{kind}/1/0"), key="k", content="x")

        assert await told(recall) == "Found 1 memories:\n- [core] k: x"
        assert await told(tools(dependencies)[1]) == "No memories found."
    assert {name for name in os.listdir(tmp_path) if not name.startswith("retinue.db")} == set()


async def test_a_kit_with_a_home_keeps_them_there(store: Store, tmp_path: Path) -> None:
    for kind, place in (("sqlite", "memory.db"), ("markdown", "memory/researcher.md")):
        dependencies = ToolDependencies(
            sandbox=NoSandbox(), key_value=DirectShelf(store), clock=FixedClock(), memory=kind, home=tmp_path
        )
        await told(tools(dependencies)[0], context(f"{kind}/1/0"), key="k", content="x")

        assert (tmp_path / place).is_file()
        assert await told(tools(dependencies)[1]) == "Found 1 memories:\n- [core] k: x"


async def test_each_agent_keeps_its_memory_where_its_settings_say(store: Store, tmp_path: Path) -> None:
    kept = {"writer": "markdown", "ghost": "none"}
    dependencies = ToolDependencies(
        sandbox=NoSandbox(), key_value=DirectShelf(store), clock=FixedClock(), home=tmp_path, memories=kept
    )
    remember, recall, forget = tools(dependencies)
    for agent in ("researcher", "writer"):
        await told(remember, context(f"{agent}/1/0", identity=agent), key="style", content=f"of the {agent}")
    ghost = context("ghost/1/0", identity="ghost")
    assert await refused(remember, ghost, key="k", content="x") == (
        "The agent 'ghost' keeps no memory (memory backend = none)."
    )

    assert open_memory("markdown", tmp_path).agents() == ["writer"]
    assert open_memory("sqlite", tmp_path).agents() == ["researcher"]
    both = context("r/2/0", identity="ghost", memory_from=("writer", "researcher"))
    assert await told(recall, both) == (
        "Found 2 memories:\n- [core] style: of the researcher\n- [core] style: of the writer"
    )
    assert await told(forget, context("w/3/0", identity="writer"), key="style") == "Forgot memory: style"
    assert await told(recall, both) == "Found 1 memories:\n- [core] style: of the researcher"


async def test_memory_that_cannot_be_reached_is_told_without_its_place(store: Store, tmp_path: Path) -> None:
    (tmp_path / "memory.db").write_bytes(b"not a database at all " * 100)
    desk = Desk("sqlite", tmp_path, store)

    assert await refused(desk.recall) == "The memory cannot be reached: file is not a database"


# ---- crashes ---------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_entered_again_answers_the_same_and_leaves_later_writes_alone(desk: Desk) -> None:
    first, again = context("r/1/0"), context("r/1/0", again=True)
    await told(desk.store, first, key="color", content="blue")
    desk.clock.at += 5
    await told(desk.store, context("other/1/0"), key="color", content="red")
    desk.clock.at += 5

    assert await told(desk.store, again, key="color", content="blue") == "Stored memory: color"
    assert await told(desk.recall) == "Found 1 memories:\n- [core] color: red"

    gone, gone_again = context("r/2/0"), context("r/2/0", again=True)
    assert await told(desk.forget, gone, key="color") == "Forgot memory: color"
    assert await told(desk.forget, gone_again, key="color") == "Forgot memory: color"
    desk.clock.at += 5
    await told(desk.store, context("other/2/0"), key="color", content="green")
    assert await told(desk.forget, gone_again, key="color") == "Forgot memory: color"
    assert await told(desk.recall) == "Found 1 memories:\n- [core] color: green"


FIRST_WRITE_OF_THE_RUN = 3
"""After the driver and the session."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_is_stopped_after_any_write_says_what_it_would_have_said(kind: str, tmp_path: Path) -> None:
    wanted = [
        "Stored memory: color",
        "Forgot memory: color",
        "No memory found with key: color",
        "No memories found.",
    ]
    for after in range(1, 40):
        folder = tmp_path / str(after)
        store = SqliteStore(folder / "retinue.db", threaded=False)
        key_value = LateShelf()
        with_memory = memory_tools(open_memory(kind, folder), key_value, FixedClock())
        harness = key_value.harness = Harness(store=store, dialects=(), tools=with_memory)
        harness.script(
            "main",
            calls("memory_store", key="color", content="blue"),
            calls("memory_forget", key="color"),
            calls("memory_forget", key="color"),
            calls("memory_recall", query="color"),
            says("done"),
        )
        crashed = True
        with suppress(StoreError):
            await harness.open(killed_after=after)
            await harness.run("go")
            crashed = False
        if crashed:
            await harness.restart()
            runs = await harness.retinue.list()
            await harness.retinue.wait(*(run.run_id for run in runs))
        heard = harness.results("main") if await harness.retinue.list() else None
        with suppress(StoreError):
            await harness.close()
        store.close()
        # Stopped before it was accepted, there is no run.
        assert heard == (None if after < FIRST_WRITE_OF_THE_RUN else wanted), after
        if not crashed:
            assert after > FIRST_WRITE_OF_THE_RUN + 10
            return
    raise AssertionError("the story has no end")


async def test_a_child_remembers_under_the_name_it_works_for(store: Store, tmp_path: Path) -> None:
    key_value = LateShelf()
    memory = open_memory("sqlite", tmp_path)
    harness = key_value.harness = Harness(
        store=store, dialects=(), tools=memory_tools(memory, key_value, FixedClock()), session="session"
    )
    async with harness:
        harness.script("helper", calls("memory_store", key="k", content="x"), calls("memory_recall"), says("done"))
        run_spec = RunSpec(
            agent="helper",
            provider="custom",
            offered=("memory_store", "memory_recall"),
            identity="lead",
            memory_from=("writer",),
        )
        memory.store(Note(agent="writer", key="style", content="plain", at=1.0))
        started = await harness.retinue.supervisor.spawn(
            SpawnRequest(agent="helper", run_spec=run_spec, task="go"), session_id="session"
        )
        await harness.retinue.wait(started.run_id)

        assert harness.results("helper") == [
            "Stored memory: k",
            "Found 2 memories:\n- [core] k: x\n- [core] style: plain",
        ]
        row = memory.find("lead", "k")
        assert row is not None
        assert (row.run_id, row.session_id) == (started.run_id, "session")


async def test_read_only_mode_lets_a_run_recall_and_nothing_else(store: Store, tmp_path: Path) -> None:
    key_value = LateShelf()
    memory = open_memory("sqlite", tmp_path)
    memory.store(Note(agent="main", key="style", content="plain", at=1.0))
    harness = key_value.harness = Harness(store=store, dialects=(), tools=memory_tools(memory, key_value, FixedClock()))
    async with harness:
        harness.script(
            "main",
            calls("memory_store", key="k", content="x"),
            calls("memory_forget", key="style"),
            calls("memory_recall"),
            says("done"),
        )
        await harness.run("go", policy=Policy(autonomy=Autonomy.READONLY))

        assert harness.results("main") == [
            "Security policy: read-only mode, cannot perform 'memory_store'",
            "Security policy: read-only mode, cannot perform 'memory_forget'",
            "Found 1 memories:\n- [core] style: plain",
        ]


def test_the_tools_are_described_for_models() -> None:
    names = [tool.spec.name for tool in memory_tools(open_memory("sqlite", None), LateShelf(), FixedClock())]
    assert names == ["memory_store", "memory_recall", "memory_forget"]
