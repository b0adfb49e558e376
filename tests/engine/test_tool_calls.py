"""Tool calls: concurrent with ordered results, timeouts, refusals with a reason, and no repetition after a crash."""

import asyncio
import os
import threading
from collections.abc import Sequence

import pytest

import retinue
from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.errors import StoreCorrupt, ToolError
from retinue.core.events import CallReturned, ReplyReceived
from retinue.core.messages import Message, ToolMessage
from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import CallContext, PreparedCall, Tool, ToolResult
from retinue.core.run import Limits
from retinue.engine.tool_calls import INTERRUPTED
from retinue.providers.scripted import calls, calls_verbatim, hangs, says, together
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SlowMemory
from tests.engine.script_lines import in_sequence, recording

KINDS: tuple[ToolKind, ...] = ("pure", "idempotent", "keyed", "once")


@retinue.tool(kind="pure")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"slept {seconds:g}"


def tool_messages(heard: Sequence[Message]) -> list[ToolMessage]:
    return [message for message in heard if isinstance(message, ToolMessage)]


# ---- concurrency ----------------------------------------------------------------------------------------------------


async def test_calls_of_one_turn_run_concurrently_and_results_keep_their_order() -> None:
    heard: list[Sequence[Message]] = []
    async with Harness(dialects=(), tools=[nap]) as r:
        r.script(
            "main",
            together(calls("nap", seconds=3), calls("nap", seconds=1), calls("nap", seconds=2)),
            recording(heard, says("done")),
        )
        began = asyncio.get_running_loop().time()

        await r.run("go")

        assert asyncio.get_running_loop().time() - began == 3
        assert r.results("main") == ["slept 1", "slept 2", "slept 3"]
        assert [message.text for message in tool_messages(heard[0])] == ["slept 3", "slept 1", "slept 2"]


async def test_a_call_context_has_the_caller_and_its_policy() -> None:
    contexts: list[CallContext] = []

    @retinue.tool(kind="pure")
    async def who(context: CallContext) -> str:
        """The caller."""
        contexts.append(context)
        return "you"

    r, _ = with_delegation(tools=(who,))
    policy = Policy(excluded_tools=("shell",))
    async with r:
        r.script("main", together(calls("nothing"), calls("who")), delegates("dig", space="s"), says("done"))
        r.script("dig", calls("who"), says("done"))

        await r.run("go", policy=policy)
        root, child = r.run_of("main"), r.run_of("dig")

    of_root, of_child = contexts
    assert of_root == CallContext(
        run_id=root,
        session_id="session",
        root_id=root,
        key=f"{root}/1/1",
        turn=1,
        index=1,
        depth=0,
        agent="main",
        path="root",
        handle=None,
        policy=policy,
        offered=("delegate", "who"),
        again=False,
        workspace=os.getcwd(),
        identity="main",
    )
    assert (of_child.run_id, of_child.root_id, of_child.key, of_child.depth, of_child.path, of_child.policy) == (
        child,
        root,
        f"{child}/1/0",
        1,
        "root/dig/1",
        policy,
    )
    assert of_child.handle is not None
    assert (of_child.handle.space, of_child.handle.name) == ("s", "t_01")


async def test_a_plain_function_runs_in_a_thread_and_does_not_block_the_loop() -> None:
    threads: list[threading.Thread] = []
    met = threading.Barrier(2, timeout=10)

    @retinue.tool(kind="pure")
    def meet() -> str:
        """Wait for the other call; alone it would never return."""
        threads.append(threading.current_thread())
        met.wait()
        return "met"

    async with Harness(dialects=(), tools=[meet]) as r:
        r.script("main", together(calls("meet"), calls("meet")), says("done"))

        await r.run("go")

        assert r.results("main") == ["met", "met"]
        assert len(set(threads)) == 2
        assert threading.main_thread() not in threads


# ---- errors ---------------------------------------------------------------------------------------------------------


async def test_the_model_reads_that_a_tool_is_unknown_and_which_exist() -> None:
    async with Harness(dialects=(), tools=[nap]) as r:
        r.script("main", calls("sing"), says("done"))
        outcome = await r.run("go")

        assert r.results("main") == ["There is no tool named 'sing'. Tools you can use: nap."]
        assert outcome.text == "done"


async def test_the_model_of_an_agent_without_tools_reads_that_there_are_none() -> None:
    async with Harness(dialects=(), tools=[nap]) as r:
        r.script("main", calls("nap", seconds=1), says("done"))
        await r.run("go", tools=[])

        assert r.results("main") == ["There is no tool named 'nap'. Tools you can use: none."]


async def test_a_tool_error_is_read_by_the_model() -> None:
    heard: list[Sequence[Message]] = []

    @retinue.tool(kind="pure")
    async def strict() -> str:
        """Refuse."""
        raise ToolError("the file is locked; try another")

    async with Harness(dialects=(), tools=[strict]) as r:
        r.script("main", calls("strict"), recording(heard, says("done")))
        await r.run("go")

    assert tool_messages(heard[0]) == [ToolMessage("strict", "the file is locked; try another", failed=True)]


async def test_the_model_reads_that_its_arguments_are_not_json() -> None:
    async with Harness(dialects=(), tools=[nap]) as r:
        r.script("main", calls_verbatim("nap", "{seconds: 1"), says("done"))
        await r.run("go")

        (result,) = [event for event in r.events(r.run_of("main")) if isinstance(event, CallReturned)]
        assert (result.failed, result.crashed) == (True, False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such pool"), "broken failed: ValueError: no such pool"),
        (TimeoutError("the pool is slow"), "broken failed: TimeoutError: the pool is slow"),
        (KeyError(), "broken failed: KeyError"),
        (SystemExit(7), "broken failed: SystemExit: 7"),
    ],
)
async def test_an_unexpected_exception_is_a_result_and_marked_as_a_crash(error: BaseException, text: str) -> None:
    @retinue.tool(kind="pure")
    async def broken() -> str:
        """Break."""
        raise error

    async with Harness(dialects=(), tools=[broken]) as r:
        r.script("main", calls("broken"), says("done"))
        outcome = await r.run("go")

        (returned,) = [event for event in r.events(r.run_of("main")) if isinstance(event, CallReturned)]
        assert (returned.text, returned.failed, returned.crashed) == (text, True, True)
        assert outcome.text == "done"


async def test_a_tool_whose_awaited_task_is_cancelled_is_not_called_again() -> None:
    times = 0

    @retinue.tool
    async def waits_for_a_task() -> str:
        """Wait for a task that other code cancels."""
        nonlocal times
        times += 1
        other = asyncio.ensure_future(asyncio.sleep(10))
        asyncio.get_running_loop().call_later(1, other.cancel)
        await other
        return "never"

    async with Harness(dialects=(), tools=[waits_for_a_task]) as r:
        r.script("main", calls("waits_for_a_task"), says("done"))
        outcome = await r.run("go")

        assert times == 1
        assert r.results("main") == ["waits_for_a_task failed: CancelledError"]
        assert outcome.text == "done"


async def test_a_run_with_crash_fails_ends_when_a_tool_crashes() -> None:
    @retinue.tool(kind="pure")
    async def broken() -> str:
        """Break."""
        raise ValueError("no such pool")

    r, _ = with_delegation(tools=(broken, nap))
    async with r:
        r.script("main", delegates("dig", lifecycle={"crash_fails": True}), says("done"))
        r.script("dig", together(says("I will try."), calls("broken"), calls("nap", seconds=60)))
        await r.run("go")
        child = await r.retinue.handle(r.run_of("dig")).wait()

        assert r.results("main") == ["failed: I will try."]
        assert (child.result, child.reason, child.error) == ("failed", "tool_error", "no such pool")
        assert asyncio.get_running_loop().time() < 60


class Odd(Tool):
    """A tool that fails to prepare a call."""

    spec = ToolSpec("odd")
    kind: ToolKind = "pure"
    prepared = 0

    def prepare(self, arguments: str) -> PreparedCall:
        self.prepared += 1
        raise ZeroDivisionError("division by zero")

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        raise AssertionError("its risk is not known")


async def test_a_bug_around_a_call_ends_the_run_without_a_retry() -> None:
    odd = Odd()
    async with Harness(dialects=(), tools=[odd]) as r:
        r.script("main", together(says("Let me see."), calls("odd")))
        outcome = await r.run("go")

    assert (outcome.result, outcome.reason, outcome.text) == ("failed", "bug", "Let me see.")
    assert outcome.error == "internal error: ZeroDivisionError('division by zero')"
    assert odd.prepared == 1


async def test_a_store_error_during_a_call_ends_the_run_without_a_retry() -> None:
    times = 0

    @retinue.tool(kind="pure")
    async def reads() -> str:
        """Read something that is broken on disk."""
        nonlocal times
        times += 1
        raise StoreCorrupt("not what was written")

    async with Harness(dialects=(), tools=[reads]) as r:
        r.script("main", calls("reads"))
        outcome = await r.run("go")

        assert times == 1
        assert (outcome.result, outcome.reason) == ("failed", "bug")
        assert "not what was written" in outcome.error


# ---- time -----------------------------------------------------------------------------------------------------------


async def test_a_call_is_stopped_at_the_deadline_of_its_run() -> None:
    async with Harness(dialects=(), tools=[nap]) as r:
        r.script("main", together(calls("nap", seconds=100), calls("nap", seconds=1)), says("done"))
        outcome = await r.run("go", limits=Limits(tool_timeout=30))

        assert r.results("main") == ["slept 1", "nap did not finish within 30 s and was stopped."]
        assert asyncio.get_running_loop().time() == 30
        assert outcome.text == "done"


async def test_a_timeout_of_the_tool_overrides_that_of_the_run() -> None:
    @retinue.tool(kind="pure", timeout=2.5)
    async def hasty() -> str:
        """Take too long."""
        await asyncio.sleep(10)
        return "never"

    async with Harness(dialects=(), tools=[hasty]) as r:
        r.script("main", calls("hasty"), says("done"))
        await r.run("go", limits=Limits(tool_timeout=5))

        assert r.results("main") == ["hasty did not finish within 2.5 s and was stopped."]


@pytest.mark.real_time
async def test_the_model_reads_that_a_timed_out_thread_cannot_be_stopped() -> None:
    go_on = threading.Event()

    @retinue.tool(kind="pure", timeout=0.01)
    def stuck() -> str:
        """Take too long."""
        go_on.wait(10)
        return "never"

    @retinue.tool(kind="pure")
    async def later() -> str:
        """Let the thread go after its call is over."""
        go_on.set()
        return "let go"

    async with Harness(dialects=(), tools=[stuck, later]) as r:
        r.script("main", calls("stuck"), calls("later"), says("done"))
        await r.run("go")

        assert r.results("main") == [
            "stuck did not finish within 0.01 s and cannot be stopped; it may still be at work.",
            "let go",
        ]


async def test_a_call_that_waits_for_other_runs_has_no_deadline_of_its_own() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script("main", delegates("dig"), says("done"))
        r.script("dig", calls("nap", seconds=500), says("42"))
        await r.run("go", limits=Limits(tool_timeout=5))

        assert r.results("main") == ["completed: 42"]


# ---- policy ---------------------------------------------------------------------------------------------------------


async def test_a_call_that_the_policy_refuses_is_not_made_and_the_model_reads_why() -> None:
    made: list[str] = []

    @retinue.tool(risk="high")
    async def erase() -> str:
        """Erase everything."""
        made.append("erased")
        return "erased"

    async with Harness(dialects=(), tools=[erase]) as r:
        r.script("main", calls("erase"), says("done"))
        await r.run("go")

        assert r.results("main") == [
            "Security policy: 'erase': high-risk calls are blocked (block_high_risk_commands); find a safer way"
        ]
        assert made == []


async def test_a_tool_excluded_by_the_policy_is_not_offered_and_unknown() -> None:
    async with Harness(dialects=(), tools=[nap], policy=Policy(excluded_tools=("nap",))) as r:
        r.script("main", calls("nap", seconds=1), says("done"))
        await r.run("go")

        assert r.results("main") == ["There is no tool named 'nap'. Tools you can use: none."]


async def test_the_ceiling_of_a_retinue_cannot_be_widened_by_a_run() -> None:
    async with Harness(dialects=(), tools=[nap], policy=Policy(autonomy=Autonomy.READONLY)) as r:
        with pytest.raises(retinue.PolicyError) as refusal:
            await r.run("go", policy=Policy(autonomy=Autonomy.FULL))

        assert refusal.value.field == "autonomy"
        assert await r.retinue.list() == []


# ---- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_the_tool_kind_decides_about_an_interrupted_call(kind: ToolKind) -> None:
    entered: list[bool] = []

    @retinue.tool(kind=kind)
    async def work(context: CallContext) -> str:
        """Work until the process is killed."""
        entered.append(context.again)
        if len(entered) == 1:
            await asyncio.sleep(1000)
        return "worked"

    async with Harness(dialects=(), tools=[work]) as r:
        r.script("main", calls("work"), says("done"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.text == "done"
        assert entered == ([False] if kind == "once" else [False, True])
        assert r.results("main") == [INTERRUPTED if kind == "once" else "worked"]


async def test_a_call_that_returned_before_the_crash_is_not_repeated() -> None:
    made: list[str] = []

    @retinue.tool
    async def note(word: str) -> str:
        """Note a word."""
        made.append(word)
        if word == "slow" and len(made) < 3:
            await asyncio.sleep(1000)
        return f"noted {word}"

    async with Harness(dialects=(), tools=[note]) as r:
        r.script("main", together(calls("note", word="quick"), calls("note", word="slow")), says("done"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.restart()
        await r.retinue.handle(handle.run_id).wait()

        assert made == ["quick", "slow"]
        assert r.results("main") == ["noted quick", INTERRUPTED]


async def test_an_interrupted_delegation_finds_its_child_and_waits_again() -> None:
    r, delegate = with_delegation()
    async with r:
        r.script("main", delegates("dig"), says("done"))
        r.script("dig", in_sequence(hangs(), says("42")))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.text == "done"
        assert r.results("main") == ["completed: 42"]
        assert [(started.run_id, started.existed) for started in delegate.started] == [
            (r.run_of("dig"), False),
            (r.run_of("dig"), True),
        ]


async def test_a_call_with_effects_waits_until_its_intent_is_on_disk() -> None:
    store = SlowMemory()
    on_disk: dict[str, bool] = {}

    def look(context: CallContext, name: str) -> None:
        stored = [event for _, event in store.events(context.run_id)]
        on_disk[name] = any(isinstance(event, ReplyReceived) for event in stored)

    @retinue.tool(kind="once")
    async def effect(context: CallContext) -> str:
        """Change the world."""
        look(context, "once")
        return ""

    @retinue.tool(kind="pure")
    async def thought(context: CallContext) -> str:
        """Change nothing."""
        look(context, "pure")
        return ""

    async with Harness(dialects=(), tools=[effect, thought], store=store) as r:
        r.script("main", together(calls("thought"), calls("effect")), says("done"))
        await r.run("go")

    assert on_disk == {"pure": False, "once": True}
