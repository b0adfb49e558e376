"""The memory tools: exact texts, ownership of memories, and crashes."""

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
from retinue.tools.memory.backend import MemorySearch, Note
from retinue.tools.memory.memory_tools import MAX_CONTENT_CHARACTERS, memory_tools, open_memory, tools
from tests.tools.tool_calls import FixedClock, HarnessKeyValue, NoSandbox, StoreKeyValue, context, error_of, result_of

KINDS = ("sqlite", "markdown")


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    store = SqliteStore(tmp_path / "retinue.db", threaded=False)
    yield store
    store.close()


class MemoryTools:
    """The three tools, their backend and their clock."""

    def __init__(self, kind: str, home: Path | None, store: Store) -> None:
        self.clock = FixedClock()
        self.memory = open_memory(kind, home)
        self.store, self.recall, self.forget = memory_tools(self.memory, StoreKeyValue(store), self.clock)


@pytest.fixture(params=KINDS)
def setup(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> MemoryTools:
    return MemoryTools(request.param, tmp_path, store)


async def test_any_number_of_accents_is_read_in_a_moment(setup: MemoryTools) -> None:
    """Python sorts them in a time that grows with the square of their number: half an hour for this query."""
    accents = "\u0301\u0316\u0f73"
    content = f"deploys nai{accents * (MAX_CONTENT_CHARACTERS // 4)}vely"
    await result_of(setup.store, context("r/1/0"), key="color", content=content)

    assert (await result_of(setup.recall, query=f"e{accents * 300_000} naively")).startswith("Found 1 memories")


# ---- word for word ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-MEMORY-TEXTS")
async def test_memories_are_stored_recalled_and_forgotten(setup: MemoryTools) -> None:
    assert await result_of(setup.recall) == "No memories found."
    assert (
        await result_of(setup.store, context("r/1/0"), key="color", content="The user likes blue")
        == "Stored memory: color"
    )
    setup.clock.at += 1
    more = {"key": "team", "content": "Four people\nin Riga", "category": "daily"}
    assert await result_of(setup.store, context("r/2/0"), **more) == "Stored memory: team"

    assert await result_of(setup.recall) == (
        "Found 2 memories:\n- [daily] team: Four people\nin Riga\n- [core] color: The user likes blue"
    )
    assert (
        await result_of(setup.recall, query="blue") == "Found 1 memories:\n- [core] color: The user likes blue [100%]"
    )
    assert (
        await result_of(setup.recall, query="green blue")
        == "Found 1 memories:\n- [core] color: The user likes blue [50%]"
    )
    assert await result_of(setup.recall, query="yellow") == "No memories found."

    assert await result_of(setup.forget, context("r/3/0"), key="color") == "Forgot memory: color"
    assert await result_of(setup.forget, context("r/4/0"), key="color") == "No memory found with key: color"
    assert await result_of(setup.recall, query="blue") == "No memories found."


async def test_a_memory_records_the_run_that_wrote_it(setup: MemoryTools) -> None:
    await result_of(setup.store, context("r/1/0"), key="color", content="blue")
    writer = context("r/2/0", run_id="r2", session_id="s2", agent="child", identity="researcher")
    setup.clock.at += 10

    await result_of(setup.store, writer, key="color", content="red", category="mood")

    row = setup.memory.find("researcher", "color")
    assert row is not None
    assert (row.agent, row.run_id, row.session_id) == ("researcher", "r2", "s2")
    assert (row.category, row.created_at, row.updated_at) == ("mood", setup.clock.at - 10, setup.clock.at)


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
async def test_invalid_memories_are_errors(setup: MemoryTools, arguments: dict[str, Any], text: str) -> None:
    assert await error_of(setup.store, **arguments) == text
    assert setup.memory.agents() == []


async def test_forgetting_needs_a_key(setup: MemoryTools) -> None:
    assert await error_of(setup.forget) == "Missing 'key' parameter"


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
async def test_invalid_search_arguments_are_errors(setup: MemoryTools, arguments: dict[str, Any], text: str) -> None:
    assert await error_of(setup.recall, **arguments) == text


@pytest.mark.parametrize("arguments", ["[]", "{", "nonsense", '"key"', "\ud800"])
async def test_arguments_that_are_no_object_are_errors(setup: MemoryTools, arguments: str) -> None:
    for tool in (setup.store, setup.recall, setup.forget):
        with pytest.raises(Exception, match=r"^Arguments must be one JSON object"):
            await tool.call(arguments, context())


async def test_recall_filters_by_time_and_limit_in_every_mode(setup: MemoryTools) -> None:
    for number in range(7):
        await result_of(setup.store, context(f"r/{number}/0"), key=f"k{number}", content="word")
        setup.clock.at += 3600

    def listed(*numbers: int) -> str:
        return "\n".join([f"Found {len(numbers)} memories:", *(f"- [core] k{number}: word" for number in numbers)])

    assert await result_of(setup.recall) == listed(6, 5, 4, 3, 2)
    assert await result_of(setup.recall, limit=2.0) == listed(6, 5)
    assert await result_of(setup.recall, limit=1000) == listed(6, 5, 4, 3, 2, 1, 0)
    assert await result_of(setup.recall, since="2026-01-01T05:00:00Z") == listed(6, 5)
    assert await result_of(setup.recall, since="2026-01-01t02:00:00+01:00", until="2026-01-01T03:00:00.5Z") == listed(
        3, 2, 1
    )
    for mode in ("bm25", "embedding", "hybrid"):
        assert "k6: word [100%]" in await result_of(setup.recall, query="word", limit=1, search_mode=mode)


# ---- whose -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-MEMORY-SCOPE")
async def test_granted_memories_of_other_agents_are_read_only(setup: MemoryTools) -> None:
    setup.memory.store(Note(agent="writer", key="style", content="plain", at=1.0))
    setup.memory.store(Note(agent="secret", key="pin", content="1234", at=2.0))
    reader = context("r/1/0", memory_from=("writer",))

    assert await result_of(setup.recall, context()) == "No memories found."
    assert await result_of(setup.recall, context(), query="style pin") == "No memories found."
    assert await result_of(setup.recall, reader) == "Found 1 memories:\n- [core] style: plain"
    assert await result_of(setup.forget, reader, key="style") == "No memory found with key: style"
    mine = {"key": "style", "content": "mine", "agent": "writer", "identity": "writer"}
    assert await result_of(setup.store, context("r/2/0", memory_from=("writer",)), **mine) == "Stored memory: style"
    rows = setup.memory.recall(MemorySearch(agents=("writer", "researcher", "secret"), limit=9))
    assert {(each.memory.agent, each.memory.content) for each in rows} == {
        ("writer", "plain"),
        ("researcher", "mine"),
        ("secret", "1234"),
    }


@pytest.mark.promise("ZC-MEMORY-GATED")
async def test_storing_and_forgetting_are_actions_and_recalling_is_none(setup: MemoryTools) -> None:
    weights = [tool.prepare("{}").risk for tool in (setup.store, setup.recall, setup.forget)]

    assert weights == [CallRisk(Risk.LOW, acts=True), CallRisk(Risk.LOW), CallRisk(Risk.LOW, acts=True)]
    assert [tool.kind for tool in (setup.store, setup.recall, setup.forget)] == ["keyed", "pure", "keyed"]


async def test_without_a_home_memories_live_as_long_as_the_tools(store: Store, tmp_path: Path) -> None:
    for kind in KINDS:
        dependencies = ToolDependencies(
            sandbox=NoSandbox(), key_value=StoreKeyValue(store), clock=FixedClock(), memory=kind
        )
        remember, recall, _ = tools(dependencies)
        await result_of(remember, context(f"{kind}/1/0"), key="k", content="x")

        assert await result_of(recall) == "Found 1 memories:\n- [core] k: x"
        assert await result_of(tools(dependencies)[1]) == "No memories found."
    assert {name for name in os.listdir(tmp_path) if not name.startswith("retinue.db")} == set()


async def test_memories_are_stored_in_the_home_folder(store: Store, tmp_path: Path) -> None:
    for kind, place in (("sqlite", "memory.db"), ("markdown", "memory/researcher.md")):
        dependencies = ToolDependencies(
            sandbox=NoSandbox(), key_value=StoreKeyValue(store), clock=FixedClock(), memory=kind, home=tmp_path
        )
        await result_of(tools(dependencies)[0], context(f"{kind}/1/0"), key="k", content="x")

        assert (tmp_path / place).is_file()
        assert await result_of(tools(dependencies)[1]) == "Found 1 memories:\n- [core] k: x"


async def test_each_agent_keeps_its_memory_where_its_settings_say(store: Store, tmp_path: Path) -> None:
    kept = {"writer": "markdown", "ghost": "none"}
    dependencies = ToolDependencies(
        sandbox=NoSandbox(), key_value=StoreKeyValue(store), clock=FixedClock(), home=tmp_path, memories=kept
    )
    remember, recall, forget = tools(dependencies)
    for agent in ("researcher", "writer"):
        await result_of(remember, context(f"{agent}/1/0", identity=agent), key="style", content=f"of the {agent}")
    ghost = context("ghost/1/0", identity="ghost")
    assert await error_of(remember, ghost, key="k", content="x") == (
        "The agent 'ghost' keeps no memory (memory backend = none)."
    )

    assert open_memory("markdown", tmp_path).agents() == ["writer"]
    assert open_memory("sqlite", tmp_path).agents() == ["researcher"]
    both = context("r/2/0", identity="ghost", memory_from=("writer", "researcher"))
    assert await result_of(recall, both) == (
        "Found 2 memories:\n- [core] style: of the researcher\n- [core] style: of the writer"
    )
    assert await result_of(forget, context("w/3/0", identity="writer"), key="style") == "Forgot memory: style"
    assert await result_of(recall, both) == "Found 1 memories:\n- [core] style: of the researcher"


async def test_the_error_of_an_unavailable_memory_has_no_path(store: Store, tmp_path: Path) -> None:
    (tmp_path / "memory.db").write_bytes(b"not a database at all " * 100)
    setup = MemoryTools("sqlite", tmp_path, store)

    assert await error_of(setup.recall) == (
        "The memory cannot be reached: file is not a database: see retinue store check, and retinue store repair"
    )


# ---- crashes ---------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_entered_again_answers_the_same_and_leaves_later_writes_alone(setup: MemoryTools) -> None:
    first, again = context("r/1/0"), context("r/1/0", again=True)
    await result_of(setup.store, first, key="color", content="blue")
    setup.clock.at += 5
    await result_of(setup.store, context("other/1/0"), key="color", content="red")
    setup.clock.at += 5

    assert await result_of(setup.store, again, key="color", content="blue") == "Stored memory: color"
    assert await result_of(setup.recall) == "Found 1 memories:\n- [core] color: red"

    gone, gone_again = context("r/2/0"), context("r/2/0", again=True)
    assert await result_of(setup.forget, gone, key="color") == "Forgot memory: color"
    assert await result_of(setup.forget, gone_again, key="color") == "Forgot memory: color"
    setup.clock.at += 5
    await result_of(setup.store, context("other/2/0"), key="color", content="green")
    assert await result_of(setup.forget, gone_again, key="color") == "Forgot memory: color"
    assert await result_of(setup.recall) == "Found 1 memories:\n- [core] color: green"


FIRST_WRITE_OF_THE_RUN = 5
"""After the writes of the driver, its sign of life and the session."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crash_after_any_write_does_not_change_the_results(kind: str, tmp_path: Path) -> None:
    wanted = [
        "Stored memory: color",
        "Forgot memory: color",
        "No memory found with key: color",
        "No memories found.",
    ]
    for after in range(1, 40):
        folder = tmp_path / str(after)
        store = SqliteStore(folder / "retinue.db", threaded=False)
        key_value = HarnessKeyValue()
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
    key_value = HarnessKeyValue()
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
    key_value = HarnessKeyValue()
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
    names = [tool.spec.name for tool in memory_tools(open_memory("sqlite", None), HarnessKeyValue(), FixedClock())]
    assert names == ["memory_store", "memory_recall", "memory_forget"]
