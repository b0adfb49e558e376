"""Faults of the network between a process and its PostgreSQL server, made by a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing

import psycopg
import pytest
from msgspec.structs import replace

import retinue
from retinue.core.commands import (
    Accepted,
    Adopt,
    CallLimit,
    CancelTree,
    Change,
    Charge,
    CloseSession,
    Decision,
    DeclareDead,
    Forget,
    NamespaceClosed,
    OpenSession,
    Post,
    Prune,
    RunQuery,
    Unread,
    WindowFull,
    Write,
    WriteResult,
)
from retinue.core.errors import StoreUnavailable
from retinue.core.events import ReplyReceived
from retinue.core.inbox import Cancel, TextMessage
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from retinue.store.postgres import PostgresMemoryTables, PostgresStore, database, parse_address
from retinue.testing.contracts.store.fixtures import accept, create_tree, record, register, reply, run_ended
from retinue.tools.memory import Note
from retinue.tools.memory.postgres import PostgresMemory
from tests.postgres import PostgresServer
from tests.tcp_proxy import TcpProxy

PREPARED = (register("alice"), OpenSession(session_id="s", at=1.0))
FULL = Decision(b"", charges=(Charge("w", 1.0, 9.0, calls=1),), within=(CallLimit("w", 0.0, 0),))


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[TcpProxy]:
    with TcpProxy(postgres_server.folder / ".s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
def url(proxy: TcpProxy, postgres_url: str) -> str:
    schema = parse_address(postgres_url).schema
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema={schema}"


def texts(store: PostgresStore, run_id: str) -> list[str]:
    return [event.reply.message.text for _, event in store.events(run_id) if isinstance(event, ReplyReceived)]


def test_a_group_of_writes_is_one_round_trip(proxy: TcpProxy, url: str) -> None:
    names = [f"run {number}" for number in range(30)]
    with closing(PostgresStore(url)) as store:
        store.commit(None, [*PREPARED, *(accept(name) for name in names)])

        def round_trips_of(*writes: Write) -> int:
            before = proxy.round_trips
            assert store.commit("alice", writes) == [None] * len(writes)
            return proxy.round_trips - before

        for seq in (2, 3):  # before and after statements are prepared
            events = [record(name, seq, reply(str(seq))) for name in names]
            with_inbox = [
                replace(each, posts=(("run 0", TextMessage(key=f"{each.run_id}/{seq}", text="t")),)) for each in events
            ]
            assert round_trips_of(*with_inbox) == 1
        assert round_trips_of(*(record(name, 4, reply("4")) for name in names)) == 1
        assert texts(store, "run 29") == ["2", "3", "4"]


def test_commits_and_reads_go_on_after_a_cut(proxy: TcpProxy, url: str) -> None:
    with closing(PostgresStore(url)) as store:
        store.commit(None, PREPARED)
        create_tree(store)
        for number in range(5):
            proxy.cut()
            assert store.commit("alice", [record("root", 2 + number, reply(str(number)))]) == [None]
            proxy.cut()
            assert texts(store, "root") == [str(n) for n in range(number + 1)]


def test_a_cut_at_any_point_of_a_commit_neither_loses_nor_repeats_it(proxy: TcpProxy, url: str, stress: bool) -> None:
    with closing(PostgresStore(url)) as store:
        store.commit(None, PREPARED)
        create_tree(store)
        seq = 2
        for count in range(0, 400, 1 if stress else 23):
            large = "x" * 40_000 if count % 2 else "small"  # in a function of one statement, and in a transaction
            proxy.cut_after(count)
            assert store.commit("alice", [record("root", seq, reply(f"{count} {large}"))]) == [None]
            seq += 1
        found = [text.split()[0] for text in texts(store, "root")]

    assert found == [str(count) for count in range(0, 400, 1 if stress else 23)]
    assert proxy.cuts > 5


@pytest.mark.parametrize(
    ("write", "result"),
    [
        (accept("new"), Accepted("new")),
        (Post(run_id="root", item=TextMessage(key="m", text="hello")), "posted"),
        (Post(run_id="nobody", item=TextMessage(key="m", text="hello")), "unknown"),
        (Change(space="s", decide=lambda before: Decision(b"%d" % len(before), puts={"n": b"1"})), b"0"),
        (Change(space="s", decide=lambda before: Decision(b"%d" % len(before)), key="k"), b"0"),
        (Change(space="s", decide=lambda _: Decision(b""), session_id="archived"), NamespaceClosed("session_archived")),
        (Change(space="s", decide=lambda _: FULL), WindowFull("w")),
        (DeclareDead(driver_id="bob"), True),
        (Adopt(driver_id="alice", run_ids=("two", "left", "one")), ("left",)),
        (Adopt(driver_id="alice", run_ids=("one",)), ()),
        (CancelTree(run_id="one", item=Cancel(key="c"), at=20.0), ("one", "below")),
        (CancelTree(run_id="nobody", item=Cancel(key="c"), at=20.0), None),
        (OpenSession(session_id="new", at=20.0), True),
        (OpenSession(session_id="s", at=20.0), False),
        (CloseSession(session_id="archived", how="delete"), True),
        (CloseSession(session_id="nobody", how="archive"), False),
        (Prune(before=100.0), 1),
        (Forget(root_id="over", dialect="mine"), 0),
        (replace(record("root", 2, reply("a")), known=()), None),
        (replace(record("one", 2, reply("a")), known=()), Unread((TextMessage(key="u", text="unread"),))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_commit_whose_answer_is_cut_off_has_its_result(
    proxy: TcpProxy, url: str, write: Write, result: WriteResult
) -> None:
    with closing(PostgresStore(url)) as store, closing(PostgresStore(url)) as other:
        store.commit(None, (*PREPARED, register("bob")))
        create_tree(store)
        store.commit("bob", [accept("over", driver_id="bob"), record("over", 2, run_ended())])
        store.commit(None, [accept("left", driver_id=None)])
        store.commit(None, [OpenSession(session_id="archived", at=1.0)])
        store.commit(None, [CloseSession(session_id="archived", how="archive")])
        other.commit(None, [Post(run_id="one", item=TextMessage(key="u", text="unread"))])

        proxy.cut_instead_of(b"COMMIT\0")
        assert store.commit("alice", [write]) == [result]

        assert proxy.cuts == 1


@pytest.mark.parametrize(
    ("write", "result", "answer"),
    [
        (record("root", 2, reply("a")), None, b"SELECT 1\0"),
        (Post(run_id="root", item=TextMessage(key="m", text="hello")), "posted", b"COMMIT\0"),
        (Change(space="s", decide=lambda before: Decision(b"%d" % len(before), puts={"n": b"1"})), b"0", b"COMMIT\0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_commit_that_is_made_after_the_question_about_it_is_not_made_again(
    proxy: TcpProxy, url: str, monkeypatch: pytest.MonkeyPatch, write: Write, result: WriteResult, answer: bytes
) -> None:
    ask, asked = PostgresStore._results_if_committed, list[int]()

    def ask_too_early(store: PostgresStore, number: int, writes: Sequence[Write]) -> list[WriteResult] | None:
        asked.append(number)
        return None if len(asked) == 1 else ask(store, number, writes)

    with closing(PostgresStore(url)) as store:
        store.commit(None, PREPARED)
        create_tree(store)
        monkeypatch.setattr(PostgresStore, "_results_if_committed", ask_too_early)

        proxy.cut_instead_of(answer)
        assert store.commit("alice", [write]) == [result]

        assert proxy.cuts == 1
        assert len(asked) == 2
        assert store.commit("alice", [record("root", 3 if result is None else 2, reply("b"))]) == [None]


def test_a_server_that_begins_a_commit_late_does_not_make_it(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, database.connect(parse_address(postgres_url)) as late:
        store.commit(None, PREPARED)
        writer, number = late.execute("SELECT writer_id, n FROM writers").fetchall()[0]
        for old in (number, number - 1):
            with pytest.raises(psycopg.DatabaseError) as refused:
                late.execute("SELECT begin_commit(0, false, %s, %s, NULL, true)", (writer, old))
            assert refused.value.sqlstate == "RT005"


def test_a_network_that_stays_cut_makes_the_store_unavailable_until_it_is_back(
    proxy: TcpProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RECONNECT_SECONDS", 0.3)
    with closing(PostgresStore(url)) as store:
        store.commit(None, PREPARED)
        proxy.refuses = True
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            store.commit("alice", [accept("root")])
        proxy.refuses = False
        store.commit("alice", [accept("other")])

        assert [row.run_id for row in store.runs(RunQuery())] == ["other"]


def test_memories_wait_for_a_network_that_comes_back(proxy: TcpProxy, url: str) -> None:
    memory = PostgresMemory(PostgresMemoryTables(parse_address(url)))
    memory.store(Note(agent="a", key="k", content="one", at=1.0))
    proxy.refuses = True
    before = proxy.connections
    connect = database.connect

    def heal(address: database.PostgresAddress) -> database.Connection:
        proxy.refuses = proxy.connections < before + 3
        return connect(address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connect", heal)
        found = memory.find("a", "k")

    assert found is not None
    assert found.content == "one"
    assert proxy.connections > before + 1


@pytest.mark.real_time
async def test_runs_go_on_while_the_network_is_cut_again_and_again(proxy: TcpProxy, url: str) -> None:
    runs, turns = 8, 4

    @retinue.tool(kind="pure")
    async def step(number: int) -> str:
        """Make a step."""
        if number % 2:
            await asyncio.to_thread(proxy.cut)
        return f"step {number}"

    script = Script()
    for name in range(runs):
        lines = (*(calls("step", number=n) for n in range(turns)), says(f"done {name}"))
        script.play("main", *lines, task=f"Task {name}.")
    model = ScriptedProvider(script)
    async with retinue.open(provider=model, store=url, tools=[step], dialects=(), lease=30.0) as r:
        started = [await r.spawn(f"Task {name}.") for name in range(runs)]
        outcomes = [await run.wait() for run in started]

    assert [outcome.text for outcome in outcomes] == [f"done {name}" for name in range(runs)]
    assert proxy.cuts >= turns // 2
    assert len(model.asked) == runs * (turns + 1)
