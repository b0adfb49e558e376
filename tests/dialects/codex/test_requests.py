"""`codex`: the definitions of the tools, and refusals of arguments."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.agent import Agent
from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned
from retinue.dialects import registry
from retinue.dialects.codex import TOOL_NAMES
from retinue.dialects.codex.requests import specs
from retinue.providers.scripted import calls_verbatim, says, together
from retinue.testing.harness import Harness, dialect_context
from retinue.testing.virtual_time import VirtualTimeLoop
from tests.dialects.codex.harness import DIG, CodexHarness, spawn
from tests.dialects.native.harness import TASK
from tests.dialects.native.test_requests import JSON

NAMES = ("spawn_agent", "send_message", "followup_task", "wait_agent", "interrupt_agent", "list_agents")


@pytest.mark.promise("CX-SIX")
def test_the_dialect_has_six_tools() -> None:
    made = registry.entry("codex").make(dialect_context()).tools()
    assert (tuple(made), TOOL_NAMES) == (NAMES, NAMES)


@pytest.mark.promise("CX-ROLE")
def test_the_schema_lists_the_agent_types() -> None:
    spec = specs([Agent(name="reader", description="Reads")])["spawn_agent"]
    shown = json.loads(spec.parameters)["properties"]["agent_type"]
    assert (shown["enum"], "\n- reader: Reads" in shown["description"]) == (["default", "reader"], True)


def test_every_parameter_is_explained() -> None:
    properties = [each for spec in specs().values() for each in json.loads(spec.parameters)["properties"].values()]
    assert [each for each in properties if not each.get("description")] == []


NAME = "lowercase letters, digits and underscores, at most 64, and not root"
REFUSED = [
    ("spawn_agent", "{}", "spawn_agent: Object missing required field `task_name`. Valid fields: task_name, message, "),
    ("spawn_agent", '{"task_name": "a", "message": " "}', "Empty message can't be sent to an agent. Valid: a text."),
    ("spawn_agent", '{"task_name": "root", "message": "a"}', f"Invalid task_name 'root'. Valid: {NAME}."),
    ("spawn_agent", '{"task_name": "../x", "message": "a"}', f"Invalid task_name '../x'. Valid: {NAME}."),
    ("spawn_agent", '{"task_name": "", "message": "a"}', f"Invalid task_name ''. Valid: {NAME}."),
    (
        "spawn_agent",
        '{"task_name": "a", "message": "a", "fork_context": true}',
        "spawn_agent: Object contains unknown field `fork_context`. Valid fields: task_name, ",
    ),
    (
        "spawn_agent",
        '{"task_name": "a", "message": "a", "fork_turns": "0"}',
        "Invalid fork_turns '0'. Valid: none, all, or a positive integer such as 3.",
    ),
    (
        "spawn_agent",
        '{"task_name": "a", "message": "a", "agent_type": "writer"}',
        "Unknown agent_type 'writer'. Valid: default.",
    ),
    (
        "spawn_agent",
        '{"task_name": "a", "message": "a", "reasoning_effort": "huge"}',
        "spawn_agent: Invalid enum value 'huge' - at `$.reasoning_effort`. Valid fields: ",
    ),
    ("send_message", '{"target": "a", "message": "b"}', "Agent 'a' was not found. Valid: (none)."),
    ("send_message", '{"target": "/root", "message": "b"}', "Agent '/root' was not found. Valid: (none)."),
    ("followup_task", '{"target": "a", "message": "b"}', "Agent 'a' was not found. Valid: (none)."),
    ("followup_task", '{"target": "/root", "message": "b"}', "Follow-up tasks can't target the root agent."),
    (
        "wait_agent",
        '{"timeout_ms": "long"}',
        "wait_agent: Expected `int | float | null`, got `str` ",
    ),
    ("interrupt_agent", '{"target": "/root"}', "root is not a spawned agent"),
    ("interrupt_agent", '{"target": "/root/x"}', "Agent '/root/x' was not found. Valid: (none)."),
    ("list_agents", '{"all": true}', "list_agents: Object contains unknown field `all`. Valid fields: path_prefix."),
    ("list_agents", "no JSON", "list_agents: JSON is malformed: "),
]


@pytest.mark.promise("CX-REFUSED")
async def test_wrong_arguments_are_refused_with_the_valid_ones() -> None:
    lines = [calls_verbatim(tool, arguments) for tool, arguments, _ in REFUSED]
    harness = CodexHarness(together(*lines), says("Done."))
    await harness.play()

    assert [row.path for row in harness.rows()] == ["root"]
    for (tool, arguments, expected), returned in zip(REFUSED, harness.returned(), strict=True):
        assert (tool, arguments, returned.failed, returned.text[: len(expected)]) == (tool, arguments, True, expected)


OPTIONAL = ("agent_type", "fork_turns", "model", "reasoning_effort", "service_tier")


@pytest.mark.promise("CX-EMPTY")
@pytest.mark.parametrize("empty", [None, "", " "])
async def test_empty_values_count_as_left_out(empty: str | None) -> None:
    harness = CodexHarness(
        spawn(**dict.fromkeys(OPTIONAL, empty)),
        calls_verbatim("list_agents", json.dumps({"path_prefix": empty})),
        calls_verbatim("wait_agent", json.dumps({"timeout_ms": empty})),
        says("Done."),
        tasks={DIG: [says("Ten.")]},
    )
    await harness.play()

    assert [returned.failed for returned in harness.returned()] == [False, False, False]
    listed = json.loads(harness.returned()[1].text)["agents"]
    assert [each["agent_name"] for each in listed] == ["/root", "/root/dig"]


FIELDS = (*("task_name", "message", "agent_type", "fork_turns", "model", "reasoning_effort", "service_tier"),)
MORE = ("target", "timeout_ms", "path_prefix")


@pytest.mark.promise("CX-OBJECT")
@settings(max_examples=60, deadline=None)
@given(
    tool=st.sampled_from(NAMES),
    arguments=st.dictionaries(st.sampled_from((*FIELDS, *MORE)), JSON, max_size=4).map(json.dumps)
    | st.text(max_size=40),
)
def test_any_arguments_get_an_answer_or_a_refusal(tool: str, arguments: str) -> None:
    async def play() -> list[CallReturned]:
        harness = Harness(dialects=("codex",))
        harness.script("main", calls_verbatim(tool, arguments), says("Done."), says("Done."))
        harness.script("default", says("Ten."))
        await harness.open()
        outcome = await harness.run(TASK)
        await harness.close()
        assert outcome.text == "Done."
        (root,) = [row for row in harness.store.runs(RunQuery()) if row.depth == 0]
        return [event for event in harness.events(root.run_id) if isinstance(event, CallReturned)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        (returned,) = runner.run(play())
    assert not returned.crashed
    assert returned.failed or isinstance(json.loads(returned.text), dict)
