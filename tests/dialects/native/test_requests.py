"""The definitions of the six tools, and refusals of arguments."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.core.agent import Agent, ToolSpec
from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned
from retinue.core.policy import Policy
from retinue.dialects import registry
from retinue.dialects.native import TOOL_NAMES
from retinue.dialects.native.requests import specs
from retinue.providers.scripted import Script, ScriptedProvider, calls_verbatim, says, together
from retinue.testing.harness import Harness, dialect_context
from retinue.testing.virtual_time import VirtualTimeLoop
from tests.dialects.native.harness import DIG, TASK, NativeHarness, fetch, grep, run_agent

NAMES = ("run_agent", "wait_agents", "message_agent", "agent_result", "cancel_agent", "list_agents")

MAX_CHARACTERS = 3_900
MAX_TOKENS = 900
CHARACTERS_PER_TOKEN = 4
"""English text and JSON of this kind have 4 to 4.5 characters a token in the vendors' vocabularies."""


def definitions(made: dict[str, ToolSpec]) -> str:
    """The tools as MCP lists them, in compact JSON, with annotations of the usual size."""
    annotations = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    listed = [
        {
            "name": spec.name,
            "description": spec.description,
            "inputSchema": json.loads(spec.parameters),
            "annotations": annotations,
        }
        for spec in made.values()
    ]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def bare(made: dict[str, ToolSpec]) -> str:
    """Name, description and parameters alone: what a model reads."""
    listed = [
        {"name": spec.name, "description": spec.description, "parameters": json.loads(spec.parameters)}
        for spec in made.values()
    ]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.promise("NA-SIX")
def test_the_dialect_has_six_tools() -> None:
    made = registry.entry("native").make(dialect_context()).tools()
    assert (tuple(made), TOOL_NAMES) == (NAMES, NAMES)


@pytest.mark.promise("NA-SIZE")
def test_the_definitions_are_small() -> None:
    assert len(definitions(specs())) <= MAX_CHARACTERS
    assert len(bare(specs())) <= MAX_TOKENS * CHARACTERS_PER_TOKEN


def test_every_parameter_is_explained() -> None:
    properties = [
        (name, about) for spec in specs().values() for name, about in json.loads(spec.parameters)["properties"].items()
    ]
    assert [name for name, about in properties if not about.get("description")] == []


def properties(offered: tuple[ToolSpec, ...]) -> dict[str, Any]:
    (spec,) = [spec for spec in offered if spec.name == "run_agent"]
    return json.loads(spec.parameters)["properties"]


@pytest.mark.promise("NA-NAMES")
async def test_the_schema_lists_agents_and_tools() -> None:
    agents = [Agent(name="reader", tools=("file_read",)), Agent(name="writer")]
    async with retinue.open(
        provider=ScriptedProvider(Script()),
        tools=[fetch, grep],
        agents=agents,
        dialects=["native"],
        policy=Policy(excluded_tools=("grep",)),
        home=retinue.MEMORY,
    ) as r:
        shown = properties(r.offers())

    assert shown["agent"]["enum"] == ["reader", "writer"]
    assert shown["tools"]["items"] == {"type": "string", "enum": ["fetch", "file_read"]}


REFUSED = [
    ("run_agent", "{}", "run_agent: Object missing required field `task`. Valid fields: task, agent, "),
    ("run_agent", "[]", "run_agent: Expected `object`, got `array`. Valid fields: task, "),
    ("run_agent", '{"task": "a", "isolation": "remote"}', "Isolation 'remote' is not available. Valid: worktree; or"),
    ("run_agent", '{"task": " "}', "The task is empty. Valid: a text that says what to do."),
    (
        "run_agent",
        '{"task": "a", "context": "some"}',
        "Invalid context: 'some'. Valid: none, all, or a number of turns.",
    ),
    ("run_agent", '{"task": "a", "context": -1}', "Invalid context: '-1'. Valid: none, all, or a number of turns."),
    ("run_agent", '{"task": "a", "max_turns": -1}', "run_agent: Expected `int` >= 1 - at `$.max_turns`."),
    ("run_agent", '{"task": "a", "max_cost": -1}', "run_agent: Expected `float` > 0.0 - at `$.max_cost`."),
    ("run_agent", '{"task": "a", "wait_seconds": -1}', "run_agent: Expected `float` >= 0.0 - at `$.wait_seconds`."),
    ("wait_agents", '{"runs": []}', "The list of runs is empty. Valid: at least one run id."),
    ("wait_agents", '{"runs": ["a"], "until": "some"}', "Unknown run 'a'. Valid: (none)."),
    ("message_agent", '{"run": "a", "text": ""}', "The text is empty. Valid: a message to the agent."),
    ("message_agent", '{"run": "a"}', "message_agent: Object missing required field `text`. Valid fields: run, text."),
    ("agent_result", '{"run": "a", "page": -1}', "agent_result: Expected `int` >= 1 - at `$.page`."),
    ("cancel_agent", "", "cancel_agent: Object missing required field `run`. Valid fields: run."),
    ("cancel_agent", "no JSON", "cancel_agent: JSON is malformed: "),
    ("list_agents", '{"all": true}', "list_agents: Object contains unknown field `all`."),
]


@pytest.mark.promise("NA-REFUSED", "NA-ONE-OBJECT")
async def test_wrong_arguments_are_refused_with_the_valid_ones() -> None:
    lines = [calls_verbatim(tool, arguments) for tool, arguments, _ in REFUSED]
    harness = NativeHarness(together(*lines), says("Done."))
    await harness.play()

    assert [row.path for row in harness.rows()] == ["root"]
    for (tool, arguments, expected), returned in zip(REFUSED, harness.returned(), strict=True):
        answer = json.loads(returned.text)
        assert (tool, arguments, list(answer), returned.failed) == (tool, arguments, ["error"], True)
        assert answer["error"].startswith(expected), answer


@pytest.mark.promise("NA-REFUSED")
async def test_an_unknown_number_of_runs_is_refused() -> None:
    harness = NativeHarness(
        run_agent(),
        lambda request: calls_verbatim(
            "wait_agents", json.dumps({"runs": [json.loads(request.messages[-1].text)["run"]], "until": "some"})
        ),
        says("Done."),
        tasks={DIG: [says("Ten.")]},
    )
    await harness.play()

    assert harness.answers()[1] == {"error": "Invalid until: 'some'. Valid: all, any, or a number from 1 on."}


@pytest.mark.promise("NA-NULL")
async def test_null_counts_as_left_out() -> None:
    optional = ("agent", "instructions", "context", "tools", "model", "max_turns", "max_cost", "output_schema")
    empty = dict.fromkeys((*optional, "background", "key", "wait_seconds"))
    harness = NativeHarness(run_agent(**empty), says("Done."), tasks={DIG: [says("Ten.")]})
    await harness.play()

    assert [answer["state"] for answer in harness.answers()] == ["completed"]


SUM = "add it up"
EMPTY: dict[str, Any] = {
    **dict.fromkeys(("agent", "instructions", "context", "model", "isolation", "key"), ""),
    "max_turns": 0,
    "max_cost": 0.0,
    "output_schema": {},
    "background": False,
}
"""What small models fill in for what they do not mean to give."""


@pytest.mark.promise("NA-NULL", "NA-KEY")
async def test_empty_values_count_as_left_out() -> None:
    harness = NativeHarness(
        run_agent(**EMPTY),
        run_agent(SUM, **EMPTY),
        lambda request: calls_verbatim(
            "agent_result", json.dumps({"run": json.loads(request.messages[-1].text)["run"], "page": 0})
        ),
        calls_verbatim("run_agent", json.dumps({"task": DIG, **EMPTY, "isolation": " ", "key": "\n"})),
        says("Done."),
        tasks={DIG: [says("Ten.")], SUM: [says("Eleven.")]},
    )
    await harness.play()

    first, second, page, third = harness.answers()
    assert [each["answer"] for each in (first, second, page, third)] == ["Ten.", "Eleven.", "Eleven.", "Ten."]
    assert len({first["run"], second["run"], third["run"]}) == 3


@pytest.mark.promise("NA-NULL")
async def test_a_wait_for_zero_runs_waits_for_all() -> None:
    harness = NativeHarness(
        run_agent(background=True),
        lambda request: calls_verbatim(
            "wait_agents", json.dumps({"runs": [json.loads(request.messages[-1].text)["run"]], "until": 0})
        ),
        says("Done."),
        tasks={DIG: [says("Ten.")]},
    )
    await harness.play()

    assert [run["answer"] for run in harness.answers()[1]["runs"]] == ["Ten."]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("task", "agent", "context", "tools", "model", "output_schema", "key", "run", "runs", "until", "text", "page")


@pytest.mark.promise("NA-ONE-OBJECT")
@settings(max_examples=60, deadline=None)
@given(
    tool=st.sampled_from(NAMES),
    arguments=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4).map(json.dumps) | st.text(max_size=40),
)
def test_any_arguments_are_answered_with_one_object(tool: str, arguments: str) -> None:
    async def play() -> list[CallReturned]:
        harness = Harness(dialects=("native",))
        harness.script("main", calls_verbatim(tool, arguments), says("Done."))
        harness.script("general", says("Ten."))
        await harness.open()
        outcome = await harness.run(TASK)
        await harness.close()
        assert outcome.text == "Done."
        (root,) = [row for row in harness.store.runs(RunQuery()) if row.depth == 0]
        return [event for event in harness.events(root.run_id) if isinstance(event, CallReturned)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        (returned,) = runner.run(play())
    assert not returned.crashed
    assert isinstance(json.loads(returned.text), dict)
