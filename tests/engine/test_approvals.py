"""Approvals: a call is parked, others continue, and the answer may come from any process at any time."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

import retinue
from retinue.core.errors import RunIsOver, UnknownName
from retinue.core.events import CallParked, CallReturned, MailTaken
from retinue.core.messages import Message, ToolMessage
from retinue.core.policy import Policy
from retinue.core.run import Approval, Limits
from retinue.engine.tool_calls import INTERRUPTED, NO_APPROVER
from retinue.providers.scripted import Script, ScriptedProvider, calls, says, together
from retinue.testing.harness import Harness
from tests.engine.memory_stores import SharedMemory
from tests.engine.script_lines import recording

NEEDED = "this medium-risk call needs approval (require_approval_for_medium_risk)"


def now() -> float:
    return asyncio.get_running_loop().time()


@retinue.tool(kind="pure")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"slept {seconds:g}, woke at {now():g}"


@retinue.tool(risk="medium")
async def write(text: str = "x") -> str:
    """Write something down."""
    return f"wrote {text} at {now():g}"


@retinue.tool(kind="pure", risk="medium")
async def slow_write() -> str:
    """Write slowly."""
    await asyncio.sleep(100)
    return f"wrote at {now():g}"


async def questions(r: Harness, *, after: float = 1.0) -> list[Approval]:
    """The open approvals a little later."""
    await asyncio.sleep(after)
    return await r.retinue.approvals()


def may_write(run_id: str, arguments: str) -> Approval:
    """The approval request of a root run's first call of `write`."""
    reason = f"Security policy: 'write': {NEEDED}"
    return Approval(run_id=run_id, path="root", turn=1, index=0, tool="write", arguments=arguments, reason=reason)


# ---- without an approver --------------------------------------------------------------------------------------------


async def test_without_an_approver_a_gated_call_is_refused_and_names_the_setting() -> None:
    heard: list[Sequence[Message]] = []
    async with Harness(dialects=(), tools=[write]) as r:
        r.script("main", calls("write"), recording(heard, says("done")))
        outcome = await r.run("go")

        assert heard[0][-1] == ToolMessage(
            "write",
            f"Security policy: 'write': {NEEDED} "
            "There is no approver here: open retinue with approvals='wait' or a callback, or use --approvals on the "
            "command line.",
            failed=True,
        )
        assert outcome.text == "done"


async def test_no_approval_is_requested_if_the_policy_allows_the_call() -> None:
    async with Harness(dialects=(), tools=[write], policy=Policy(auto_approve=("write",))) as r:
        r.script("main", calls("write"), says("done"))
        await r.run("go")

        assert r.results("main") == ["wrote x at 0"]


# ---- a callback -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [True, False])
async def test_a_callback_is_asked_once_and_its_answer_decides(allow: bool) -> None:
    asked: list[Approval] = []

    async def person(question: Approval) -> bool:
        asked.append(question)
        await asyncio.sleep(60)
        return allow

    async with Harness(dialects=(), tools=[write], approvals=person) as r:
        r.script("main", calls("write", text="y"), says("done"))
        outcome = await r.run("go")
        run_id = r.run_of("main")

        assert outcome.text == "done"
        assert asked == [may_write(run_id, '{"text":"y"}')]
        assert asked[0].id == f"{run_id}/1/0"
        assert r.results("main") == ["wrote y at 60" if allow else "A person refused this call"]
        assert [type(event) for event in r.events(run_id) if not isinstance(event, CallReturned)][2:4] == [
            CallParked,
            MailTaken,
        ]


async def test_a_callback_that_returns_a_string_does_not_approve() -> None:
    def person(question: Approval) -> bool:
        return cast("bool", "no")

    async with Harness(dialects=(), tools=[write], approvals=person) as r:
        r.script("main", calls("write", text="y"), says("done"))
        await r.run("go")

        assert r.results("main") == [
            "A person refused this call: the approval callback failed: it answered 'no'; expected True or False"
        ]


async def test_a_callback_that_raises_denies_with_a_reason() -> None:
    async def absent(question: Approval) -> bool:
        raise ConnectionError("the pager is off")

    async with Harness(dialects=(), tools=[write], approvals=absent) as r:
        r.script("main", calls("write"), says("done"))
        await r.run("go")

        assert r.results("main") == ["A person refused this call: the approval callback failed: the pager is off"]


async def test_approval_is_requested_while_other_calls_are_running() -> None:
    asked_at: list[float] = []

    async def person(question: Approval) -> bool:
        asked_at.append(now())
        await asyncio.sleep(10)
        return True

    async with Harness(dialects=(), tools=[write, nap], approvals=person) as r:
        r.script(
            "main",
            together(
                calls("nap", seconds=100), calls("write"), calls("write", text="y"), *[calls("nap", seconds=5)] * 2
            ),
            says("done"),
        )
        await r.run("go")

        assert asked_at == [0, 0]
        assert r.results("main") == [
            *["slept 5, woke at 5"] * 2,
            "wrote x at 10",
            "wrote y at 10",
            "slept 100, woke at 100",
        ]


async def test_an_answer_after_a_cancel_changes_nothing() -> None:
    answered = asyncio.Event()

    async def person(question: Approval) -> bool:
        await answered.wait()
        return True

    async with Harness(dialects=(), tools=[write], approvals=person) as r:
        r.script("main", calls("write"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await handle.cancel()
        outcome = await handle.wait()
        before = r.events(handle.run_id)
        answered.set()
        await asyncio.sleep(1)

        assert (outcome.result, outcome.unstopped) == ("cancelled", ())
        assert r.events(handle.run_id) == before


# ---- answers through the inbox --------------------------------------------------------------------------------------


async def test_a_parked_call_waits_and_the_view_shows_it() -> None:
    async with Harness(dialects=(), tools=[write], approvals="wait") as r:
        r.script("main", calls("write"), says("done"))
        handle = await r.retinue.spawn("go")
        (question,) = await questions(r)
        view = await handle.look()
        await r.retinue.approve(question)
        outcome = await handle.wait()

        assert (view.state, view.waiting_for) == ("waiting", "approval")
        assert outcome.text == "done"
        assert await r.retinue.approvals() == []


@pytest.mark.parametrize(("note", "text"), [("", ""), ("not on a Friday", ": not on a Friday")])
async def test_the_model_reads_a_denial_with_its_note(note: str, text: str) -> None:
    async with Harness(dialects=(), tools=[write], approvals="wait") as r:
        r.script("main", calls("write"), says("done"))
        handle = await r.retinue.spawn("go")
        (question,) = await questions(r)
        await r.retinue.deny(question.id, note=note)
        await handle.wait()

        assert r.results("main") == [f"A person refused this call{text}"]


async def test_another_process_can_answer_an_approval() -> None:
    store = SharedMemory()
    provider = ScriptedProvider(Script().play("main", calls("write"), says("done")))
    first = Harness(store=store, dialects=(), tools=[write], provider=provider, approvals="wait")
    async with first, Harness(store=store, dialects=()) as second:
        handle = await first.retinue.spawn("go")
        (question,) = await questions(second)
        view = await second.retinue.handle(handle.run_id).look()
        await second.retinue.approve(question.id)
        outcome = await handle.wait()

        assert (view.state, view.waiting_for) == ("waiting", "approval")
        assert question == may_write(handle.run_id, "{}")
        assert outcome.text == "done"


async def test_parked_calls_do_not_block_other_calls_and_start_when_approved() -> None:
    async with Harness(dialects=(), tools=[write, nap, slow_write], approvals="wait") as r:
        r.script("main", together(calls("write"), calls("slow_write"), calls("nap", seconds=50)), says("done"))
        handle = await r.retinue.spawn("go")
        first, second = await questions(r)
        await asyncio.sleep(9 - now())
        await r.retinue.approve(first)
        await asyncio.sleep(5)
        running = (await handle.look()).state
        await r.retinue.approve(second)
        await handle.wait()

        assert (first.tool, second.tool) == ("write", "slow_write")
        assert running == "working"
        assert r.results("main") == ["wrote x at 9", "slept 50, woke at 50", "wrote at 114"]


async def test_a_second_answer_changes_nothing() -> None:
    async with Harness(dialects=(), tools=[write, nap], approvals="wait") as r:
        r.script("main", together(calls("write"), calls("nap", seconds=50)), says("done"))
        handle = await r.retinue.spawn("go")
        (question,) = await questions(r)
        await r.retinue.deny(question, note="no")
        await r.retinue.approve(question)
        await asyncio.sleep(1)
        await r.retinue.approve(question)
        await handle.wait()

        assert r.results("main") == ["A person refused this call: no", "slept 50, woke at 50"]
        assert len([event for event in r.events(handle.run_id) if isinstance(event, MailTaken)]) == 1
        with pytest.raises(RunIsOver):
            await r.retinue.approve(question)
        with pytest.raises(UnknownName) as unknown:
            await r.retinue.approve(question.id)
        assert (unknown.value.kind, unknown.value.name) == ("approval", question.id)


async def test_an_answer_for_an_earlier_turn_is_taken_and_ignored() -> None:
    async with Harness(dialects=(), tools=[write], approvals="wait") as r:
        r.script("main", calls("write"), calls("write", text="y"), says("done"))
        handle = await r.retinue.spawn("go")
        (first,) = await questions(r)
        wrong = Approval(run_id=first.run_id, path="root", turn=1, index=7, tool="write", arguments="{}")
        await r.retinue.approve(wrong)
        await asyncio.sleep(1)
        still = await r.retinue.approvals()
        await asyncio.sleep(2 - now())
        await r.retinue.approve(first)
        await asyncio.sleep(1)
        (second,) = await questions(r)
        await r.retinue.deny(second)
        await handle.wait()

        assert still == [first]
        assert r.results("main") == ["wrote x at 2", "A person refused this call"]


# ---- restarts -------------------------------------------------------------------------------------------------------


async def test_a_parked_call_survives_a_kill_and_can_be_answered_before_adoption() -> None:
    async with Harness(dialects=(), tools=[write, nap], approvals="wait") as r:
        r.script("main", together(calls("write"), calls("nap", seconds=1), calls("write", text="y")), says("done"))
        handle = await r.retinue.spawn("go")
        first, second = await questions(r)
        await asyncio.sleep(2 - now())
        await r.kill()
        later = await r.open()

        assert await later.approvals() == [first, second]
        assert (await later.handle(handle.run_id).look()).state == "interrupted"

        await later.approve(first.id)
        resumed = await later.resume(handle.run_id)
        await asyncio.sleep(1)
        assert await later.approvals() == [second]
        await later.deny(second)
        assert (await resumed.wait()).text == "done"
        # The process that could have started the call was gone when the answer came: the call is made now, and once.
        assert r.results("main") == ["slept 1, woke at 1", "wrote x at 2", "A person refused this call"]


async def test_an_open_approval_is_denied_after_adoption_without_an_approver() -> None:
    provider = ScriptedProvider(Script().play("main", calls("write"), says("done")))
    async with Harness(dialects=(), tools=[write], provider=provider, approvals="wait") as r:
        handle = await r.retinue.spawn("go")
        (question,) = await questions(r)
        await r.kill()
        later = Harness(store=r.store, dialects=(), tools=[write], provider=provider)
        async with later:
            outcome = await (await later.retinue.resume(handle.run_id)).wait()

        assert outcome.text == "done"
        assert r.results("main") == [f"{question.reason} {NO_APPROVER}"]


async def test_an_approved_call_interrupted_by_a_kill_is_not_repeated() -> None:
    made: list[float] = []

    @retinue.tool(risk="medium")
    async def launch() -> str:
        """Launch, and never come back."""
        made.append(now())
        await asyncio.sleep(1000)
        return "launched"

    async with Harness(dialects=(), tools=[launch], approvals="wait") as r:
        r.script("main", calls("launch"), says("done"))
        handle = await r.retinue.spawn("go")
        (question,) = await questions(r)
        await r.retinue.approve(question)
        await asyncio.sleep(1)
        await r.restart()
        await r.retinue.handle(handle.run_id).wait()

        assert len(made) == 1
        assert r.results("main") == [INTERRUPTED]


async def test_the_callback_of_the_next_process_gets_unanswered_approvals() -> None:
    asked: list[str] = []

    async def person(question: Approval) -> bool:
        asked.append(question.id)
        if len(asked) == 1:
            await asyncio.sleep(1000)
        return True

    async with Harness(dialects=(), tools=[write], approvals=person) as r:
        r.script("main", calls("write"), says("done"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.text == "done"
        assert asked == [f"{handle.run_id}/1/0"] * 2
        assert r.results("main") == ["wrote x at 1"]


# ---- time -----------------------------------------------------------------------------------------------------------


async def test_waiting_for_an_approval_does_not_count_towards_the_deadline() -> None:
    provider = ScriptedProvider(Script(), latency=4.0)
    async with Harness(dialects=(), tools=[write, nap], approvals="wait", provider=provider) as r:
        r.script("main", together(calls("write"), calls("write", text="y")), calls("nap", seconds=100))
        handle = await r.retinue.spawn("go", limits=Limits(timeout=10))
        first, second = await questions(r, after=5)
        await asyncio.sleep(3600)
        await r.retinue.approve(first)
        await asyncio.sleep(3600)
        assert (await handle.look()).state == "waiting"
        answered = now()
        await r.retinue.approve(second)
        outcome = await handle.wait()

        assert (outcome.result, outcome.reason) == ("timed_out", "deadline")
        assert outcome.error == "the run did not finish within 10 s"
        assert now() - answered == pytest.approx(6)  # 4 of its 10 seconds had passed before the request


async def test_a_run_may_finish_in_time_after_a_slow_approval() -> None:
    async with Harness(dialects=(), tools=[write], approvals="wait") as r:
        r.script("main", calls("write"), says("done"))
        handle = await r.retinue.spawn("go", limits=Limits(timeout=10))
        (question,) = await questions(r)
        await asyncio.sleep(86400)
        await r.retinue.approve(question)

        assert (await handle.wait()).text == "done"
