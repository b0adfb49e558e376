"""Parsing, checking and refusing calls of `subagent`."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.events import CallReturned
from retinue.dialects.xzatoma.answers import SubagentRefused
from retinue.dialects.xzatoma.requests import Delegation, parse
from retinue.providers.scripted import calls_verbatim
from tests.conftest import STRESS
from tests.dialects.xzatoma.harness import TASK, XzatomaHarness, refused, says

FINE: dict[str, object] = {"label": "dig", "task_prompt": "find it"}
NO_LABEL = "Invalid input: missing field `label`"
NO_PROMPT = "task_prompt cannot be empty"
TURNS = "max_turns must be between 1 and 50"
BLOCKED = "Tool 'subagent' cannot be used by subagents"


async def answer(arguments: str) -> dict[str, Any]:
    """What a root reads when it makes this call; a subagent, if there is one, has its lines."""
    harness = XzatomaHarness(calls_verbatim("subagent", arguments), says("done"))
    harness.script("main", says("Looked."), says("Found."))
    await harness.open()
    outcome = await harness.run(TASK)
    await harness.close()
    assert outcome.text == "done"
    (root,) = [row for row in harness.rows().values() if row.parent_id is None]
    (returned,) = [event for event in harness.events(root.run_id) if isinstance(event, CallReturned)]
    assert not returned.crashed
    read = json.loads(returned.text)
    assert returned.failed is not read["success"]
    return read


@pytest.mark.promise(
    "XZ-LABEL",
    "XZ-LABEL-UNKNOWN",
    "XZ-PROMPT",
    "XZ-TURN-RANGE",
    "XZ-BLOCKED",
    "XZ-UNKNOWN-TOOL",
    "XZ-MISTYPED",
    "XZ-NULL",
    "XZ-ERROR-METADATA",
)
@pytest.mark.parametrize(
    ("change", "error", "label"),
    [
        ({"label": None}, NO_LABEL, "unknown"),
        ({"label": ""}, NO_LABEL, "unknown"),
        ({"label": " \n"}, NO_LABEL, "unknown"),
        ({"task_prompt": None}, NO_PROMPT, "dig"),
        ({"task_prompt": ""}, NO_PROMPT, "dig"),
        ({"task_prompt": "\t \n"}, NO_PROMPT, "dig"),
        ({"max_turns": 0}, TURNS, "dig"),
        ({"max_turns": 51}, TURNS, "dig"),
        ({"max_turns": -3}, TURNS, "dig"),
        ({"max_turns": 10**400}, TURNS, "dig"),
        ({"max_turns": 1e308}, TURNS, "dig"),
        ({"allowed_tools": ["fetch", "subagent"]}, BLOCKED, "dig"),
        ({"allowed_tools": ["nonexistent_tool"]}, "Unknown tool in allowed_tools: nonexistent_tool", "dig"),
        ({"allowed_tools": ["Fetch"]}, "Unknown tool in allowed_tools: Fetch", "dig"),
        ({"label": 7}, "Invalid input: Expected `str | null`, got `int` - at `$.label`", "unknown"),
        ({"task_prompt": ["x"]}, "Invalid input: Expected `str | null`, got `array` - at `$.task_prompt`", "dig"),
        ({"summary_prompt": {}}, "Invalid input: Expected `str | null`, got `object` - at `$.summary_prompt`", "dig"),
        ({"allowed_tools": "fetch"}, "Invalid input: Expected `array | null`, got `str` - at `$.allowed_tools`", "dig"),
        ({"allowed_tools": ["grep", 1]}, "Invalid input: Expected `str`, got `int` - at `$.allowed_tools[1]`", "dig"),
        ({"max_turns": 2.5}, "Invalid input: Expected `int`, got `float` - at `$.max_turns`", "dig"),
    ],
)
async def test_a_refused_call_gives_its_reason(change: dict[str, object], error: str, label: str) -> None:
    assert await answer(json.dumps(FINE | change)) == refused(error, label=label)


@pytest.mark.promise("XZ-LABEL", "XZ-PROMPT")
async def test_a_field_that_is_left_out_is_missing() -> None:
    assert await answer('{"task_prompt": "find it"}') == refused(NO_LABEL, label="unknown")
    assert await answer('{"label": "dig"}') == refused(NO_PROMPT)
    assert await answer("{}") == refused(NO_LABEL, label="unknown")


@pytest.mark.promise("XZ-MISTYPED")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "Input data was truncated"),
        ("find it", "JSON is malformed: invalid character (byte 5)"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ('{"label": "dig", "task_prompt": "find', "Input data was truncated"),
    ],
)
async def test_arguments_that_are_no_object_are_invalid_input(arguments: str, why: str) -> None:
    assert await answer(arguments) == refused(f"Invalid input: {why}", label="unknown")


@pytest.mark.promise("XZ-ORDER")
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"task_prompt": "", "label": "", "max_turns": "x"}, "Invalid input: Expected"),
        ({"task_prompt": "", "label": None, "max_turns": 0}, NO_LABEL),
        ({"task_prompt": "", "label": "", "max_turns": 0}, NO_PROMPT),
        ({"label": "", "max_turns": 0, "allowed_tools": ["subagent"]}, NO_LABEL),
        ({"max_turns": 0, "allowed_tools": ["subagent"]}, TURNS),
        ({"allowed_tools": ["subagent", "nonexistent_tool"]}, BLOCKED),
    ],
)
async def test_checks_are_made_in_the_documents_order(wrong: dict[str, object], error: str) -> None:
    """The first check, of the depth, is shown where subagents nest."""
    read = await answer(json.dumps(FINE | wrong))

    assert str(read["error"]).startswith(error)


def test_a_call_with_every_field_is_understood() -> None:
    example = {
        "label": "research_quantum_computing",
        "task_prompt": "Research quantum computing breakthroughs in 2024.",
        "summary_prompt": "Create an executive summary.",
        "allowed_tools": ["fetch", "grep"],
        "max_turns": 8,
        "unheard_of": True,
    }
    assert parse(json.dumps(example)) == Delegation(
        label="research_quantum_computing",
        task_prompt="Research quantum computing breakthroughs in 2024.",
        summary_prompt="Create an executive summary.",
        allowed_tools=("fetch", "grep"),
        max_turns=8,
    )


# ---- whatever a model writes ----------------------------------------------------------------------------------------

DOCUMENTED = re.compile(
    r"Invalid input: .+|task_prompt cannot be empty|max_turns must be between 1 and 50"
    r"|Tool 'subagent' cannot be used by subagents|Unknown tool in allowed_tools: .*",
    re.DOTALL,
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HUGE = st.sampled_from(["x" * 300_000, "🦀" * 100_000, "\0" * 10_000, " " * 100_000])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS | HUGE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "label": WORDS | HUGE | ANYTHING,
        "task_prompt": WORDS | HUGE | ANYTHING,
        "summary_prompt": WORDS | HUGE | ANYTHING,
        "allowed_tools": st.lists(st.sampled_from(["fetch", "grep", "subagent"]) | WORDS | HUGE) | ANYTHING,
        "max_turns": st.integers(-2, 60) | ANYTHING,
        "unheard_of": ANYTHING,
    },
)
NAMES = st.sampled_from(["label", "task_prompt", "summary_prompt", "allowed_tools", "max_turns", "unheard_of"])
ONE_CHANGED = st.tuples(NAMES, st.integers(-2, 60) | st.just(["grep"]) | WORDS | HUGE | ANYTHING).map(
    lambda changed: FINE | {changed[0]: changed[1]}
)
ARGUMENTS = (PARAMETERS | ONE_CHANGED).map(json.dumps) | ANYTHING.map(json.dumps) | WORDS | st.just("[" * 100_000)


@pytest.mark.promise("XZ-NEVER-RAISES", "XZ-SHAPE", "XZ-STRINGS", "XZ-ERROR-METADATA")
@settings(max_examples=1000 if STRESS else 100)
@given(arguments=ARGUMENTS)
async def test_random_arguments_are_answered_with_the_documented_object(arguments: str) -> None:
    read = await answer(arguments)

    assert list(read) == ["success", "output", "error", "metadata"]
    metadata = read["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())
    if read["success"]:
        assert read == {"success": True, "output": "Found.", "error": None, "metadata": metadata}
        assert metadata["subagent_label"] == json.loads(arguments)["label"]
        assert len(metadata) == 6
    else:
        assert DOCUMENTED.fullmatch(read["error"])
        assert read == refused(read["error"], label=metadata["subagent_label"])


@pytest.mark.promise("XZ-NEVER-RAISES")
@given(arguments=ARGUMENTS | st.text())
def test_a_call_is_understood_or_refused(arguments: str) -> None:
    try:
        understood = parse(arguments)
    except SubagentRefused as refusal:
        error = str(refusal)
    else:
        assert understood.label.strip()
        assert understood.task_prompt.strip()
        assert understood.summary_prompt is not None
        assert understood.summary_prompt.strip()
        return
    assert DOCUMENTED.fullmatch(error)
