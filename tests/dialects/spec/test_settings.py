"""Settings that switch extensions off and limit tasks, and a session with a thousand tasks."""

import json
import time
from pathlib import Path
from typing import cast

import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.shared_context.requests import parse as parse_context
from retinue.dialects.shared_context.requests import spec_of as context_spec_of
from retinue.dialects.spec.answers import ABOUT_EXTENSIONS, orchestrator_text
from retinue.dialects.spec.requests import parse, spec_of
from retinue.dialects.spec.settings import EXTENSIONS, SpecSettings
from retinue.providers.scripted import says, together
from tests.config.settings_files import error_message, settings
from tests.dialects.spec.harness import Answer, SpecHarness, other_work, read_after, subagent, waiting_orchestrator
from tests.internals import tool_of

WORKER = retinue.Agent(name="worker", tools=("work",))
SPAWN = {"action": "spawn", "agent": "worker", "task": "Work."}
DEFINE = {"action": "define", "name": "x", "description": "d", "system_prompt": "p"}
WRITE = {"action": "write", "key": "scope", "value": "v"}
ACTIONS = ["redefine", "cancel", "progress", "wait"]
CONTEXT_ACTIONS = ["read_batch", "read_history", "snapshot"]


def without(*names: str) -> frozenset[str]:
    return frozenset(EXTENSIONS) - set(names)


@pytest.mark.promise("SPEC-7-OFF")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_is_switched_off_is_unknown_and_is_not_shown(action: str) -> None:
    on = without(action)
    with pytest.raises(CodedRefusal) as refused:
        parse(json.dumps({"action": action}), on)
    spec = spec_of(on)

    assert refused.value.code == "INVALID_ACTION"
    assert refused.value.message.startswith(f"Unknown action: '{action}'. Valid: ['")
    assert f"'{action}'" not in refused.value.message.partition("Valid")[2]
    assert action not in json.loads(spec.parameters)["properties"]["action"]["enum"]
    assert f"{action}:" not in spec.parameters
    assert f" {action}" not in spec.description


@pytest.mark.promise("SC-10-OFF")
@pytest.mark.parametrize("action", CONTEXT_ACTIONS)
def test_an_action_on_shared_context_that_is_switched_off_is_unknown_and_is_not_shown(action: str) -> None:
    on = without(action)
    with pytest.raises(CodedRefusal) as refused:
        parse_context(json.dumps({"action": action}), on)

    assert refused.value.code == "INVALID_ACTION"
    assert action not in json.loads(context_spec_of(on).parameters)["properties"]["action"]["enum"]
    assert action not in context_spec_of(on).parameters


@pytest.mark.promise("SPEC-7-OFF-FIELDS", "SC-10-OFF")
@pytest.mark.parametrize(
    ("extension", "request_", "field", "value"),
    [
        ("depends_on", SPAWN, "depends_on", ["t_01"]),
        ("budgets", SPAWN, "max_input_tokens", 5),
        ("budgets", SPAWN, "max_output_tokens", 5),
        ("extends", DEFINE, "extends", "worker"),
        ("extends", DEFINE, "system_prompt_append", "more"),
        ("extends", DEFINE | {"action": "redefine"}, "extends", "worker"),
        ("ttl", WRITE, "ttl_seconds", 5),
        ("access", WRITE, "readable_by", ["*"]),
        ("access", WRITE, "writable_by", ["*"]),
    ],
)
def test_a_field_that_is_switched_off_is_refused_and_is_not_shown(
    extension: str, request_: Answer, field: str, value: object
) -> None:
    on = without(extension)
    read, spec = (parse_context, context_spec_of(on)) if request_ is WRITE else (parse, spec_of(on))
    with pytest.raises(CodedRefusal) as refused:
        read(json.dumps(request_ | {field: value}), on)

    message = f"Field '{field}' is not available: {extension} is switched off."
    assert (refused.value.code, refused.value.message) == ("INVALID_REQUEST", message)
    assert field not in spec.parameters


@pytest.mark.promise("SPEC-7-OFF", "SC-10-OFF")
async def test_with_everything_off_the_tools_are_those_of_the_core() -> None:
    harness = SpecHarness(settings=SpecSettings(extensions=()))
    async with waiting_orchestrator(harness) as (opened, caller):
        answers = [
            await read_after(opened, caller(0), "subagent", action="cancel", task_id="t_01"),
            await read_after(opened, caller(1), "shared_context", action="snapshot", label="x"),
        ]
        tools = [tool_of(opened, name, "spec") for name in ("subagent", "shared_context")]

    assert [answer["error"] for answer in answers] == ["INVALID_ACTION", "INVALID_ACTION"]
    assert [tool.waits for tool in tools] == [False, False]
    shown = [list(json.loads(tool.spec.parameters)["properties"]) for tool in tools]
    assert shown == [
        [
            *("action", "name", "description", "system_prompt", "tools", "model", "max_turns"),
            *("agent", "task", "task_id"),
        ],
        ["action", "key", "value"],
    ]
    assert not any(told in harness.requests_of("main")[0].system for told in ABOUT_EXTENSIONS.values())


@pytest.mark.promise("SPEC-7-TOLD")
def test_the_system_text_lists_the_extensions_that_are_on() -> None:
    text = orchestrator_text((), ("subagent",), without("cancel"))

    assert "The subagent tool can do more:" in text
    assert [name for name, told in ABOUT_EXTENSIONS.items() if told not in text] == ["cancel"]


@pytest.mark.promise("SPEC-7-SETTINGS")
def test_settings_say_which_extensions_are_on(tmp_path: Path) -> None:
    found = settings(
        tmp_path, '[spec]\nextensions = ["wait", "ttl"]\nmax_running = 7\nmax_input_tokens = 9\nmax_output_tokens = 8\n'
    )

    assert found.section("spec", SpecSettings) == SpecSettings(
        extensions=("wait", "ttl"), max_running=7, max_input_tokens=9, max_output_tokens=8
    )
    assert settings(tmp_path, "").section("spec", SpecSettings).extensions == (
        *("cancel", "progress", "extends", "depends_on", "redefine", "budgets", "wait", "hint"),
        *("read_batch", "read_history", "snapshot", "ttl", "access"),
    )


@pytest.mark.promise("SPEC-7-SETTINGS")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('extensions = ["wait", "undo"]', "unknown extension 'undo'; known: cancel, progress, extends, depends_on"),
        ("extensions = true", "expected an array of strings"),
        ("max_running = 0", "expected a whole number from 1"),
        ("max_input_tokens = 0", "expected a whole number from 1"),
        ('max_output_tokens = "many"', "expected a whole number from 1"),
        ("prefixes = true", "unknown key"),
    ],
)
def test_other_settings_are_mistakes(tmp_path: Path, text: str, told: str) -> None:
    said = error_message(tmp_path, f"[spec]\n{text}\n")

    assert "retinue.toml:2: spec." in said
    assert told in said


@pytest.mark.promise("SPEC-7-SETTINGS")
async def test_unknown_extensions_are_refused_in_the_python_api() -> None:
    harness = SpecHarness(settings=SpecSettings(extensions=("undo",)))
    with pytest.raises(BadInput, match=r"spec\.extensions: unknown extension 'undo'; known: cancel, "):
        async with harness.open():
            pass


@pytest.mark.promise("SPEC-4.3-SETTING")
async def test_settings_limit_the_running_tasks() -> None:
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_running=2))
    harness.script.play("worker", other_work(100), says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        answers = [await read_after(opened, caller(index), "subagent", **SPAWN) for index in range(3)]

    assert [answer.get("task_id") for answer in answers] == ["t_01", "t_02", None]
    assert answers[2] == {"error": "MAX_TASKS_EXCEEDED", "message": "Maximum concurrent tasks (2) reached."}


@pytest.mark.promise("SPEC-8.3-MANY", "SPEC-4.3-SETTING")
async def test_a_thousand_tasks_have_a_thousand_ids_and_none_is_lost() -> None:
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_running=1000))
    harness.script.play("worker", other_work(100), says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        ids = [
            cast("str", (await read_after(opened, caller(index), "subagent", **SPAWN))["task_id"])
            for index in range(1000)
        ]
        refused = await read_after(opened, caller(1000), "subagent", **SPAWN)
        waited = await read_after(opened, caller(3000), "subagent", action="wait", task_ids=ids)
        collected = [
            await read_after(opened, caller(4000 + index), "subagent", action="collect", task_id=task_id)
            for index, task_id in enumerate(ids)
        ]

    assert ids == [f"t_{number:02d}" for number in range(1, 1001)]
    assert refused["message"] == "Maximum concurrent tasks (1000) reached."
    assert waited == {"done": ids, "pending": [], "timed_out": False}
    assert [(each["task_id"], each["result"]) for each in collected] == [(task_id, "done") for task_id in ids]


@pytest.mark.promise("SPEC-8.3-MANY", "SPEC-4.3-SETTING")
async def test_the_status_of_a_task_costs_the_same_among_a_thousand() -> None:
    assert await _cost_of_status(1000) <= 10 * await _cost_of_status(10)


async def _cost_of_status(tasks: int) -> float:
    """The least seconds of CPU of several calls: other work on the machine makes a call dearer, and not cheaper."""
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_running=tasks))
    harness.script.play("worker", other_work(100), says("done"))
    seconds: list[float] = []
    async with waiting_orchestrator(harness) as (opened, caller):
        spawned = [await read_after(opened, caller(index), "subagent", **SPAWN) for index in range(tasks)]
        for index in range(100):
            task_id = spawned[index * tasks // 100]["task_id"]
            began = time.thread_time()
            answer = await read_after(opened, caller(2000 + index), "subagent", action="status", task_id=task_id)
            seconds.append(time.thread_time() - began)
            assert answer["status"] == "running"
    return min(seconds)


@pytest.mark.promise("SPEC-8.3-MANY", "SPEC-3.3-AT-ONCE")
async def test_a_thousand_tasks_may_be_spawned_with_one_reply() -> None:
    harness = SpecHarness(agents=(WORKER,), settings=SpecSettings(max_running=1000))
    harness.script.play("worker", other_work(10), says("done"))
    ids = [f"t_{number:02d}" for number in range(1, 1001)]

    played = await harness.play(
        together(*(subagent("spawn", agent="worker", task=f"Work on part {number}.") for number in range(1000))),
        subagent("wait", task_ids=ids),
        together(*(subagent("collect", task_id=task_id) for task_id in ids)),
        says("enough"),
    )

    assert sorted(str(each["task_id"]) for each in played.answers[:1000]) == sorted(ids)
    assert played.answers[1000] == {"done": ids, "pending": [], "timed_out": False}
    assert [(each["task_id"], each["result"]) for each in played.answers[1001:]] == [(each, "done") for each in ids]
    assert {request.messages[0].text for request in harness.requests_of("worker")} == {
        f"Work on part {n}." for n in range(1000)
    }
