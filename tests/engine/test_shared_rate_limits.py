"""Rate limits of processes on one store: a refusal of one narrows all, and each has a share of the permits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.commands import Change, Decision
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Publish, Request, Store
from retinue.core.usage import Usage
from retinue.engine.rate_limiter import (
    FORGET_SECONDS,
    SHARE_SECONDS,
    SPACE,
    LimiterReport,
    LimiterShare,
    SharedLimit,
    Throttling,
    synced,
)
from retinue.store.memory import MemoryStore
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.virtual_time import VirtualClock

OpenStore: TypeAlias = Callable[[], Store]

LATENCY = 0.3


class Vendor:
    """A model that throttles: at most `permits` requests at a time, of all processes together."""

    name = "vendor"

    def __init__(self, permits: int, *, retry_after: float | None = None) -> None:
        self.permits = permits
        self.retry_after = retry_after
        self.sent: list[tuple[float, str]] = []
        """When each request was sent, and the first word of its task."""
        self.refused: list[float] = []
        self.refusal = asyncio.Event()
        self.in_flight = 0
        self.most: list[tuple[float, int]] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """A reply after a moment, or a refusal."""
        now = asyncio.get_running_loop().time()
        self.sent.append((now, request.messages[-1].text.split()[0]))
        self.in_flight += 1
        self.most.append((now, self.in_flight))
        try:
            if self.in_flight > self.permits:
                self.refused.append(now)
                self.refusal.set()
                raise ProviderError("slow down", fault="rate_limited", status=429, retry_after=self.retry_after)
            await asyncio.sleep(LATENCY)
        finally:
            self.in_flight -= 1
        return Reply(message=AssistantMessage(text="done"), usage=Usage(1, 1))


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store again and again, on the loop whose time the test holds."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "retinue.db", threaded=False)
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresStore(url, threaded=False)


@asynccontextmanager
async def process(open_store: OpenStore, vendor: Vendor) -> AsyncGenerator[Retinue]:
    """A retinue as another process would open it."""
    store = open_store()
    try:
        async with open_retinue(provider=vendor, store=store, clock=VirtualClock(), dialects=()) as r:
            yield r
    finally:
        store.close()


async def run_many(r: Retinue, name: str, count: int) -> list[str]:
    runs = [await r.spawn(f"{name} {n}") for n in range(count)]
    return [(await run.wait()).result for run in runs]


async def test_a_refusal_of_one_process_pauses_the_other_within_a_second(open_store: OpenStore) -> None:
    vendor = Vendor(permits=1, retry_after=20.0)
    async with process(open_store, vendor) as first, process(open_store, vendor) as second:
        quick = asyncio.create_task(run_many(second, "quick", 1))
        await quick
        vendor.permits = 0
        throttled = asyncio.create_task(run_many(first, "throttled", 1))
        await vendor.refusal.wait()
        vendor.permits = 100
        (refused_at,) = vendor.refused
        await asyncio.sleep(1.0)
        paused = asyncio.create_task(run_many(second, "paused", 3))
        assert await paused == ["completed"] * 3
        assert await throttled == ["completed"]

    starts = [at for at, name in vendor.sent if name == "paused"]
    assert len(starts) == 3
    assert min(starts) >= refused_at + 20.0 - 0.1


async def test_processes_share_the_permits_of_a_model_that_throttles(open_store: OpenStore) -> None:
    vendor = Vendor(permits=8)
    async with process(open_store, vendor) as first, process(open_store, vendor) as second:
        results = await asyncio.gather(run_many(first, "a", 60), run_many(second, "b", 60))

    assert results == [["completed"] * 60, ["completed"] * 60]
    first_refusal = vendor.refused[0]
    later = [most for at, most in vendor.most if at > first_refusal + 1.0]
    # The sum is narrowed to what the model takes, and probes for more by one permit in a round of replies.
    assert max(later) <= 2 * vendor.permits
    assert len([at for at in vendor.refused if at > first_refusal + 1.0]) < len(later) / 4
    turns = [name for at, name in vendor.sent if at > first_refusal + 1.0]
    assert min(turns[: len(turns) // 2].count(name) for name in "ab") > len(turns) / 8


async def test_a_process_that_ends_gives_its_share_back(open_store: OpenStore) -> None:
    vendor = Vendor(permits=4)
    async with process(open_store, vendor) as first:
        await run_many(first, "a", 20)
        store = open_store()
        async with process(open_store, vendor) as second:
            await asyncio.gather(run_many(first, "a", 12), run_many(second, "b", 12))
        bodies = store.key_value(SPACE)
        store.close()

    (body,) = bodies.values()
    assert len(msgspec.json.decode(body, type=SharedLimit).shares) <= 1


async def test_no_row_is_written_while_the_model_does_not_throttle(open_store: OpenStore) -> None:
    vendor = Vendor(permits=100)
    async with process(open_store, vendor) as first, process(open_store, vendor) as second:
        await asyncio.gather(run_many(first, "a", 10), run_many(second, "b", 10))
    store = open_store()
    assert store.key_value(SPACE) == {}
    store.close()


async def test_a_store_of_one_process_has_no_rows_of_rate_limits() -> None:
    class Counting(MemoryStore):
        reads = 0

        def key_value(self, space: str) -> Mapping[str, bytes]:
            self.reads += space == SPACE
            return super().key_value(space)

    store = Counting()
    vendor = Vendor(permits=2)
    async with open_retinue(provider=vendor, store=store, clock=VirtualClock(), dialects=()) as r:
        assert await run_many(r, "a", 8) == ["completed"] * 8
    assert vendor.refused
    assert store.reads == 0
    assert store.key_value(SPACE) == {}


# ---- rows -----------------------------------------------------------------------------------------------------------


def report(
    driver: str = "d",
    at: float = 0.0,
    *,
    seen: int = 0,
    wanted: int = 0,
    successes: int = 0,
    throttling: Throttling | None = None,
) -> LimiterReport:
    return LimiterReport(driver, at, 1000, seen, wanted, 0, successes, throttling)


def test_the_first_refusal_halves_what_its_process_had_in_flight() -> None:
    row = synced(None, report(wanted=10, throttling=Throttling(10, 2.0)))
    assert row == SharedLimit(5.0, 0.0, 2.0, 1, {"d": LimiterShare(5, 10, 0, 0.0)})


def test_a_process_that_learns_of_the_refusal_adds_half_of_its_own() -> None:
    first = synced(None, report("a", wanted=10, throttling=Throttling(10, 2.0)))
    second = synced(first, report("b", 0.4, wanted=6))
    assert second is not None
    assert (second.limit, second.narrowings) == (8.0, 1)
    assert second.shares["b"].permits == 3  # five are still with the other


def test_refusals_of_one_moment_in_two_processes_narrow_once() -> None:
    first = synced(None, report("a", wanted=10, throttling=Throttling(10, 2.0)))
    second = synced(first, report("b", 0.1, wanted=10, throttling=Throttling(10, 4.0)))
    assert second is not None
    assert (second.limit, second.narrowings) == (10.0, 1)
    assert second.pause_left(0.1) == pytest.approx(4.0)


def test_a_refusal_after_the_pause_halves_the_limit_of_all() -> None:
    row = SharedLimit(10.0, 0.0, 2.0, 1, {"b": LimiterShare(5, 5, 5, 3.0)})
    narrowed = synced(row, report("a", 3.0, seen=1, wanted=5, throttling=Throttling(3, 1.0)))
    assert narrowed is not None
    assert (narrowed.limit, narrowed.narrowings, narrowed.narrowed_at) == (4.0, 2, 3.0)


def test_a_share_that_is_not_renewed_is_free_again() -> None:
    row = SharedLimit(10.0, 0.0, 0.0, 1, {"dead": LimiterShare(9, 9, 9, 0.0)})
    before = synced(row, report("d", SHARE_SECONDS - 1, seen=1, wanted=10))
    after = synced(row, report("d", SHARE_SECONDS + 1, seen=1, wanted=10))
    assert before is not None
    assert after is not None
    assert (before.shares["d"].permits, after.shares["d"].permits) == (1, 10)
    assert set(after.shares) == {"d"}


def test_a_limit_that_is_not_used_up_is_removed_after_a_while() -> None:
    row = SharedLimit(10.0, 0.0, 0.0)
    assert synced(row, report("d", FORGET_SECONDS - 1, seen=1, wanted=1)) is not None
    assert synced(row, report("d", FORGET_SECONDS + 1, seen=1, wanted=1)) is None


async def test_a_row_that_cannot_be_read_is_replaced(open_store: OpenStore) -> None:
    store = open_store()
    unreadable = Decision(b"", puts={"vendor/vendor": b'{"limit": "many"}', "vendor/": b"\0"})
    store.commit(None, [Change(space=SPACE, decide=lambda _: unreadable)])
    vendor = Vendor(permits=2)
    async with process(open_store, vendor) as r:
        assert await run_many(r, "a", 8) == ["completed"] * 8
    rows = store.key_value(SPACE)
    store.close()
    assert any(b"narrowings" in body for body in rows.values())


@given(
    limit=st.floats(1, 50),
    wants=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 40), st.integers(0, 5)), max_size=40),
)
def test_shares_never_exceed_the_limit_but_for_one_permit_each(limit: float, wants: list[tuple[str, int, int]]) -> None:
    row: SharedLimit | None = SharedLimit(limit, 0.0, 0.0)
    at = 0.0
    for driver, wanted, successes in wants:
        at += 0.1
        row = synced(row, report(driver, at, seen=1, wanted=wanted, successes=successes))
        assert row is not None
        given = [share.permits for share in row.shares.values()]
        assert sum(given) <= max(int(row.limit), 0) + sum(permits == 1 for permits in given)
        assert all(given)


def test_all_shares_are_given_when_every_process_has_renewed() -> None:
    row: SharedLimit | None = SharedLimit(12.0, 0.0, 0.0)
    for at in range(4):
        for driver in "abc":
            row = synced(row, report(driver, float(at), seen=1, wanted=100 if driver == "a" else 2))
    assert row is not None
    assert {name: share.permits for name, share in row.shares.items()} == {"a": 8, "b": 2, "c": 2}
