"""Holds: a budget can be used up, and its end says what was left, needed and held."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import retinue
from retinue.core.errors import StoreError
from retinue.core.events import ReplyReceived, RunEnded
from retinue.core.model_options import ModelOptions
from retinue.core.ports import Request
from retinue.core.run import LimitMet, Limits, Outcome
from retinue.core.usage import Usage
from retinue.providers.scripted import (
    Line,
    LineFunction,
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    says,
    together,
)
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness

PRICES = {"m": (300, 1500)}
PAGE = "x" * 16_000
"""A tool result of about 4,000 tokens."""


@retinue.tool(kind="pure")
def read(page: int = 1) -> str:
    """Read a page."""
    return PAGE if page == 1 else "That was all."


def reads(page: int, usage: Usage) -> ScriptedReply:
    return together(calls("read", page=page), says("", usage=usage))


class CachingProvider(ScriptedProvider):
    """A provider whose cached input costs a tenth."""

    def cached_price(self, model: str) -> int | None:
        return None if self.price(model) is None else PRICES[model][0] // 10


class Recorder:
    """Lines of a run, with the greatest output that each request allowed."""

    def __init__(self, *lines: Line) -> None:
        self.allowed: list[int | None] = []
        self.lines: Sequence[LineFunction] = [self._recording(line) for line in lines]

    def _recording(self, line: Line) -> LineFunction:
        def play(request: Request) -> Line:
            self.allowed.append(request.max_output)
            return line

        return play


def harness(recorder: Recorder, *, provider: type[ScriptedProvider] = ScriptedProvider) -> Harness:
    model = provider(Script().play("main", *recorder.lines), prices=PRICES)
    return Harness(dialects=(), tools=[read], provider=model, model="m")


async def test_a_run_goes_on_while_the_provider_counts_less_than_the_estimate() -> None:
    """By its characters the third request has more than 4,000 tokens and 3,800 are left; by the provider's count of the
    second request it has less than half of that.
    """
    recorder = Recorder(
        reads(1, Usage(500, 100)), reads(2, Usage(1_500, 100)), says("Done.", usage=Usage(1_650, 2_150))
    )
    async with harness(recorder) as r:
        outcome = await r.run("go", limits=Limits(max_tokens=6_000))

    assert (outcome.result, outcome.text, outcome.usage.total) == ("completed", "Done.", 6_000)
    assert recorder.allowed[0] is not None
    assert recorder.allowed[0] < 6_000
    assert recorder.allowed[2] is not None
    assert 2_100 < recorder.allowed[2] < 3_800 - 1_600


WRITTEN = reads(2, Usage(4_000, 100, written=4_000))
"""A first reply that costs $0.00135, to a request of about 4,000 tokens that the vendor has cached."""


async def test_money_is_held_at_the_price_of_cached_input_where_no_more_is_left() -> None:
    """The second request costs $0.0012 at the full price, and $0.001 is left."""
    recorder = Recorder(WRITTEN, says("Done.", usage=Usage(4_100, 10, cached=4_000)))
    async with harness(recorder, provider=CachingProvider) as r:
        outcome = await r.run("x" * 16_000, limits=Limits(max_cost=0.00235))

    assert outcome.result == "completed"
    assert recorder.allowed[1] is not None
    assert 580 < recorder.allowed[1] < 590


async def test_money_is_held_at_the_full_price_where_no_cache_is_known() -> None:
    async with harness(Recorder(WRITTEN)) as r:
        outcome = await r.run("x" * 16_000, limits=Limits(max_cost=0.00235))

    met = LimitMet("max_cost", 1_350_000, 2_350_000, dimension="cost", left=1_000_000, needed=1_236_000)
    assert outcome.limit == met
    assert outcome.error == (
        "the cost limit leaves too little for the next call: used $0.00135, limit $0.00235, left $0.001, "
        "needed at least $0.001236"
    )


async def test_the_end_says_what_was_left_and_what_the_next_call_needed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue.engine")
    recorder = Recorder(reads(1, Usage(4_500, 500)))
    async with harness(recorder) as r:
        outcome = await r.run("go", limits=Limits(max_tokens=9_000))
        ended = r.events(r.run_of("main"))[-1]

    met = LimitMet("max_tokens", 5_000, 9_000, dimension="tokens", left=4_000, needed=4_053)
    assert isinstance(ended, RunEnded)
    assert (outcome.limit, ended.outcome.limit) == (met, met)
    assert outcome.error == (
        "the token budget leaves too little for the next call: used 5000, limit 9000, left 4000, needed at least 4053"
    )
    run_id = r.run_of("main")
    assert f"run_id={run_id} {outcome.error}" in caplog.messages


async def test_an_answer_that_the_budget_cuts_off_says_what_was_held(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "retinue.engine")
    recorder = Recorder(reads(2, Usage(400, 100)), says("y" * 4_000))
    async with harness(recorder) as r:
        outcome = await r.run("go", limits=Limits(max_tokens=1_000))
        run_id = r.run_of("main")
        (reply,) = [event for event in r.events(run_id) if isinstance(event, ReplyReceived) and event.turn == 2]

    held = recorder.allowed[1]
    assert held is not None
    used = outcome.usage.total
    met = LimitMet("max_tokens", used, 1_000, dimension="tokens", held=held)
    assert (outcome.result, outcome.reason, outcome.error) == ("completed", "length", "")
    assert (reply.cut_by, outcome.limit) == (met, met)
    assert (
        f"run_id={run_id} {held} output tokens are held for the next call, "
        "all that the token budget leaves: used 500, limit 1000, left 500"
    ) in caplog.messages
    assert (
        f"run_id={run_id} the reply was cut off after {held} output tokens, "
        f"all that the token budget left (used {used}, limit 1000)"
    ) in caplog.messages


class ThinkingProvider(ScriptedProvider):
    """A provider whose model writes up to 64,000 tokens, with settings of its own."""

    defaults = ModelOptions()

    def longest_reply(self, model: str) -> int | None:
        return 64_000


class EffortfulProvider(ThinkingProvider):
    defaults = ModelOptions(effort="high")


class ConciseProvider(ThinkingProvider):
    defaults = ModelOptions(max_output_tokens=12_000)


@pytest.mark.parametrize(
    ("provider", "options", "held"),
    [
        (ThinkingProvider, ModelOptions(), 8192),
        (ThinkingProvider, ModelOptions(effort="none"), 8192),
        (ThinkingProvider, ModelOptions(effort="medium"), 20_192),
        (ThinkingProvider, ModelOptions(effort="max"), 30_000),  # all that there is
        (ThinkingProvider, ModelOptions(effort="high", max_output_tokens=2_000), 2_000),
        (EffortfulProvider, ModelOptions(), 30_000),
        (EffortfulProvider, ModelOptions(effort="low"), 12_288),
        (ConciseProvider, ModelOptions(), 12_000),
    ],
)
async def test_a_limit_on_cost_holds_the_thinking_and_the_reply_that_are_configured(
    provider: type[ScriptedProvider], options: ModelOptions, held: int
) -> None:
    """A quarter of $0.045 is 7,500 tokens: that much thinking would end before its answer."""
    recorder = Recorder(says("Done."))
    async with harness(recorder, provider=provider) as r:
        outcome = await r.run("go", limits=Limits(max_nanodollars=45_000_000), options=options)

    assert outcome.text == "Done."
    assert recorder.allowed[0] is not None
    assert held - 50 < recorder.allowed[0] <= held


async def test_an_answer_within_its_hold_is_not_cut_off() -> None:
    async with harness(Recorder(says("Done."))) as r:
        outcome = await r.run("go", limits=Limits(max_tokens=1_000))

    assert (outcome.reason, outcome.limit) == ("answered", None)


async def test_a_crash_at_any_write_changes_no_hold(tmp_path: Path) -> None:
    """The holds are computed from what is stored, so the calls after a crash have the same limits as without one."""
    lines = (reads(2, Usage(1_500, 900)), reads(2, Usage(1_600, 900)), reads(2, Usage(1_700, 400)), says("z" * 9_999))
    whole, expected = await _run_with_a_crash(tmp_path / "whole.db", lines, None)
    assert whole.limit is not None
    assert (whole.reason, whole.limit.held) == ("length", expected[4])
    for after in range(20):
        outcome, allowed = await _run_with_a_crash(tmp_path / f"{after}.db", lines, after)
        assert (outcome, allowed) == (whole, expected)


async def _run_with_a_crash(
    file: Path, lines: Sequence[Line], after: int | None
) -> tuple[Outcome, dict[int, int | None]]:
    """The outcome, and the output that each turn was allowed in the last life that asked for it."""
    allowed: dict[int, int | None] = {}

    def recording(line: Line) -> LineFunction:
        def play(request: Request) -> Line:
            assert allowed.setdefault(request.turn, request.max_output) == request.max_output
            return line

        return play

    store = SqliteStore(file, threaded=False)
    model = ScriptedProvider(Script().play("main", *map(recording, lines)), prices=PRICES)
    r = Harness(dialects=(), tools=[read], provider=model, model="m", store=store)
    limits = Limits(max_tokens=9_000)
    outcome: Outcome | None = None
    with suppress(StoreError):
        await r.open(killed_after=after)
        outcome = await r.run("go", key="root", limits=limits)
    if outcome is None:
        await r.kill()
        await r.open(adopt=True)
        outcome = await r.run("go", key="root", limits=limits)
    with suppress(StoreError):
        await r.close()
    store.close()
    return outcome, allowed
