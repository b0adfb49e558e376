"""`claude`: the definitions of the tools, and refusals of arguments."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.agent import Agent
from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned
from retinue.dialects import registry
from retinue.dialects.claude import TOOL_NAMES
from retinue.dialects.claude.requests import about_agents, specs, types_in_system
from retinue.providers.scripted import calls_verbatim, says, together
from retinue.testing.harness import Harness, dialect_context
from retinue.testing.virtual_time import VirtualTimeLoop
from tests.dialects.claude.harness import DIG, ClaudeHarness, agent
from tests.dialects.native.harness import TASK
from tests.dialects.native.test_requests import JSON

NAMES = ("Agent", "SendMessage", "TaskStop", "ListAgents")
SUM = "add it up"


@pytest.mark.promise("CL-FOUR")
def test_the_dialect_has_four_tools() -> None:
    made = registry.entry("claude").make(dialect_context()).tools()
    assert (tuple(made), TOOL_NAMES) == (NAMES, ("Agent", "Task", "SendMessage", "TaskStop", "ListAgents"))


@pytest.mark.promise("CL-BUILT-IN")
def test_the_definition_lists_the_types() -> None:
    def shown(*agents: Agent) -> tuple[list[str], bool]:
        spec = specs(agents)["Agent"]
        names = json.loads(spec.parameters)["properties"]["subagent_type"]["enum"]
        return names, all(f"\n- {name}" in spec.description for name in names)

    assert shown() == (["general-purpose", "Explore", "Plan"], True)
    assert shown(Agent(name="reader", description="Reads")) == (["general-purpose", "reader"], True)


def test_every_parameter_is_explained() -> None:
    properties = [each for spec in specs().values() for each in json.loads(spec.parameters)["properties"].values()]
    assert [each for each in properties if not each.get("description")] == []


REFUSED = [
    ("Agent", "{}", "Agent: Object missing required field `prompt`. Valid fields: prompt, description, "),
    ("Agent", '{"prompt": " ", "description": "a"}', "The prompt is empty. Valid: a text."),
    ("Agent", '{"prompt": "a", "subagent_type": "writer"}', "Agent type 'writer' not found. Valid: general-purpose, "),
    ("Agent", '{"prompt": "a", "isolation": "remote"}', "Isolation 'remote' is not available. Valid: "),
    ("Agent", '{"prompt": "a", "effort": "huge"}', "Agent: Invalid enum value 'huge' - at `$.effort`. Valid fields: "),
    ("Agent", '{"prompt": "a", "name": "main"}', "Invalid name 'main'. Valid: at most 100 characters without / and :"),
    ("Agent", '{"prompt": "a", "name": "a\\u001bb"}', "Invalid name 'a\\x1bb'. Valid: at most 100 characters "),
    ("Agent", '{"prompt": "a", "resume": "x"}', "Agent: Object contains unknown field `resume`. Valid fields: "),
    ("SendMessage", '{"to": "a", "message": "b"}', "No agent found with name or ID: a. Valid: (none)."),
    ("SendMessage", '{"to": "main", "message": "b"}', "No agent found with name or ID: main. Valid: (none)."),
    ("SendMessage", '{"to": "a", "message": ""}', "The message is empty. Valid: a text."),
    ("TaskStop", '{"task_id": "a"}', "No task found with ID: a. Valid: (none)."),
    ("TaskStop", '{"shell_id": "a"}', "TaskStop: Object contains unknown field `shell_id`. Valid fields: task_id."),
    ("ListAgents", '{"all": true}', "ListAgents: Object contains unknown field `all`. Valid fields: (none)."),
    ("ListAgents", "no JSON", "ListAgents: JSON is malformed: "),
]


@pytest.mark.promise("CL-REFUSED", "CL-TYPE-UNKNOWN")
async def test_wrong_arguments_are_refused_with_the_valid_ones() -> None:
    lines = [calls_verbatim(tool, arguments) for tool, arguments, _ in REFUSED]
    harness = ClaudeHarness(together(*lines), says("Done."))
    await harness.play()

    assert [row.path for row in harness.rows()] == ["root"]
    for (tool, arguments, expected), returned in zip(REFUSED, harness.returned(), strict=True):
        assert (tool, arguments, returned.failed, returned.text[: len(expected)]) == (tool, arguments, True, expected)


OPTIONAL = ("subagent_type", "model", "effort", "name", "isolation", "team_name", "mode")


@pytest.mark.promise("CL-EMPTY")
@pytest.mark.parametrize("empty", [None, "", " "])
async def test_empty_values_count_as_left_out(empty: str | None) -> None:
    filled = dict.fromkeys(OPTIONAL, empty)
    harness = ClaudeHarness(
        together(agent(**filled), agent(SUM, **filled)),
        says("Done."),
        tasks={DIG: [says("Ten.")], SUM: [says("Eleven.")]},
    )
    await harness.play()

    assert [returned.failed for returned in harness.returned()] == [False, False]
    assert [row.path for row in harness.rows()] == ["root", "root/general-purpose/1", "root/general-purpose/2"]


FIELDS = ("prompt", "description", "subagent_type", "model", "effort", "run_in_background", "name", "isolation")
MORE = ("team_name", "mode", "to", "message", "summary", "task_id")


@pytest.mark.promise("CL-OBJECT")
@settings(max_examples=60, deadline=None)
@given(
    tool=st.sampled_from(NAMES),
    arguments=st.dictionaries(st.sampled_from((*FIELDS, *MORE)), JSON, max_size=4).map(json.dumps)
    | st.text(max_size=40),
)
def test_any_arguments_get_an_answer_or_a_refusal(tool: str, arguments: str) -> None:
    async def play() -> list[CallReturned]:
        harness = Harness(dialects=("claude",))
        harness.script("main", calls_verbatim(tool, arguments), says("Done."), says("Done."))
        harness.script("general-purpose", says("Ten."))
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


def test_types_that_do_not_fit_the_description_are_in_the_system_text() -> None:
    few = [Agent(name="reader", description="Reads.")]
    many = [Agent(name=f"reader_{number}", description="Reads. " * 20) for number in range(200)]
    dialect = registry.entry("claude").make(dialect_context(agents=many))

    assert "- reader: Reads." in about_agents(few)
    assert types_in_system(few) == ""
    assert "reader_0" not in about_agents(many)
    assert about_agents(many).endswith("The types are in the system prompt.")
    text = dialect.system_text(many, ("Agent",))
    assert "- reader_0: Reads." in text
    assert text.endswith(" more")
    assert len(text) < 17_000
