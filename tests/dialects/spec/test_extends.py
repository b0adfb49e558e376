"""Agents that extend other agents, and redefined agents."""

import json

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.run import Limits
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.answers import subagent_text
from retinue.dialects.spec.dialect import agents_of, define, origin_of
from retinue.dialects.spec.requests import Define, Extend, Redefine, parse
from retinue.providers.scripted import calls, says
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_after, subagent, waiting_orchestrator

RESEARCHER = Agent(
    name="researcher",
    description="Investigates",
    system_prompt="You research.",
    tools=("search_logs",),
    model="beta:deep",
    fallback=("alpha:quick",),
    max_turns=12,
    limits=Limits(max_output_tokens=500),
)
SENIOR = Extend(
    name="senior", extends="researcher", system_prompt_append="Validate with two independent sources.", max_turns=15
)


class KeyValue(dict[str, bytes]):
    """A shelf of defined agents."""

    def define(self, request: Define | Extend, registered: tuple[Agent, ...] = (RESEARCHER,)) -> Answer:
        """What the orchestrator reads after a definition."""
        decision = define(request, self, registered=registered, tools=self.tools)
        self.update(decision.puts)
        return json.loads(decision.answer)

    def redefine(self, request: Define | Extend, registered: tuple[Agent, ...] = (RESEARCHER,)) -> Answer:
        """What the orchestrator reads after another definition."""
        decision = define(Redefine(request), self, registered=registered, tools=self.tools)
        self.update(decision.puts)
        return json.loads(decision.answer)

    tools = ("search_logs", "query_metrics")
    """What the application has."""


@pytest.mark.promise("SPEC-7.3-INHERITS", "SPEC-7.3-APPEND")
def test_an_extending_agent_inherits_all_fields_that_are_not_given() -> None:
    key_value = KeyValue()
    answer = key_value.define(SENIOR)

    assert answer == {"defined": "senior", "description": "Investigates"}
    assert agents_of((RESEARCHER,), key_value)["senior"] == Agent(
        name="senior",
        description="Investigates",
        system_prompt="You research.\n\nValidate with two independent sources.",
        tools=("search_logs",),
        model="beta:deep",
        fallback=("alpha:quick",),
        max_turns=15,
        limits=Limits(max_output_tokens=500),
    )


@pytest.mark.promise("SPEC-7.3-INHERITS", "SPEC-7.3-APPEND")
def test_an_extension_may_replace_every_field() -> None:
    key_value = KeyValue()
    key_value.define(
        Extend(
            name="junior",
            extends="researcher",
            description="Tries",
            system_prompt="You try.",
            system_prompt_append="Hard.",
            tools=(),
            model="small",
            max_turns=1,
        )
    )

    assert agents_of((RESEARCHER,), key_value)["junior"] == Agent(
        name="junior",
        description="Tries",
        system_prompt="You try.\n\nHard.",
        model="small",
        max_turns=1,
        limits=Limits(max_output_tokens=500),
    )


@pytest.mark.promise("SPEC-7.3-INHERITS")
def test_a_defined_agent_can_be_extended_too() -> None:
    key_value = KeyValue()
    key_value.define(Define(name="analyst", description="Analyzes", system_prompt="You analyze."))
    key_value.define(Extend(name="second", extends="analyst", system_prompt_append="Twice."))

    assert agents_of((), key_value)["second"].system_prompt == "You analyze.\n\nTwice."


@pytest.mark.promise("SPEC-7.3-UNKNOWN", "SPEC-7.3-SIZE")
@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (Extend(name="x", extends="unknown"), "AGENT_NOT_FOUND", "Unknown agent: 'unknown'"),
        (Extend(name="x", extends="x"), "AGENT_NOT_FOUND", "Unknown agent: 'x'"),
        (Extend(name="X", extends="unknown"), "INVALID_AGENT_NAME", "Agent name must match [a-z0-9_-]+, got: 'X'"),
        (
            Extend(name="x", extends="researcher", system_prompt_append="y" * 16000),
            "PROMPT_TOO_LARGE",
            "System prompt is ~4003 tokens, max is 4000.",
        ),
        (
            Extend(name="x", extends="researcher", tools=("rm",)),
            "INVALID_TOOL",
            "Tool not in application registry: 'rm'",
        ),
        (
            Extend(name="researcher", extends="researcher"),
            "AGENT_ALREADY_EXISTS",
            "Agent already registered: 'researcher'",
        ),
    ],
)
def test_an_extension_is_checked_as_a_definition_is(request_: Extend, code: str, message: str) -> None:
    refused = KeyValue().define(request_)

    assert (refused["error"], refused["message"]) == (code, message)


@pytest.mark.promise("SPEC-7.3-NEEDS", "SPEC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"system_prompt_append": "more"}, "Field 'system_prompt_append' needs 'extends'."),
        ({"extends": 7}, "Field 'extends' must be a string, got a number."),
        ({"extends": "a", "system_prompt_append": ["x"]}, "Field 'system_prompt_append' must be a string, got a list."),
        ({"extends": "a", "description": None}, "Field 'description' must be a string, got null."),
        ({"extends": "a", "system_prompt": 1}, "Field 'system_prompt' must be a string, got a number."),
        ({"extends": "a", "tools": "all"}, "Field 'tools' must be a list of strings, got a string."),
        ({"extends": "a", "model": {}}, "Field 'model' must be a string, got an object."),
        ({"extends": "a", "max_turns": "9"}, "Field 'max_turns' must be an integer, got a string."),
        ({"extends": "a", "name": None}, "Field 'name' must be a string, got null."),
    ],
)
@pytest.mark.parametrize("action", ["define", "redefine"])
def test_a_mistyped_field_of_an_extension_is_refused(action: str, fields: Answer, message: str) -> None:
    with pytest.raises(CodedRefusal) as refused:
        parse(json.dumps({"action": action, "name": "x"} | fields))

    assert (refused.value.code, refused.value.message) == ("INVALID_REQUEST", message)


def test_an_extension_without_a_name_is_refused() -> None:
    with pytest.raises(CodedRefusal) as refused:
        parse('{"action": "define", "extends": "researcher"}')

    assert refused.value.message == "Field 'name' is required for action 'define'."


def test_extensions_and_redefinitions_are_understood() -> None:
    assert parse('{"action": "define", "name": "x", "extends": "a", "max_turns": 99}') == Extend(
        name="x", extends="a", max_turns=25
    )
    assert parse('{"action": "redefine", "name": "x", "extends": "a", "tools": ["b", "subagent"]}') == Redefine(
        Extend(name="x", extends="a", tools=("b",))
    )
    assert parse('{"action": "redefine", "name": "x", "description": "d", "system_prompt": "p"}') == Redefine(
        Define(name="x", description="d", system_prompt="p")
    )


@retinue.tool
def deploy() -> str:
    """Change production."""
    return "deployed"


@pytest.mark.promise("SPEC-7.3-RIGHTS")
async def test_an_agent_that_extends_a_registered_one_has_its_permissions() -> None:
    careful = retinue.Agent(
        name="careful",
        description="Looks",
        system_prompt="You look.",
        tools=("deploy",),
        policy=retinue.Policy(excluded_tools=("deploy",)),
    )
    harness = SpecHarness(agents=(careful,), tools=(deploy,))
    harness.script.play("bold", calls("deploy"), says("tried"))
    harness.script.play("bolder", calls("deploy"), says("tried"))
    async with waiting_orchestrator(harness) as (opened, caller):
        for index, (name, base) in enumerate((("bold", "careful"), ("bolder", "bold"))):
            define_it = {"action": "define", "name": name, "extends": base, "tools": ["deploy"]}
            await read_after(opened, caller(2 * index), "subagent", **define_it)
            await read_after(opened, caller(2 * index + 1), "subagent", action="spawn", agent=name, task="Go.")
        await read_after(opened, caller(9), "subagent", action="wait", task_ids=["t_01", "t_02"])

    assert {request.tools for name in ("bold", "bolder") for request in harness.requests_of(name)} == {()}


def test_the_origin_of_an_agent_is_found_through_all_extensions() -> None:
    key_value = KeyValue()
    key_value.define(SENIOR)
    key_value.define(Extend(name="principal", extends="senior"))
    key_value.define(Define(name="free", description="d", system_prompt="p"))

    known = ("researcher", "senior", "principal", "free", "unknown")
    assert [origin_of(name, (RESEARCHER,), key_value) for name in known] == [
        *("researcher", "researcher", "researcher", "free", "unknown")
    ]


# ---- redefine -------------------------------------------------------------------------------------------------------

ANALYST = Define(name="analyst", description="Analyzes", system_prompt="You analyze.")
BETTER = Define(name="analyst", description="Analyzes better", system_prompt="You analyze well.", max_turns=3)


@pytest.mark.promise("SPEC-7.5-ANSWER", "SPEC-7.5-VERSION")
def test_a_defined_agent_can_be_replaced_and_its_versions_are_counted() -> None:
    key_value = KeyValue()
    key_value.define(ANALYST)
    key_value.define(Define(name="other", description="d", system_prompt="p"))

    assert [key_value.redefine(BETTER), key_value.redefine(ANALYST)] == [
        {"redefined": "analyst", "description": "Analyzes better", "version": 2},
        {"redefined": "analyst", "description": "Analyzes", "version": 3},
    ]
    assert list(agents_of((), key_value)) == ["analyst", "other"], "the order is that of the first definitions"


@pytest.mark.promise("SPEC-7.5-ANSWER", "SPEC-7.3-APPEND")
def test_an_agent_can_be_refined_by_extending_itself() -> None:
    key_value = KeyValue()
    key_value.define(ANALYST)
    key_value.redefine(Extend(name="analyst", extends="analyst", system_prompt_append="Briefly."))

    assert agents_of((), key_value)["analyst"].system_prompt == "You analyze.\n\nBriefly."


@pytest.mark.promise("SPEC-7.5-UNKNOWN", "SPEC-7.5-APPLICATION")
@pytest.mark.parametrize("name", ["unknown", "researcher"])
def test_only_defined_agents_can_be_redefined(name: str) -> None:
    key_value = KeyValue()
    key_value.define(ANALYST)

    assert key_value.redefine(Define(name=name, description="d", system_prompt="p")) == {
        "error": "AGENT_NOT_FOUND",
        "message": f"No agent of this name was defined here: '{name}'",
    }


@pytest.mark.promise("SPEC-7.5-APPLICATION")
def test_a_defined_agent_that_the_application_registers_later_is_the_applications() -> None:
    key_value = KeyValue()
    key_value.define(ANALYST)
    later = (Agent(name="analyst"),)

    assert key_value.redefine(BETTER, later)["error"] == "AGENT_NOT_FOUND"


@pytest.mark.promise("SPEC-7.5-UNKNOWN")
def test_a_redefinition_is_checked_as_a_definition_is_before_its_name_is_looked_up() -> None:
    assert KeyValue().redefine(Define(name="unknown", description="d", system_prompt="x" * 16004))["error"] == (
        "PROMPT_TOO_LARGE"
    )


@pytest.mark.promise("SPEC-7.5-RUNNING")
async def test_running_tasks_keep_the_old_definition_of_their_agent() -> None:
    harness = SpecHarness()
    harness.script.play("analyst", other_work(20), says("done"))
    fields = {"name": "analyst", "description": "d", "tools": ["work"]}

    played = await harness.play(
        subagent("define", system_prompt="Old.", **fields),
        subagent("spawn", agent="analyst", task="One."),
        subagent("redefine", system_prompt="New.", **fields),
        subagent("spawn", agent="analyst", task="Two."),
        other_work(100),
        says("enough"),
    )

    assert played.answers[2] == {"redefined": "analyst", "description": "d", "version": 2}
    systems = {(each.messages[0].text, each.turn): each.system for each in harness.requests_of("analyst")}
    old, new = (subagent_text(prompt, ("work",)) for prompt in ("Old.", "New."))
    assert systems == {("One.", 1): old, ("One.", 2): old, ("Two.", 1): new, ("Two.", 2): new}


@pytest.mark.promise("SPEC-KEYED", "SPEC-7.5-VERSION")
async def test_a_redefinition_that_is_entered_again_counts_once() -> None:
    fields = {"name": "analyst", "description": "d", "system_prompt": "p"}
    async with waiting_orchestrator(SpecHarness()) as (opened, caller):
        await read_after(opened, caller(0), "subagent", action="define", **fields)
        first = await read_after(opened, caller(1), "subagent", action="redefine", **fields)
        again = await read_after(opened, caller(1, again=True), "subagent", action="redefine", **fields)
        other = await read_after(opened, caller(2), "subagent", action="redefine", **fields)

    assert (first["version"], again, other["version"]) == (2, first, 3)
