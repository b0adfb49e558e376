"""The parameters of the `zeroclaw` tools, and the refusals of invalid arguments."""

import json
from typing import Any

import hypothesis
import hypothesis.strategies as some
import pytest

from retinue.dialects.error_codes import CallRefused
from retinue.dialects.zeroclaw.requests import (
    Await,
    CancelTask,
    CheckResult,
    Handover,
    ListResults,
    Parallel,
    delegate_spec,
    parse,
    prompt_of,
    spawn_spec,
)
from retinue.testing import says
from tests.dialects.zeroclaw.harness import TASK, ZeroclawHarness

ID = "0198c2f4-7d1e-7abc-8def-0123456789ab"
HUGE = "x" * 1_000_000


def refusal(arguments: object) -> str:
    """How a call is refused."""
    with pytest.raises(CallRefused) as refused:
        parse(arguments if isinstance(arguments, str) else json.dumps(arguments))
    return str(refused.value)


@pytest.mark.promise("ZC-SPAWN-SCHEMA")
def test_spawn_subagent_takes_a_prompt_and_nothing_else() -> None:
    schema = json.loads(spawn_spec().parameters)

    assert (schema["required"], list(schema["properties"])) == (["prompt"], ["prompt"])
    assert (spawn_spec().name, schema["additionalProperties"]) == ("spawn_subagent", False)


@pytest.mark.promise("ZC-DELEGATE-SCHEMA")
def test_delegate_has_the_parameters_of_its_document_and_requires_none() -> None:
    schema = json.loads(delegate_spec(["a", "b"]).parameters)
    properties = schema["properties"]

    document = ["action", "agent", "prompt", "context", "background", "parallel", "task_id"]
    assert [*properties] == [*document, "task_ids", "timeout_ms"]
    assert ("required" in schema, schema["additionalProperties"]) == (False, False)
    assert properties["action"]["enum"] == ["delegate", "check_result", "list_results", "cancel_task", "await"]
    assert (properties["action"]["default"], properties["background"]["default"]) == ("delegate", False)
    assert properties["agent"]["description"].endswith("Available: a, b")
    assert (properties["agent"]["minLength"], properties["prompt"]["minLength"]) == (1, 1)
    assert json.loads(delegate_spec([]).parameters)["properties"]["agent"]["description"].endswith("(none configured)")


@pytest.mark.parametrize(("root", "targets"), [("main", ["reviewer", "writer"]), ("reviewer", ["writer"])])
async def test_the_targets_that_a_run_is_shown_are_the_other_agents(root: str, targets: list[str]) -> None:
    harness = ZeroclawHarness(says("Done."), root=root)
    async with harness:
        run = await harness.retinue.spawn(TASK, agent=None if root == "main" else root)
        await run.wait()
        shown = harness.retinue.supervisor.tools_of(await harness.retinue.supervisor.replay(run.run_id))

    properties = next(json.loads(spec.parameters)["properties"] for spec in shown if spec.name == "delegate")
    assert properties["agent"]["enum"] == targets
    assert properties["parallel"]["items"] == {"type": "string", "enum": targets}
    assert properties["agent"]["description"].endswith("Available: reviewer, writer")


def test_the_only_agent_has_no_enumeration_of_targets() -> None:
    schema = json.loads(delegate_spec(["alone"], caller="alone").parameters)

    assert schema["properties"]["agent"]["type"] == "string"
    assert "enum" not in schema["properties"]["agent"]


@pytest.mark.promise("ZC-DELEGATE-SCHEMA", "ZC-ORDER")
@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"agent": " a ", "prompt": "p"}, Handover("a", "p")),
        ({"agent": "a", "prompt": "p", "action": None, "parallel": None, "background": None}, Handover("a", "p")),
        ({"action": "delegate", "agent": "a", "prompt": HUGE, "background": True}, Handover("a", HUGE, True)),
        ({"agent": "a", "prompt": "p", "task_id": "left out of account", "more": 1}, Handover("a", "p")),
        ({"agent": 7, "background": "x", "prompt": "p", "parallel": ["a", " b "]}, Parallel(("a", "b"), "p")),
        ({"action": "check_result", "task_id": ID}, CheckResult(ID, ID)),
        ({"action": "check_result", "task_id": ID.upper()}, CheckResult(ID, ID.upper())),
        ({"action": "list_results", "agent": 7}, ListResults()),
        ({"action": "cancel_task", "task_id": ID.replace("-", "")}, CancelTask(ID, ID.replace("-", ""))),
        ({"action": "await", "task_ids": [ID]}, Await((ID,), 30.0)),
        ({"action": "await", "task_ids": [ID], "timeout_ms": 0}, Await((ID,), 0.0)),
        ({"action": "await", "task_ids": [ID], "timeout_ms": 120_000.0}, Await((ID,), 120.0)),
    ],
)
def test_a_call_is_read_as_it_is_meant(asked: dict[str, object], meant: object) -> None:
    assert parse(json.dumps(asked)) == meant


@pytest.mark.promise("ZC-ACTION")
@pytest.mark.parametrize(
    ("action", "shown"),
    [("x", "x"), ("", ""), ("Delegate", "Delegate"), (7, "7"), (["await"], '["await"]'), (HUGE, HUGE)],
)
def test_an_unknown_action_is_refused_with_those_that_there_are(action: object, shown: str) -> None:
    text = f"Unknown action '{shown}'. Use delegate/check_result/list_results/cancel_task."
    assert refusal({"action": action, "agent": "a", "prompt": "p"}) == text


@pytest.mark.promise("ZC-MISSING", "ZC-ORDER")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("{}", "Missing 'agent' parameter"),
        ("", "Missing 'agent' parameter"),
        ("[]", "Missing 'agent' parameter"),
        ("{broken", "Missing 'agent' parameter"),
        ("[" * 100_000, "Missing 'agent' parameter"),
        ({"agent": None, "prompt": 7}, "Missing 'agent' parameter"),
        ({"agent": ["a"], "prompt": "p"}, "Missing 'agent' parameter"),
        ({"agent": "a"}, "Missing 'prompt' parameter"),
        ({"agent": "a", "prompt": {"p": 1}}, "Missing 'prompt' parameter"),
        ({"parallel": ["a"]}, "Missing 'prompt' parameter for parallel execution"),
        ({"parallel": ["a"], "prompt": 7}, "Missing 'prompt' parameter for parallel execution"),
        ({"action": "check_result"}, "Missing 'task_id' parameter for check_result"),
        ({"action": "check_result", "task_id": 7}, "Missing 'task_id' parameter for check_result"),
        ({"action": "cancel_task"}, "Missing 'task_id' parameter for cancel_task"),
        ({"action": "cancel_task", "task_id": [ID]}, "Missing 'task_id' parameter for cancel_task"),
        ({"action": "await"}, "Missing 'task_ids' parameter for await"),
        ({"action": "await", "task_ids": ID}, "Missing 'task_ids' parameter for await"),
    ],
)
def test_missing_and_mistyped_parameters_are_named(asked: object, text: str) -> None:
    assert refusal(asked) == text


@pytest.mark.promise("ZC-BLANK")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"agent": " ", "prompt": "p"}, "'agent' parameter must not be empty"),
        ({"agent": "", "prompt": ""}, "'agent' parameter must not be empty"),
        ({"agent": "a", "prompt": "\n "}, "'prompt' parameter must not be empty"),
        ({"parallel": ["a"], "prompt": ""}, "'prompt' parameter must not be empty"),
        ({"parallel": [], "agent": "a", "prompt": "p"}, "'parallel' array must contain at least one agent name"),
        ({"parallel": ["", " ", 7], "prompt": "p"}, "'parallel' array must contain at least one agent name"),
        ({"parallel": "a", "prompt": "p"}, "'parallel' array must contain at least one agent name"),
        ({"parallel": [], "prompt": ""}, "'parallel' array must contain at least one agent name"),
    ],
)
def test_blanks_are_refused(asked: object, text: str) -> None:
    assert refusal(asked) == text


@pytest.mark.promise("ZC-TYPES")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"agent": "a", "prompt": "p", "background": "yes"}, "'background' parameter must be a boolean"),
        ({"agent": "a", "prompt": "p", "background": 1}, "'background' parameter must be a boolean"),
        ({"agent": "a", "prompt": "p", "context": ["c"]}, "'context' parameter must be a string"),
        ({"action": "await", "task_ids": []}, "'task_ids' array must contain between 1 and 128 task ids"),
        ({"action": "await", "task_ids": [ID] * 129}, "'task_ids' array must contain between 1 and 128 task ids"),
        ({"action": "await", "task_ids": [ID, ID.upper()]}, "'task_ids' array must not contain duplicates"),
        ({"action": "await", "task_ids": [7]}, "Invalid task_id '7': must be a valid UUID"),
        *(
            (
                {"action": "await", "task_ids": [ID], "timeout_ms": wrong},
                "'timeout_ms' parameter must be an integer between 0 and 120000",
            )
            for wrong in (-1, 120_001, 1.5, "30", True, 10**30)
        ),
    ],
)
def test_other_invalid_values_are_refused(asked: object, text: str) -> None:
    assert refusal(asked) == text


@pytest.mark.promise("ZC-TASK-ID")
@pytest.mark.parametrize(
    "task_id",
    ["", " ", "x", "../../etc/passwd", f"../{ID}", f"{ID}/..", f"{ID}\x00", f"/{ID}", ID[:-1], f"{ID}.json", HUGE],
)
@pytest.mark.parametrize("action", ["check_result", "cancel_task"])
def test_a_task_id_is_a_uuid_and_nothing_else(action: str, task_id: str) -> None:
    assert refusal({"action": action, "task_id": task_id}) == f"Invalid task_id '{task_id}': must be a valid UUID"


ANYTHING: some.SearchStrategy[Any] = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES: list[str] = [*json.loads(delegate_spec([]).parameters)["properties"]]


@pytest.mark.promise("ZC-TYPES")
@hypothesis.given(some.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING)))
def test_random_arguments_are_parsed_or_refused(asked: dict[str, object]) -> None:
    try:
        request = parse(json.dumps(asked))
    except CallRefused:
        return
    assert isinstance(request, Handover | Parallel | CheckResult | ListResults | CancelTask | Await)


@pytest.mark.promise("ZC-TASK-ID")
@hypothesis.given(some.text() | some.text(alphabet="0123456789abcdef-{}/.\\urn:", min_size=30, max_size=48))
def test_an_accepted_task_id_is_canonical_and_stays_in_its_folder(task_id: str) -> None:
    try:
        request = parse(json.dumps({"action": "check_result", "task_id": task_id}))
    except CallRefused:
        return
    assert isinstance(request, CheckResult)
    assert len(request.task_id) == 36
    assert set(request.task_id) <= set("0123456789abcdef-")


def test_a_prompt_is_passed_on_unchanged() -> None:
    assert prompt_of('{"prompt":"  dig\\n"}') == "  dig\n"
