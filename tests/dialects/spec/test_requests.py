"""Parsing and checking of the arguments of `subagent`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.requests import (
    ALL,
    Collect,
    Define,
    GetStatus,
    ListAgents,
    Spawn,
    WaitForTasks,
    actions_of,
    check_definition,
    check_task,
    parse,
    spec_of,
    tokens,
)

ANALYST = {
    "action": "define",
    "name": "analyst",
    "description": "Analyzes data",
    "system_prompt": "You are a data analyst.",
}


def refusal(arguments: object) -> dict[str, object]:
    """What the model reads instead of an answer."""
    with pytest.raises(CodedRefusal) as refused:
        parse(arguments if isinstance(arguments, str) else json.dumps(arguments))
    return refused.value.answer


def test_the_five_requests_are_understood() -> None:
    assert parse('{"action": "list_agents"}') == ListAgents()
    assert parse('{"action": "spawn", "agent": "researcher", "task": "Find it."}') == Spawn("researcher", "Find it.")
    assert parse('{"action": "spawn", "name": "researcher", "task": "Find it."}') == Spawn("researcher", "Find it.")
    assert parse('{"action": "status", "task_id": "t_01"}') == GetStatus("t_01")
    assert parse('{"action": "collect", "task_id": "t_01"}') == Collect("t_01")
    full = ANALYST | {"tools": ["query_database"], "model": "claude-sonnet-4-20250514", "max_turns": 15}
    assert parse(json.dumps(full)) == Define(
        name="analyst",
        description="Analyzes data",
        system_prompt="You are a data analyst.",
        tools=("query_database",),
        model="claude-sonnet-4-20250514",
        max_turns=15,
    )


@pytest.mark.promise("SPEC-3.2-TOOLS-DEFAULT", "SPEC-3.2-TURNS-DEFAULT", "SPEC-3.2-MODEL-DEFAULT")
def test_a_definition_has_no_tools_ten_turns_and_the_orchestrators_model_by_default() -> None:
    assert parse(json.dumps(ANALYST)) == Define(
        name="analyst",
        description="Analyzes data",
        system_prompt="You are a data analyst.",
        tools=(),
        model="",
        max_turns=10,
    )


@pytest.mark.promise("SPEC-3.2-SUBAGENT-DROPPED")
def test_the_delegation_tool_is_left_out_of_a_definition() -> None:
    request = parse(json.dumps(ANALYST | {"tools": ["subagent", "shared_context", "subagent"]}))

    assert isinstance(request, Define)
    assert request.tools == ("shared_context",)


@pytest.mark.promise("SPEC-4.4-CLAMP")
@pytest.mark.parametrize(
    ("asked", "given"), [(1, 1), (25, 25), (26, 25), (100, 25), (0, 1), (-7, 1), (12.0, 12), (10**400, 25), (1e308, 25)]
)
def test_turns_are_kept_within_1_and_25(asked: float, given: int) -> None:
    request = parse(json.dumps(ANALYST | {"max_turns": asked}))

    assert isinstance(request, Define)
    assert request.max_turns == given


@pytest.mark.promise("SPEC-5-INVALID-ACTION", "SPEC-5-SHAPE")
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"action": "explode"}, "'explode'"),
        ({"action": "SPAWN"}, "'SPAWN'"),
        ({}, "None"),
        ({"agent": 7}, "None"),
        ({"action": None}, "None"),
        ({"action": 3}, "3"),
        ({"action": ["spawn"]}, "['spawn']"),
        ({"action": {"spawn": True}}, "{'spawn': True}"),
    ],
)
def test_an_action_that_there_is_not_is_refused(arguments: object, shown: str) -> None:
    assert refusal(arguments) == {
        "error": "INVALID_ACTION",
        "message": f"Unknown action: {shown}. Valid: ['cancel', 'collect', 'define', 'list_agents', 'progress', "
        "'redefine', 'spawn', 'status', 'wait']",
    }


@pytest.mark.promise("SPEC-3.2-REQUIRED", "SPEC-5-INVALID-REQUEST", "SPEC-5-SHAPE")
@pytest.mark.parametrize("field", ["name", "description", "system_prompt"])
def test_a_definition_without_a_required_field_is_refused(field: str) -> None:
    incomplete = {name: value for name, value in ANALYST.items() if name != field}

    assert refusal(incomplete) == {
        "error": "INVALID_REQUEST",
        "message": f"Field '{field}' is required for action 'define'.",
    }


@pytest.mark.promise("SPEC-5-INVALID-REQUEST")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "spawn", "task": "t"}, "Field 'agent' is required for action 'spawn'."),
        ({"action": "spawn", "agent": "a"}, "Field 'task' is required for action 'spawn'."),
        ({"action": "status"}, "Field 'task_id' is required for action 'status'."),
        ({"action": "collect"}, "Field 'task_id' is required for action 'collect'."),
        ({"action": "spawn", "agent": 1, "task": "t"}, "Field 'agent' must be a string, got a number."),
        ({"action": "spawn", "agent": "a", "task": ["t"]}, "Field 'task' must be a string, got a list."),
        ({"action": "status", "task_id": None}, "Field 'task_id' must be a string, got null."),
        ({"action": "collect", "task_id": {}}, "Field 'task_id' must be a string, got an object."),
        (ANALYST | {"name": True}, "Field 'name' must be a string, got a boolean."),
        (ANALYST | {"model": 4}, "Field 'model' must be a string, got a number."),
        (ANALYST | {"tools": "shared_context"}, "Field 'tools' must be a list of strings, got a string."),
        (ANALYST | {"tools": None}, "Field 'tools' must be a list of strings, got null."),
        (ANALYST | {"tools": ["a", 1]}, "Field 'tools' must be a list of strings, got a number in it."),
        (ANALYST | {"max_turns": "10"}, "Field 'max_turns' must be an integer, got a string."),
        (ANALYST | {"max_turns": 2.5}, "Field 'max_turns' must be an integer, got a number."),
        (ANALYST | {"max_turns": True}, "Field 'max_turns' must be an integer, got a boolean."),
        ("[]", "Arguments must be one JSON object, got a list."),
    ],
)
def test_a_request_with_missing_or_mistyped_fields_is_refused(arguments: object, message: str) -> None:
    assert refusal(arguments) == {"error": "INVALID_REQUEST", "message": message}


def checked(name: str = "analyst", prompt: str = "You analyze.", tools: tuple[str, ...] = ()) -> str | None:
    """The code and message with which a definition is refused, if it is."""
    request = Define(name=name, description="d", system_prompt=prompt, tools=tools)
    try:
        check_definition(request, ("shared_context", "query_database"))
    except CodedRefusal as refused:
        return f"{refused.code}: {refused.message}"
    return None


@pytest.mark.promise("SPEC-4.6-CHARACTERS", "SPEC-4.6-LENGTH")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Agent name must be 1-64 characters, got 0."),
        ("a" * 65, "Agent name must be 1-64 characters, got 65."),
        ("X" * 9000, "Agent name must be 1-64 characters, got 9000."),
        ("Analyst", "Agent name must match [a-z0-9_-]+, got: 'Analyst'"),
        ("data analyst", "Agent name must match [a-z0-9_-]+, got: 'data analyst'"),
        ("analyst\n", "Agent name must match [a-z0-9_-]+, got: 'analyst\\n'"),
        ("analyst.v2", "Agent name must match [a-z0-9_-]+, got: 'analyst.v2'"),
        ("zürich", "Agent name must match [a-z0-9_-]+, got: 'zürich'"),
    ],
)
def test_a_name_has_up_to_64_lowercase_letters_digits_underscores_and_hyphens(name: str, message: str) -> None:
    assert checked(name) == f"INVALID_AGENT_NAME: {message}"


@pytest.mark.promise("SPEC-4.6-CHARACTERS", "SPEC-4.6-LENGTH")
@pytest.mark.parametrize("name", ["a", "a" * 64, "senior_researcher-2", "-", "0"])
def test_valid_agent_names_are_accepted(name: str) -> None:
    assert checked(name) is None


@pytest.mark.promise("SPEC-4.7-PROMPT", "SPEC-4-TOKENS")
def test_a_prompt_may_have_4000_tokens_and_no_more() -> None:
    assert checked(prompt="x" * 16_003) is None
    assert checked(prompt="x" * 16_004) == "PROMPT_TOO_LARGE: System prompt is ~4001 tokens, max is 4000."


@pytest.mark.promise("SPEC-3.2-INVALID-TOOL")
def test_a_tool_that_is_not_registered_is_refused_by_name() -> None:
    assert checked(tools=("shared_context", "query_database")) is None
    assert checked(tools=("shared_context", "rm_rf", "x")) == (
        "INVALID_TOOL: Tool not in application registry: 'rm_rf'"
    )


@pytest.mark.promise("SPEC-3.2-ORDER")
def test_a_definition_is_checked_by_name_then_prompt_then_tools() -> None:
    long = "x" * 20_000

    assert str(checked("BAD", long, ("nope",))).startswith("INVALID_AGENT_NAME")
    assert str(checked("good", long, ("nope",))).startswith("PROMPT_TOO_LARGE")
    assert str(checked("good", "short", ("nope",))).startswith("INVALID_TOOL")
    assert refusal(ANALYST | {"name": "BAD", "tools": 7})["error"] == "INVALID_REQUEST"


@pytest.mark.promise("SPEC-4.2-TASK", "SPEC-4-TOKENS")
def test_a_task_may_have_1000_tokens_and_no_more() -> None:
    check_task("x" * 4003)
    with pytest.raises(CodedRefusal) as refused:
        check_task("x" * 4004)

    assert refused.value.answer == {
        "error": "TASK_TOO_LARGE",
        "message": "Task string is ~1001 tokens, max is 1000.",
    }


@pytest.mark.promise("SPEC-4-TOKENS")
@given(st.text(max_size=200))
def test_a_token_is_four_characters(text: str) -> None:
    assert tokens(text) == len(text) // 4


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
VALUES = st.integers(0, 100_000).map("x".__mul__) | ANYTHING
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(actions_of(ALL)) | ANYTHING,
        **dict.fromkeys(("name", "description", "system_prompt", "model", "agent", "task", "task_id"), VALUES),
        **dict.fromkeys(("extends", "system_prompt_append", "mode"), VALUES),
        **dict.fromkeys(("depends_on", "task_ids"), st.lists(st.text(max_size=8), max_size=4) | ANYTHING),
        **dict.fromkeys(("max_input_tokens", "max_output_tokens", "timeout_ms", "mode"), st.integers() | ANYTHING),
        "tools": st.lists(st.text(max_size=8), max_size=4) | ANYTHING,
        "max_turns": st.integers() | ANYTHING,
    },
)


@pytest.mark.promise("SPEC-5-NEVER-RAISES", "SPEC-5-SHAPE")
@given(ARGUMENTS | ANYTHING)
def test_random_requests_are_parsed_or_refused_with_a_code(arguments: object) -> None:
    try:
        request = parse(json.dumps(arguments))
        if isinstance(request, Define):
            check_definition(request, [name for name in request.tools if len(name) % 2 == 0])
    except CodedRefusal as refused:
        answer = refused.answer
    else:
        return
    assert set(answer) == {"error", "message"}
    assert answer["error"] in {
        "INVALID_REQUEST",
        "INVALID_ACTION",
        "INVALID_AGENT_NAME",
        "PROMPT_TOO_LARGE",
        "INVALID_TOOL",
    }


@pytest.mark.promise("SPEC-5-NEVER-RAISES")
@given(st.text(max_size=200))
def test_random_text_as_arguments_is_refused_with_a_code(arguments: str) -> None:
    assert refusal(arguments)["error"] in {"INVALID_REQUEST", "INVALID_ACTION"}


EMPTY: dict[str, object] = {
    "model": "",
    "extends": "",
    "system_prompt_append": "",
    "depends_on": [],
    "mode": "",
    "tools": [],
}


@pytest.mark.parametrize("extensions", [ALL, frozenset[str]()])
def test_optional_fields_that_a_model_filled_in_as_empty_are_absent(extensions: frozenset[str]) -> None:
    define = {"action": "define", "name": "a", "description": "b", "system_prompt": "c"}
    spawn = {"action": "spawn", "agent": "a", "task": "b"}

    for request in (define, spawn):
        assert parse(json.dumps(EMPTY | request), extensions) == parse(json.dumps(request), extensions)
    assert parse(json.dumps(EMPTY | {"action": "wait", "task_ids": ["t_01"]})) == WaitForTasks(("t_01",))


def test_the_tool_is_shown_with_its_parameters() -> None:
    core, everything = spec_of(frozenset()), spec_of(ALL)
    schema = json.loads(core.parameters)

    assert (core.name, everything.name) == ("subagent", "subagent")
    assert {name: field["type"] for name, field in schema["properties"].items()} == {
        "action": "string",
        "name": "string",
        "description": "string",
        "system_prompt": "string",
        "tools": "array",
        "model": "string",
        "max_turns": "integer",
        "agent": "string",
        "task": "string",
        "task_id": "string",
    }
    assert schema["properties"]["action"]["enum"] == ["list_agents", "define", "spawn", "status", "collect"]
    assert schema["required"] == ["action"]
    more = json.loads(everything.parameters)
    assert set(more["properties"]) - set(schema["properties"]) == {
        *("extends", "system_prompt_append", "depends_on", "max_input_tokens", "max_output_tokens"),
        *("task_ids", "mode", "timeout_ms"),
    }
    assert more["properties"]["action"]["enum"][5:] == ["redefine", "cancel", "progress", "wait"]
    assert more["required"] == ["action"]


def test_the_registered_agents_are_named_where_one_is_run() -> None:
    def about(agents: tuple[str, ...]) -> str:
        return json.loads(spec_of(frozenset(), agents=agents).parameters)["properties"]["agent"]["description"]

    assert about(()) == "spawn, required: the name of the agent to run."
    assert about(("dig", "writer")).endswith(" Registered: dig, writer; others have to be defined first.")
