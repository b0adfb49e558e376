"""Random arguments: both tools answer with one JSON object and documented codes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.providers.scripted import says
from tests.dialects.spec.harness import Answer, SpecHarness, waiting_orchestrator
from tests.internals import tool_of

CODES = {
    *("AGENT_NOT_FOUND", "AGENT_ALREADY_EXISTS", "TASK_NOT_FOUND", "TASK_NOT_READY", "TASK_TOO_LARGE"),
    *("MAX_TASKS_EXCEEDED", "INVALID_AGENT_NAME", "INVALID_TOOL", "PROMPT_TOO_LARGE"),
    *(
        "ACCESS_DENIED",
        "KEY_NOT_FOUND",
        "VALUE_TOO_LARGE",
        "STORE_FULL",
        "INVALID_KEY",
        "INVALID_ACTION",
        "INVALID_REQUEST",
    ),
}
WORKER = retinue.Agent(name="worker", tools=("shared_context",))

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HUGE = st.integers(0, 50_000).map("x".__mul__)
NAMES = st.sampled_from(["worker", "analyst", "t_01", "t_02", "scope"])
TEXTS = NAMES | HUGE | ANYTHING
FIELDS = {
    **dict.fromkeys(("name", "description", "system_prompt", "model", "agent", "task", "task_id"), TEXTS),
    **dict.fromkeys(("key", "value", "written_by", "label", "extends", "system_prompt_append"), TEXTS),
    **dict.fromkeys(("depends_on", "task_ids", "keys"), st.lists(NAMES, max_size=3) | ANYTHING),
    **dict.fromkeys(
        ("readable_by", "writable_by"), st.lists(st.sampled_from(["*", "x", "[", ""]), max_size=2) | ANYTHING
    ),
    **dict.fromkeys(("max_input_tokens", "max_output_tokens", "timeout_ms", "ttl_seconds"), st.integers() | ANYTHING),
    "mode": st.sampled_from(["any", "all", 1, 2]) | ANYTHING,
    "versions": st.lists(st.integers(), max_size=3) | ANYTHING,
    "tools": st.lists(st.sampled_from(["work", "shared_context", "subagent", "rm_rf"]), max_size=3) | ANYTHING,
    "max_turns": st.integers() | ANYTHING,
}
SENSIBLE = {
    "define": ("name", "description", "system_prompt"),
    "spawn": ("agent", "task"),
    "status": ("task_id",),
    "collect": ("task_id",),
    "cancel": ("task_id",),
    "progress": ("task_id",),
    "redefine": ("name", "description", "system_prompt"),
    "wait": ("task_ids",),
    "write": ("key", "value"),
    "read": ("key",),
    "delete": ("key",),
    "read_batch": ("keys",),
    "read_history": ("key",),
    "snapshot": ("label",),
    "list_agents": (),
    "list_keys": (),
}


def sensible(action: str) -> st.SearchStrategy[dict[str, object]]:
    """Calls that have what their action needs, and perhaps more."""
    needed = SENSIBLE[action]
    more = {name: values for name, values in FIELDS.items() if name not in needed}
    return st.fixed_dictionaries({"action": st.just(action), **{name: FIELDS[name] for name in needed}}, optional=more)


SENSIBLE_CALLS = st.sampled_from(sorted(SENSIBLE)).flatmap(sensible)
ARGUMENTS = SENSIBLE_CALLS | st.fixed_dictionaries({}, optional={"action": ANYTHING, **FIELDS}) | ANYTHING
CALLS = st.lists(st.tuples(st.sampled_from(["subagent", "shared_context"]), ARGUMENTS), max_size=10)


@pytest.mark.promise("SPEC-5-NEVER-RAISES", "SPEC-5-SHAPE", "SC-5-NEVER-RAISES", "SC-5-SHAPE")
@settings(max_examples=30)
@given(CALLS)
async def test_every_call_is_answered_with_an_object_and_every_error_has_a_documented_code(
    wishes: list[tuple[str, object]],
) -> None:
    harness = SpecHarness(agents=(WORKER,))
    harness.script.play("worker", says("done"))
    async with waiting_orchestrator(harness) as (opened, caller):
        for index, (name, arguments) in enumerate(wishes):
            tool = tool_of(opened, name, "spec")
            answer: Answer = json.loads((await tool.call(json.dumps(arguments), caller(index))).text)
            assert type(answer) is dict
            if "message" in answer:
                assert set(answer) == {"error", "message"}
                assert answer["error"] in CODES
