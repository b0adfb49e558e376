"""`run_agent`: its answer, the child's context, agent, tools, model, limits and form of answer."""

import json
from typing import Any

import pytest

from retinue.core.agent import Agent
from retinue.core.errors import ProviderError
from retinue.core.messages import ToolMessage
from retinue.core.policy import Policy
from retinue.core.run import Limits
from retinue.dialects.native import NativeSettings
from retinue.dialects.native.answers import CHILD, CUT_OFF, EMPTY
from retinue.providers.scripted import Line, ScriptedReply, calls, fails, says, together
from tests.dialects.native.harness import DIG, TASK, NativeHarness, about, run_agent, slowly, started, waits

CHILD_PATH = "root/general/1"


def usage(turns: int = 1, **more: object) -> dict[str, object]:
    return {"turns": turns, "input": 0, "output": 0, "cost": 0.0} | more


def plain(text: str) -> ScriptedReply:
    """A reply without usage, so that answers can be compared as a whole."""
    return says(text, usage=None)


async def answers_of(*calls: ScriptedReply, tasks: dict[str, list[Line]] | None = None, **options: Any) -> Any:
    """What the root reads of these calls, made in one reply."""
    harness = NativeHarness(together(*calls), says("Done."), tasks=tasks, **options)
    await harness.play()
    return harness.answers()


@pytest.mark.promise("NA-ANSWER", "NA-BARE")
async def test_a_call_returns_the_answer_of_the_child() -> None:
    assert await answers_of(run_agent(), tasks={DIG: [plain("The pool.")]}, tools=()) == [
        {"run": CHILD_PATH, "state": "completed", "answer": "The pool.", "usage": usage(cost=None)}
    ]


@pytest.mark.promise("NA-TOGETHER")
async def test_calls_of_one_reply_work_side_by_side() -> None:
    harness = NativeHarness(
        together(run_agent("a"), run_agent("b")), says("Done."), tasks={"a": [slowly("A.")], "b": [slowly("B.")]}
    )
    await harness.play()

    first, second = harness.row("root/general/1"), harness.row("root/general/2")
    assert [answer["answer"] for answer in harness.answers()] == ["A.", "B."]
    assert second.accepted_at - first.accepted_at < 1.0 < (first.progress.ended_at or 0.0) - first.accepted_at


@pytest.mark.promise("NA-FRESH")
async def test_a_child_sees_its_task_alone() -> None:
    harness = NativeHarness(run_agent(), says("Done."), tasks={DIG: [says("The pool.")]})
    await harness.play()

    (request,) = harness.requests(CHILD_PATH)
    assert (request.system, harness.last(CHILD_PATH)) == (CHILD, [f"user: {DIG}"])


@pytest.mark.promise("NA-CONTEXT-ALL", "NA-CACHE")
async def test_a_fork_has_the_conversation_and_the_same_prefix() -> None:
    harness = NativeHarness(
        calls("grep", pattern="pool"),
        run_agent(context="all", background=True, instructions="Be brief."),
        waits(),
        says("Done."),
        tasks={"Be brief.": [says("Ten.")]},
    )
    await harness.play()

    root, child = harness.requests("root")[1], harness.requests(CHILD_PATH)[0]
    assert (child.system, child.tools, child.model) == (root.system, root.tools, root.model)
    *before, call, _, task = harness.last(CHILD_PATH)
    assert before == [f"user: {TASK}", "assistant: grep", "tool: 2 lines about pool"]
    assert (call, task) == ("assistant: run_agent", f"user: Be brief.\n\n{DIG}")
    assert json.loads(harness.returned()[1].text)["cache"] == "shared"


@pytest.mark.promise("NA-CONTEXT-N", "NA-CACHE")
@pytest.mark.parametrize("context", [1, "1"])
async def test_a_child_can_have_the_last_turns(context: object) -> None:
    harness = NativeHarness(
        calls("grep", pattern="pool"),
        calls("fetch", url="a"),
        run_agent(context=context, background=True),
        waits(),
        says("Done."),
        tasks={DIG: [says("Ten.")]},
    )
    await harness.play()

    heading, *turn, call, _, task = harness.last(CHILD_PATH)
    assert (heading, turn) == ("user: [earlier parts of this conversation were left out]", [])
    assert (call, task) == ("assistant: run_agent", f"user: {DIG}")
    assert json.loads(harness.returned()[2].text)["cache"] == "lost: a part of the conversation"


@pytest.mark.promise("NA-CACHE")
@pytest.mark.parametrize(
    ("more", "cache"),
    [
        ({"tools": ["grep"]}, "lost: other tools"),
        ({"model": "other"}, "lost: another model"),
        ({"agent": "reader"}, "lost: another system prompt"),
        ({"output_schema": {"type": "object"}}, "lost: another form of answer"),
    ],
)
async def test_a_fork_that_differs_says_why_the_cache_is_lost(more: dict[str, Any], cache: str) -> None:
    harness = NativeHarness(
        run_agent(context="all", background=True, **more),
        waits(),
        says("Done."),
        tasks={} if "agent" in more else {DIG: [says("{}")]},
        agents=[Agent(name="reader", system_prompt="You read.")],
    )
    if "agent" in more:
        harness.script("reader", says("{}"))
    await harness.play()

    assert harness.answers()[0]["cache"] == cache


READER = Agent(
    name="log_reader",
    description="Reads logs",
    system_prompt="You read.",
    tools=("grep", "secret"),
    model="small",
    max_turns=3,
    policy=Policy(max_actions_per_hour=7),
)


@pytest.mark.promise("NA-AGENT", "NA-INSTRUCTIONS", "NA-TOOLS")
async def test_a_configured_agent_works_as_it_is_configured() -> None:
    harness = NativeHarness(run_agent(agent="log_reader", instructions="Be brief."), says("Done."), agents=[READER])
    harness.script("log_reader", says("Ten."))
    await harness.play()

    (request,) = harness.requests("root/log_reader/1")
    assert (request.system, request.tools, request.model) == (f"You read.\n\nBe brief.\n\n{CHILD}", ("grep",), "small")
    accepted = harness.accepted(harness.row("root/log_reader/1"))
    assert (accepted.limits.max_turns, accepted.policy.max_actions_per_hour) == (3, 7)


@pytest.mark.promise("NA-AGENT-LENIENT")
@pytest.mark.parametrize("name", ["log_reader", "Log-Reader", " LOG READER "])
async def test_the_name_of_an_agent_is_matched_leniently(name: str) -> None:
    harness = NativeHarness(run_agent(agent=name), says("Done."), agents=[READER])
    harness.script("log_reader", says("Ten."))
    await harness.play()

    assert [answer["run"] for answer in harness.answers()] == ["root/log_reader/1"]


@pytest.mark.promise("NA-AGENT-UNKNOWN")
async def test_an_unknown_agent_is_refused_with_the_known_ones() -> None:
    assert await answers_of(run_agent(agent="writer"), agents=[READER]) == [
        {"error": "Unknown agent 'writer'. Valid: log_reader; or leave agent out."}
    ]
    assert await answers_of(run_agent(agent="writer")) == [
        {"error": "Unknown agent 'writer'. Valid: (none); or leave agent out."}
    ]


@pytest.mark.promise("NA-TOOLS")
@pytest.mark.parametrize(("tools", "offered"), [(None, ("fetch", "grep")), (["grep", "grep"], ("grep",)), ([], ())])
async def test_a_child_has_the_tools_of_its_caller_or_those_of_the_call(tools: object, offered: tuple[str]) -> None:
    harness = NativeHarness(run_agent(tools=tools), says("Done."), tasks={DIG: [says("Ten.")]})
    await harness.play()

    assert harness.requests(CHILD_PATH)[0].tools == offered


@pytest.mark.promise("NA-TOOLS-UNKNOWN")
@pytest.mark.parametrize("agent", [None, "log_reader"])
async def test_a_tool_that_the_child_cannot_have_is_refused(agent: str | None) -> None:
    valid = "grep" if agent else "fetch, grep"
    for name in ("shell", "run_agent", "secret"):
        assert await answers_of(run_agent(agent=agent, tools=["grep", name]), agents=[READER]) == [
            {"error": f"Unknown tool {name!r}. Valid: {valid}."}
        ]


@pytest.mark.promise("NA-MODEL")
async def test_the_model_of_the_call_goes_before_others() -> None:
    harness = NativeHarness(
        together(run_agent(model="large"), run_agent("b", agent="log_reader", model="large"), run_agent("c")),
        says("Done."),
        tasks={DIG: [says("A.")], "c": [says("C.")]},
        agents=[READER],
        model="own",
    )
    harness.script("log_reader", says("B."))
    await harness.play()

    models = {request.path: request.model for request in harness.recorder.requests}
    assert models == {
        "root": "own",
        "root/general/1": "large",
        "root/log_reader/2": "large",
        "root/general/3": "own",
    }


@pytest.mark.promise("NA-MODEL")
async def test_a_model_without_a_key_is_refused_with_the_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ((answer,)) = await answers_of(run_agent(model="openai-chat:gpt-5"))

    assert answer["error"].startswith("The model 'openai-chat:gpt-5' cannot be used: Missing API key")
    assert "anthropic" in answer["error"].partition("Providers: ")[2]


@pytest.mark.promise("NA-LIMITS")
@pytest.mark.parametrize(
    ("agent", "asked", "turns", "cost"),
    [
        (None, {}, 50, None),
        (None, {"max_turns": 4, "max_cost": 0.25}, 4, 250_000_000),
        (None, {"max_turns": 10**30, "max_cost": 1e300}, 2**31 - 1, 2**62),
        ("capped", {"max_turns": 9, "max_cost": 5}, 3, 1_000_000_000),
        ("capped", {"max_turns": 2, "max_cost": 0.5}, 2, 500_000_000),
    ],
)
async def test_the_narrower_limit_holds(agent: str | None, asked: Any, turns: int, cost: int | None) -> None:
    capped = Agent(name="capped", max_turns=3, limits=Limits(max_cost=1))
    harness = NativeHarness(run_agent(agent=agent, **asked), says("Done."), agents=[capped])
    harness.script(agent or "general", plain("Ten."))
    await harness.play()

    accepted = harness.accepted(harness.rows()[1])
    assert (accepted.limits.max_turns, accepted.limits.max_nanodollars) == (turns, cost)


@pytest.mark.promise("NA-WRAP-UP")
async def test_a_child_at_its_turn_limit_is_asked_for_an_answer() -> None:
    ((answer,)) = await answers_of(run_agent(max_turns=2), tasks={DIG: [calls("grep"), says("So far: ten.")]})

    assert (answer["state"], answer["answer"]) == ("exhausted", "So far: ten.")
    assert "2" in answer["error"]


@pytest.mark.promise("NA-SCHEMA")
async def test_an_answer_has_the_form_that_the_call_demands() -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    good, bad = await answers_of(
        run_agent("good", output_schema=schema),
        run_agent("bad", output_schema=schema),
        tasks={"good": [says("{}"), says('{"size":10}')], "bad": [says("ten"), says("ten"), says("ten")]},
    )

    assert (good["state"], json.loads(good["answer"])) == ("completed", {"size": 10})
    assert (bad["state"], bad["answer"]) == ("failed", "ten")


@pytest.mark.promise("NA-SCHEMA-BAD")
async def test_a_value_that_is_no_schema_is_refused() -> None:
    ((answer,)) = await answers_of(run_agent(output_schema={"type": 7}))

    assert answer["error"].startswith("the schema is not a usable JSON Schema: ")


@pytest.mark.promise("NA-BACKGROUND", "NA-PARENT-WAITS")
async def test_a_background_run_reports_by_itself() -> None:
    harness = NativeHarness(
        run_agent(background=True), says("Meanwhile."), says("Ten it is."), tasks={DIG: [slowly("Ten.")]}
    )
    outcome = await harness.play()

    (answer,) = harness.answers()
    assert answer == {
        "run": CHILD_PATH,
        "state": "working",
        "next": "You get a message when the run ends. Go on with other work, or call wait_agents with "
        f'{{"runs":["{CHILD_PATH}"]}}.',
    }
    assert harness.last()[-1] == f"user: [agent run {CHILD_PATH} completed] Task: {DIG}\nTen."
    assert outcome.text == "Ten it is."


@pytest.mark.promise("NA-READ-ONCE")
async def test_an_end_that_was_read_is_not_announced() -> None:
    harness = NativeHarness(run_agent(background=True), waits(), says("Done."), tasks={DIG: [slowly("Ten.")]})
    await harness.play()

    assert [line.partition(":")[0] for line in harness.last()] == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.promise("NA-KEY")
async def test_the_same_key_gives_the_same_run() -> None:
    harness = NativeHarness(
        run_agent(key="dig"), run_agent("something else", key="dig"), says("Done."), tasks={DIG: [says("Ten.")]}
    )
    await harness.play()

    first, second = harness.answers()
    assert first == second
    assert [row.path for row in harness.rows()] == ["root", CHILD_PATH]


@pytest.mark.promise("NA-KEY")
async def test_keys_of_other_trees_are_others() -> None:
    harness = NativeHarness(run_agent(key="dig"), says("Done."), tasks={DIG: [says("Ten.")]})
    async with harness:
        await harness.run(TASK)
        await harness.run(TASK)

    assert [row.path for row in harness.rows()] == ["root", CHILD_PATH] * 2


@pytest.mark.promise("NA-WAIT-SECONDS")
async def test_a_call_that_waited_long_enough_names_the_next_call() -> None:
    harness = NativeHarness(run_agent(wait_seconds=2), waits(), says("Done."), tasks={DIG: [slowly("Ten.", 30.0)]})
    await harness.play()

    first, second = harness.answers()
    assert (first["state"], "wait_agents" in first["next"]) == ("working", True)
    assert second == {"runs": [{"run": CHILD_PATH, "state": "completed", "answer": "Ten."}], "timed_out": False}


@pytest.mark.promise("NA-EMPTY", "NA-PARTIAL")
@pytest.mark.parametrize(
    ("lines", "state", "answer", "error"),
    [
        ([says("")], "failed", None, EMPTY),
        ([says("Ten and", stop="length")], "completed", "Ten and", CUT_OFF),
        ([says("I will not.", stop="refusal")], "failed", "I will not.", "the model declined to answer"),
        ([fails(ProviderError("no such model", fault="bad_request"))], "failed", None, "no such model"),
    ],
)
async def test_a_run_without_a_whole_answer_says_why(
    lines: list[Line], state: str, answer: str | None, error: str
) -> None:
    ((read,)) = await answers_of(run_agent(), tasks={DIG: lines})

    assert (read["state"], read.get("answer")) == (state, answer)
    assert error in read["error"]


@pytest.mark.promise("NA-DEPTH")
async def test_a_child_cannot_delegate_by_default() -> None:
    harness = NativeHarness(run_agent(context="all"), says("Done."), tasks={DIG: [run_agent("below"), says("Alone.")]})
    await harness.play()

    assert harness.answers(CHILD_PATH) == [{"error": "cannot delegate at depth 1; this tree stops at 1"}]


@pytest.mark.promise("NA-DEPTH")
async def test_max_depth_lets_children_delegate() -> None:
    harness = NativeHarness(
        run_agent(),
        says("Done."),
        tasks={DIG: [run_agent("below"), says("Both.")], "below": [says("Below.")]},
        settings=NativeSettings(max_depth=2),
    )
    await harness.play()

    native = ("run_agent", "wait_agents", "message_agent", "agent_result", "cancel_agent", "list_agents")
    assert harness.requests(CHILD_PATH)[0].tools == ("fetch", "grep", *native)
    assert harness.requests(f"{CHILD_PATH}/general/1")[0].tools == ("fetch", "grep")
    assert [answer["answer"] for answer in harness.answers(CHILD_PATH)] == ["Below."]


@pytest.mark.promise("NA-MAX-RUNNING")
async def test_too_many_running_agents_are_refused() -> None:
    harness = NativeHarness(
        together(*(run_agent(f"task {number}", background=True) for number in range(3))),
        waits(),
        run_agent("task 3"),
        says("Done."),
        tasks={f"task {number}": [slowly("Ten.")] for number in (0, 1, 3)},
        settings=NativeSettings(max_running=2),
    )
    await harness.play()

    assert harness.answers()[2] == {
        "error": "2 agents are running, which is the limit: wait for one with wait_agents first."
    }
    assert harness.answers()[4]["state"] == "completed"


async def test_a_run_that_waits_for_a_person_says_so() -> None:
    harness = NativeHarness(
        run_agent(wait_seconds=5),
        about("cancel_agent"),
        says("Done."),
        tasks={DIG: [calls("grep")]},
        policy=Policy(always_ask=("grep",)),
        approvals="wait",
    )
    await harness.play()

    assert harness.answers()[0] == {
        "run": CHILD_PATH,
        "state": "waiting",
        "next": "The run waits for a person: `retinue approvals` lists its question. "
        f'Then call wait_agents with {{"runs":["{CHILD_PATH}"]}}.',
    }


def test_ids_are_read_from_answers() -> None:
    assert started([ToolMessage(call_id="", name="run_agent", text='{"run":"r1","state":"working"}')]) == ["r1"]
