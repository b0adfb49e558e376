"""The `subagent` tool in runs: the results of calls, and the requests of subagents."""

import asyncio
import json

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.run import Limits
from retinue.core.state import NOT_MADE
from retinue.core.usage import Usage
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers import scripted
from retinue.providers.scripted import calls_verbatim, fails, hangs, together
from tests.dialects.recording import conversation
from tests.dialects.xzatoma.harness import TASK, XzatomaHarness, answered, refused, says, subagent, uses
from tests.internals import tool_of

DEFAULT_SUMMARY = "Summarize your findings concisely"
FOUND = (says("It is the pool."), says("The pool is too small."))
DEPTH_3 = "Maximum subagent recursion depth (3) exceeded. Current depth: 3. Cannot spawn nested subagent."


@pytest.mark.promise("XZ-TOOL")
async def test_the_tool_is_offered_as_the_document_describes_it() -> None:
    harness = XzatomaHarness()
    async with harness:
        tool = tool_of(harness.retinue, "subagent", "xzatoma")

    assert tool.spec.description == (
        "Delegate a focused task to a recursive agent instance with isolated conversation context. Use this when you "
        "need to explore a sub-problem independently without polluting the main conversation."
    )
    schema = json.loads(tool.spec.parameters)
    described = {name: field.pop("description") for name, field in schema["properties"].items()}
    assert all(described.values())
    assert schema == {
        "type": "object",
        "properties": {
            "label": {"type": "string", "minLength": 1},
            "task_prompt": {"type": "string", "minLength": 1},
            "summary_prompt": {"type": "string", "default": DEFAULT_SUMMARY},
            "allowed_tools": {"type": "array", "items": {"type": "string"}},
            "max_turns": {"type": "integer", "minimum": 1, "maximum": 50},
        },
        "required": ["label", "task_prompt"],
    }


@pytest.mark.promise(
    "XZ-BLOCKS",
    "XZ-FIRST-MESSAGE",
    "XZ-ISOLATED",
    "XZ-SAME-AGENT",
    "XZ-SUMMARY",
    "XZ-SUMMARY-DEFAULT",
    "XZ-SUMMARY-NO-TOOLS",
    "XZ-TOOLS-INHERITED",
    "XZ-TURN",
    "XZ-SHAPE",
    "XZ-STRINGS",
    "XZ-SUCCESS",
    "XZ-RECURSION-DEPTH",
    "XZ-TOKENS",
)
async def test_a_caller_waits_for_its_subagent_and_reads_the_summary() -> None:
    prompt = "  find it\n(naïve — «all» of it)  "
    harness = XzatomaHarness(
        subagent(task_prompt=prompt),
        says("thanks"),
        tasks={
            prompt: [
                scripted.says("It is the pool.", usage=Usage(input=600, output=25)),
                scripted.says("The pool is too small.", usage=Usage(input=620, output=5, cached=600, reasoning=2)),
            ]
        },
    )

    outcome = await harness.play(system="Be brief.")

    assert outcome.text == "thanks"
    answer = answered("The pool is too small.", turns=2, tokens=1250)
    assert harness.texts() == [json.dumps(answer, separators=(",", ":"))]
    task, summary = harness.requests("dig")
    assert task.messages == (UserMessage(text=prompt),)
    assert conversation(summary.messages) == [
        f"user: {prompt}",
        "assistant: It is the pool.",
        f"user: {DEFAULT_SUMMARY}",
    ]
    assert (task.tools, summary.tools) == (("fetch", "grep", "file_ops", "subagent"), ())
    first, last = harness.requests("")
    assert (
        (task.agent, task.model, task.system) == (first.agent, first.model, first.system) == ("main", "m", "Be brief.")
    )
    assert conversation(last.messages) == [f"user: {TASK}", "assistant: subagent", f"tool: {harness.texts()[0]}"]
    ended = harness.outcome("dig")
    assert ended is not None
    assert (ended.result, ended.text, ended.exchanges) == ("completed", "The pool is too small.", 2)


@pytest.mark.promise("XZ-SUMMARY", "XZ-SUMMARY-DEFAULT", "XZ-NULL")
@pytest.mark.parametrize(
    ("asked", "sent"),
    [("List: causes, fixes.\n", "List: causes, fixes.\n"), ("", DEFAULT_SUMMARY), (" \n", DEFAULT_SUMMARY)],
)
async def test_the_summary_prompt_is_the_callers_unless_it_is_blank(asked: str, sent: str) -> None:
    harness = XzatomaHarness(
        subagent(summary_prompt=asked, allowed_tools=None, max_turns=None), says("ok"), tasks={"find it": FOUND}
    )
    await harness.play()

    assert harness.requests("dig")[1].messages[-1] == UserMessage(text=sent)
    assert harness.requests("dig")[0].tools == ("fetch", "grep", "file_ops", "subagent")


@pytest.mark.promise("XZ-SUMMARY-NO-TOOLS")
async def test_calls_in_a_summary_are_not_made() -> None:
    eager = together(says("The pool."), uses("fetch"), subagent("more", "dig on"))
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [uses("grep"), says("It is the pool."), eager]})
    await harness.play()

    assert harness.answers() == [answered("The pool.", turns=3)]
    assert harness.texts("dig") == ["2 lines about "]
    assert list(harness.rows()) == ["dig", ""]


# ---- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-TOOLS-ALLOWED")
@pytest.mark.parametrize(
    ("allowed", "offered"),
    [
        (["grep", "fetch"], ("fetch", "grep", "subagent")),
        (["grep", "grep"], ("grep", "subagent")),
        ([], ("subagent",)),
    ],
)
async def test_allowed_tools_narrow_the_tools_of_a_subagent(allowed: list[str], offered: tuple[str, ...]) -> None:
    harness = XzatomaHarness(subagent(allowed_tools=allowed), says("ok"), tasks={"find it": FOUND})
    await harness.play()

    assert harness.requests("dig")[0].tools == offered


@pytest.mark.promise("XZ-TOOLS-INHERITED", "XZ-UNKNOWN-TOOL")
async def test_a_caller_cannot_pass_on_tools_that_it_is_not_offered() -> None:
    harness = XzatomaHarness(
        subagent(), subagent("more", "look below", allowed_tools=["fetch"]), says("ok"), tasks={"find it": FOUND}
    )
    await harness.play(tools=["grep"])

    assert harness.requests("dig")[0].tools == ("grep", "subagent")
    assert harness.answers()[1] == refused("Unknown tool in allowed_tools: fetch", label="more")


@pytest.mark.promise("XZ-TOOLS-NO-REGAIN", "XZ-NESTING")
async def test_a_grandchild_can_never_regain_a_tool() -> None:
    harness = XzatomaHarness(
        subagent(allowed_tools=["grep"]),
        says("ok"),
        tasks={
            "find it": [
                subagent("regain", "look below", allowed_tools=["grep", "fetch"]),
                subagent("below", "look below"),
                *FOUND,
            ],
            "look below": [uses("fetch", url="x"), uses("grep", pattern="pool"), *FOUND],
        },
    )
    await harness.play()

    assert harness.answers("dig") == [
        refused("Unknown tool in allowed_tools: fetch", label="regain", depth=2),
        answered("The pool is too small.", label="below", depth=2, turns=4),
    ]
    assert harness.requests("below")[0].tools == ("grep", "subagent")
    assert harness.texts("below") == [
        "There is no tool named 'fetch'. Tools you can use: grep, subagent.",
        "2 lines about pool",
    ]


@pytest.mark.promise("XZ-TOOL-CRASH")
async def test_a_tool_that_fails_is_read_by_the_subagents_model() -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [uses("file_ops", path="a.txt"), *FOUND]})
    await harness.play()

    assert harness.texts("dig") == ["file_ops failed: OSError: no such file: a.txt"]
    assert harness.answers() == [answered("The pool is too small.", turns=3)]


# ---- nesting --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-NESTING", "XZ-DEPTH", "XZ-RECURSION-DEPTH", "XZ-ERROR-METADATA", "XZ-LABEL-UNKNOWN")
async def test_subagents_nest_to_depth_3_and_every_call_is_refused_there() -> None:
    harness = XzatomaHarness(
        subagent("one", "level one"),
        says("ok"),
        tasks={
            "level one": [subagent("two", "level two"), *FOUND],
            "level two": [subagent("three", "level three"), *FOUND],
            "level three": [subagent("four", "level four"), calls_verbatim("subagent", "not JSON"), *FOUND],
        },
    )
    await harness.play()

    text = "The pool is too small."
    assert [harness.answers(label)[0] for label in ("", "one", "two")] == [
        answered(text, label="one", depth=1, turns=3),
        answered(text, label="two", depth=2, turns=3),
        # The verbatim call's usage is counted by the script, unlike that of all other lines.
        answered(text, label="three", depth=3, turns=4, tokens=harness.rows()["three"].progress.usage.total),
    ]
    assert harness.answers("three") == [
        refused(DEPTH_3, label="four", depth=4),
        refused(DEPTH_3, label="unknown", depth=4),
    ]
    assert (*harness.requests("three")[0].tools, "parallel_subagent") == harness.requests("")[0].tools
    assert {label: row.depth for label, row in harness.rows().items()} == {"three": 3, "two": 2, "one": 1, "": 0}


@pytest.mark.promise("XZ-TOGETHER")
async def test_several_calls_of_one_reply_work_at_the_same_time() -> None:
    harness = XzatomaHarness(
        together(subagent("a", "find it"), subagent("b", "look below")),
        says("ok"),
        tasks={"find it": FOUND, "look below": [says("Nothing."), says("Nothing there.")]},
        latency=1.0,
    )
    await harness.play()

    assert harness.answers() == [answered("The pool is too small.", label="a"), answered("Nothing there.", label="b")]
    assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)  # two replies of the root, two of both


# ---- turns ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-TURN-LIMIT", "XZ-TURN")
async def test_at_the_turn_limit_calls_are_skipped_and_the_summary_is_requested() -> None:
    lines = [uses("grep", pattern="a"), uses("grep", pattern="b"), says("So far: nothing.")]
    harness = XzatomaHarness(subagent(max_turns=2), says("ok"), tasks={"find it": lines})
    await harness.play()

    assert harness.answers() == [answered("So far: nothing.", turns=3, limited=True)]
    assert harness.texts("dig") == ["2 lines about a"]
    assert conversation(harness.requests("dig")[2].messages)[3:] == [
        "assistant: grep",
        f"tool: {NOT_MADE}",
        f"user: {DEFAULT_SUMMARY}",
    ]
    assert harness.requests("dig")[2].tools == ()


@pytest.mark.promise("XZ-TURN-EXACT")
@pytest.mark.parametrize("turns", [1, 1.0, 50])
async def test_a_task_that_is_answered_with_its_last_turn_is_complete(turns: float) -> None:
    harness = XzatomaHarness(subagent(max_turns=turns), says("ok"), tasks={"find it": FOUND})
    await harness.play()

    assert harness.answers() == [answered("The pool is too small.", turns=2)]


@pytest.mark.promise("XZ-TURN-DEFAULT")
async def test_a_subagent_has_ten_turns_by_default() -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [*[uses("grep")] * 10, says("Enough.")]})
    await harness.play()

    assert harness.answers() == [answered("Enough.", turns=11, limited=True)]


@pytest.mark.promise("XZ-SETTINGS", "XZ-TURN-DEFAULT", "XZ-DEPTH", "XZ-TRUNCATION")
async def test_the_settings_are_honoured() -> None:
    small = XzatomaSettings(max_depth=1, default_max_turns=2, output_max_size=8, persistence_enabled=True)
    lines = [subagent("below", "look below"), uses("grep"), says("Nothing yet.")]
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": lines}, settings=small)
    await harness.play()

    assert harness.answers() == [answered("Nothing [Output truncated]", turns=3, limited=True)]
    refusal = "Maximum subagent recursion depth (1) exceeded. Current depth: 1. Cannot spawn nested subagent."
    assert harness.answers("dig") == [refused(refusal, label="below", depth=2)]


# ---- outputs --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-TRUNCATION", "XZ-TRUNCATION-STORE")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 4096, None),
        ("é" * 2048, None),
        ("x" * 4097, "x" * 4096),
        ("x" + "é" * 2048, "x" + "é" * 2047),
        ("xx" + "€" * 1365, "xx" + "€" * 1364),
        ("xxx" + "🦀" * 1024, "xxx" + "🦀" * 1023),
    ],
)
async def test_an_output_is_cut_between_characters(text: str, kept: str | None) -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [says("Long."), says(text)]})
    await harness.play()

    assert harness.answers() == [answered(text if kept is None else kept + "[Output truncated]")]
    ended = harness.outcome("dig")
    assert ended is not None
    assert ended.text == text


@pytest.mark.promise("XZ-EMPTY", "XZ-TOKENS-NONE")
async def test_an_empty_summary_is_an_empty_output() -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [says(""), says("")]})
    await harness.play()

    assert harness.answers() == [answered("", tokens=0)]


# ---- failures -------------------------------------------------------------------------------------------------------

BAD_MODEL = fails(ProviderError("HTTP 400: bad model", fault="bad_request", partial="I am"))


@pytest.mark.promise("XZ-FAILURE", "XZ-ERROR-METADATA", "XZ-SHAPE")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([BAD_MODEL], "HTTP 400: bad model"),
        ([says("It is the pool."), BAD_MODEL], "HTTP 400: bad model"),
        ([scripted.says("No.", stop="refusal")], "the model declined to answer"),
        ([says("It is the pool."), scripted.says("No.", stop="refusal")], "the model declined to answer"),
    ],
)
async def test_a_failing_subagent_gives_its_reason(lines: list[scripted.Line], reason: str) -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": lines})
    outcome = await harness.play()

    assert outcome.text == "ok"
    assert harness.answers() == [refused(f"Subagent execution failed: {reason}")]
    ended = harness.outcome("dig")
    assert ended is not None
    assert (ended.result, ended.error) == ("failed", reason)


@pytest.mark.promise("XZ-FAILURE")
async def test_a_subagent_that_spends_the_tokens_of_its_tree_has_failed() -> None:
    spending = [scripted.ScriptedReply(calls=uses("grep").calls, usage=Usage(input=900, output=90))]
    harness = XzatomaHarness(subagent(), tasks={"find it": spending})
    outcome = await harness.play(limits=Limits(max_tokens=1000))

    assert outcome.limit is not None
    assert (outcome.limit.used, outcome.limit.limit, outcome.limit.left) == (990, 1000, 10)
    ended = harness.outcome("dig")
    assert ended is not None
    assert ended.limit is not None
    assert harness.answers() == [
        refused(
            "Subagent execution failed: the token budget of a run above this one leaves too little for the next call: "
            f"used 990, limit 1000, left 10, needed at least {ended.limit.needed}"
        )
    ]


@pytest.mark.promise("XZ-FAILURE")
async def test_a_subagent_that_is_cancelled_has_failed() -> None:
    harness = XzatomaHarness(subagent(), says("ok"), tasks={"find it": [hangs("I am")]})
    async with harness:
        root = await harness.retinue.spawn(TASK)
        await asyncio.sleep(1)
        await harness.retinue.cancel(harness.rows()["dig"].run_id, note="enough of it")
        await root.wait()

    assert harness.answers() == [refused("Subagent execution failed: enough of it")]


@pytest.mark.promise("XZ-FAILURE")
async def test_a_subagent_that_cannot_be_started_has_failed() -> None:
    harness = XzatomaHarness(subagent(), says("ok"), latency=1.0)
    async with harness:
        root = await harness.retinue.spawn(TASK)
        await harness.retinue.sessions.archive("session")
        await root.wait()

    assert harness.answers() == [refused("Subagent execution failed: session 'session' is archived")]


@pytest.mark.promise("XZ-PARENT-ENDS")
async def test_a_subagent_is_cancelled_with_its_caller() -> None:
    lines = {"find it": [subagent("below", "look below")], "look below": [hangs("I am")]}
    harness = XzatomaHarness(subagent(), tasks=lines)
    async with harness:
        root = await harness.retinue.spawn(TASK)
        await asyncio.sleep(1)
        cancelled = await root.cancel()
        await root.wait()

    assert len(cancelled) == 3
    ends = {label: row.progress.outcome and row.progress.outcome.result for label, row in harness.rows().items()}
    assert ends == {"": "cancelled", "dig": "cancelled", "below": "cancelled"}
