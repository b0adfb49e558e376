"""Refusals of `meerkat`: arguments, prompts, providers, models and ids, in the order of the checks."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.events import CallReturned
from retinue.core.run import Limits
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.meerkat.comms import NoArguments, PeerMessage, PeerRequest, PeerResponse, SendArguments, names
from retinue.dialects.meerkat.requests import (
    AGENT_TOOLS,
    ForkRequest,
    ListRequest,
    OneRequest,
    SpawnArguments,
    StrictSpawnArguments,
    access_of,
    agent_id_of,
    arguments_struct,
    budget_of,
    fixed_budget,
)
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.providers.scripted import ScriptedReply, calls, calls_verbatim, hangs, says, together
from tests.dialects.meerkat.harness import COMMS, MANY, TASK, MeerkatHarness, about, fork, spawn

SHAPE = "Invalid arguments: Invalid parameters: "
HUGE = "x" * 2_000_000
UNKNOWN_ID = "019467d9-7e3a-7000-8000-000000000000"

PRO, OPUS = "gpt-5.2-pro", "claude-opus-4-5"
ANTHROPIC = "Allowed models: claude-opus-4-6, claude-sonnet-4-5, claude-opus-4-5"
OPENAI = "Allowed models: gpt-5.2, gpt-5.2-pro"
GEMINI = "Allowed models: gemini-3-flash-preview, gemini-3-pro-preview"


async def refusals(*lines: ScriptedReply, settings: MeerkatSettings | None = None, **options: Any) -> list[str]:
    """What the root reads when it makes these calls, none of which starts anything."""
    harness = MeerkatHarness(together(*lines), says("Done."), settings=settings, **options)
    await harness.play()
    assert [row.path for row in harness.rows()] == ["root"]
    return harness.texts()


# ---- shapes ---------------------------------------------------------------------------------------------------------

SHAPES = [
    ("agent_spawn", "", "Object missing required field `prompt`"),
    ("agent_spawn", "{}", "Object missing required field `prompt`"),
    ("agent_spawn", "[]", "Expected `object`, got `array`"),
    ("agent_spawn", "null", "Expected `object`, got `null`"),
    ("agent_spawn", '{"prompt": 7}', "Expected `str`, got `int` - at `$.prompt`"),
    ("agent_spawn", '{"prompt": null}', "Expected `str`, got `null` - at `$.prompt`"),
    ("agent_spawn", '{"prompt": "x"', "Input data was truncated"),
    ("agent_spawn", '{"prompt": "x", "provider": 7}', "Expected `str | null`, got `int` - at `$.provider`"),
    ("agent_spawn", '{"prompt": "x", "model": []}', "Expected `str | null`, got `array` - at `$.model`"),
    (
        "agent_spawn",
        '{"prompt": "x", "system_prompt": {}}',
        "Expected `str | null`, got `object` - at `$.system_prompt`",
    ),
    ("agent_spawn", '{"prompt": "x", "host_mode": "yes"}', "Expected `bool | null`, got `str` - at `$.host_mode`"),
    (
        "agent_spawn",
        '{"prompt": "x", "tool_access": []}',
        "Expected `str | object | null`, got `array` - at `$.tool_access`",
    ),
    (
        "agent_spawn",
        '{"prompt": "x", "tool_access": {}}',
        "Object missing required field `policy` - at `$.tool_access`",
    ),
    (
        "agent_spawn",
        '{"prompt": "x", "tool_access": {"policy": "all"}}',
        "Invalid enum value 'all' - at `$.tool_access.policy`",
    ),
    ("agent_spawn", '{"prompt": "x", "tool_access": {"policy": "allow_list"}}', "tool_access: allow_list needs tools"),
    ("agent_spawn", '{"prompt": "x", "tool_access": {"policy": "deny_list"}}', "tool_access: deny_list needs tools"),
    (
        "agent_spawn",
        '{"prompt": "x", "tool_access": "inherit"}',
        "tool_access: JSON is malformed: invalid character (byte 0)",
    ),
    (
        "agent_spawn",
        '{"prompt": "x", "tool_access": {"policy": "allow_list", "tools": [7]}}',
        "Expected `str`, got `int` - at `$.tool_access.tools[0]`",
    ),
    ("agent_spawn", '{"prompt": "x", "budget": 7}', "Expected `str | object | null`, got `int` - at `$.budget`"),
    ("agent_spawn", '{"prompt": "x", "budget": {"max_tokens": -1}}', "Expected `int` >= 0 - at `$.budget.max_tokens`"),
    (
        "agent_spawn",
        '{"prompt": "x", "budget": {"max_turns": 1.5}}',
        "Expected `int | null`, got `float` - at `$.budget.max_turns`",
    ),
    (
        "agent_spawn",
        '{"prompt": "x", "budget": {"max_tool_calls": "3"}}',
        "Expected `int | null`, got `str` - at `$.budget.max_tool_calls`",
    ),
    ("agent_spawn", '{"prompt": "x", "timeout": 9}', "Object contains unknown field `timeout`"),
    ("agent_fork", "{}", "Object missing required field `prompt`"),
    ("agent_fork", '{"prompt": ["x"]}', "Expected `str`, got `array` - at `$.prompt`"),
    ("agent_fork", '{"prompt": "x", "budget_policy": 7}', "Expected `str | null`, got `int` - at `$.budget_policy`"),
    (
        "agent_fork",
        '{"prompt": "x", "tool_access": 7}',
        "Expected `str | object | null`, got `int` - at `$.tool_access`",
    ),
    ("agent_status", "{}", "Object missing required field `agent_id`"),
    ("agent_status", '{"agent_id": 7}', "Expected `str`, got `int` - at `$.agent_id`"),
    ("agent_cancel", "{}", "Object missing required field `agent_id`"),
    ("agent_cancel", '{"agent_id": null}', "Expected `str`, got `null` - at `$.agent_id`"),
    ("agent_list", "[]", "Expected `object`, got `array`"),
]


@pytest.mark.promise("MK-SHAPE", "MK-STRICT")
@pytest.mark.parametrize(("tool", "arguments", "why"), SHAPES)
async def test_arguments_of_the_wrong_type_are_refused(tool: str, arguments: str, why: str) -> None:
    assert await refusals(calls_verbatim(tool, arguments)) == [SHAPE + why]


@pytest.mark.promise("MK-STRICT")
async def test_unknown_fields_are_refused_by_spawn_without_comms_only() -> None:
    more = {"colour": "red"}
    hidden = MeerkatHarness(
        together(spawn(**more), fork(**more, host_mode=True)),
        calls("agent_list", **more),
        says("Ok."),
        spawned={"find it": [says("Found.")]},
        forked={"look below": [says("NoArguments.")]},
        settings=COMMS,
    )
    await hidden.play()

    assert [row.path for row in hidden.rows()] == ["root", "root/sub-agent/1", "root/fork/2"]
    assert hidden.answers()[2]["total_count"] == 2


@pytest.mark.promise("MK-NEVER-RAISES")
async def test_huge_texts_are_refused_briefly() -> None:
    texts = await refusals(
        spawn(provider=HUGE),
        spawn(model=HUGE),
        spawn(tool_access=HUGE),
        spawn(tool_access={"policy": HUGE}),
        calls_verbatim("agent_spawn", "[" * 100_000),
        calls_verbatim("agent_spawn", '{"prompt":"\ud800"}'),
        fork(provider=HUGE),
        calls("agent_status", agent_id=HUGE),
        calls("agent_cancel", agent_id="-" * 1_000_000 + UNKNOWN_ID),
        spawn(budget={"max_tokens": 10**30}),
    )

    assert [len(text) < 400 for text in texts] == [True] * 10
    assert texts[0] == f"Invalid arguments: Invalid provider: {'x' * 200}..."
    assert (
        texts[1]
        == f"Invalid arguments: Model '{'x' * 200}...' is not in allowlist for provider 'anthropic'. {ANTHROPIC}"
    )
    assert texts[7] == "Invalid arguments: Invalid agent_id format: badly formed hexadecimal UUID string"
    assert texts[8] == f"Execution failed: Sub-agent not found: {UNKNOWN_ID}"
    assert texts[9] == f"{SHAPE}Expected `int` <= 9223372036854775807 - at `$.budget.max_tokens`"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "prompt", "provider", "model", "tool_access", "budget", "system_prompt", "host_mode", "budget_policy", "agent_id",
    "policy", "tools", "to", "body", "intent", "params", "in_reply_to", "status", "result", "kind", "max_tokens",
)  # fmt: skip
ARGUMENTS = (
    st.text() | JSON.map(json.dumps) | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6).map(json.dumps)
)
REQUESTS = (
    SpawnArguments, StrictSpawnArguments, ForkRequest, OneRequest, ListRequest,
    PeerMessage, PeerRequest, PeerResponse, SendArguments, NoArguments,
)  # fmt: skip


@pytest.mark.promise("MK-NEVER-RAISES")
@given(ARGUMENTS, st.text())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_random_arguments_are_parsed_or_refused(arguments: str, text: str) -> None:
    attempts: list[Callable[[], object]] = [
        *(lambda kind=kind: arguments_struct(arguments, kind) for kind in REQUESTS),
        lambda: access_of(text),
        lambda: budget_of(text),
        lambda: access_of(arguments),
        lambda: budget_of(arguments),
        lambda: agent_id_of(text),
        lambda: fixed_budget(text),
    ]
    refused = [text for text in map(_refusal, attempts) if text]

    assert [text for text in refused if not text.startswith("Invalid arguments: ") or len(text) > 400] == []


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except CallRefused as refusal:
        return str(refusal)
    return ""


WORDS: list[object] = [
    None, True, 0, -1, 3, 1.5, 10**30, "", " ", "x", HUGE[:5_000], "\u0000", "\U0001f600", UNKNOWN_ID, "parent",
    "claude", "equal", "fixed:0", "remaining", "proportional", "completed",
    "peer_message", "peer_request", "peer_response",
    [], ["x"], {}, {"policy": "allow_list", "tools": ["grep"]}, {"policy": "inherit"}, '{"policy": "inherit"}',
    {"max_turns": 1}, {"max_tokens": 2**63}, {"max_tokens": 9}, [[[[]]]],
]  # fmt: skip


@pytest.mark.promise("MK-NEVER-RAISES")
@pytest.mark.parametrize("comms_tools", ["send_message", "send"])
async def test_no_tool_raises_for_random_arguments(comms_tools: Any) -> None:
    chance = random.Random(comms_tools)
    settings = MeerkatSettings(
        enable_comms=True, nested_tools=True, comms_tools=comms_tools, concurrency_limits=MANY, default_budget=5_000
    )
    tools = (*AGENT_TOOLS, *names(settings))

    def anything() -> ScriptedReply:
        fields = {chance.choice(FIELDS): chance.choice(WORDS) for _ in range(chance.randint(0, 5))}
        if chance.random() < 0.7:
            fields |= {"prompt": "dig", "to": "parent", "agent_id": UNKNOWN_ID}
        return calls(chance.choice(tools), **fields)

    lines = [together(*(anything() for _ in range(30))) for _ in range(25)]
    harness = MeerkatHarness(*lines, *[says("Done.")] * 300, settings=settings)
    for agent in ("sub-agent", "fork", "host"):
        harness.script(agent, *[says("Dug.")] * 300)
    async with harness:
        await harness.run(TASK, limits=Limits(max_turns=400))
        harness.provider.script.verify = lambda: None

    made = [event for row in harness.rows() for event in harness.events(row.run_id) if isinstance(event, CallReturned)]
    assert len(made) == 750
    assert [event.text for event in made if event.crashed] == []
    refused = [event.text for event in made if event.failed]
    assert [text for text in refused if not text.startswith(("Invalid arguments: ", "Execution failed: "))] == []
    assert 200 < len(refused) < 740
    bugs = [row for row in harness.rows() if row.progress.outcome is None or row.progress.outcome.reason == "bug"]
    assert bugs == []


# ---- prompts and order ----------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-EMPTY", "MK-FORK-EMPTY", "MK-HOST-COMMS")
async def test_blank_prompts_and_host_mode_without_comms_are_refused() -> None:
    assert await refusals(spawn(""), spawn(" \n\t"), fork(""), fork("  "), spawn(host_mode=True)) == [
        "Invalid arguments: Prompt cannot be empty",
        "Invalid arguments: Prompt cannot be empty",
        "Invalid arguments: Fork prompt cannot be empty",
        "Invalid arguments: Fork prompt cannot be empty",
        "Invalid arguments: host_mode requires comms to be enabled for sub-agents",
    ]


@pytest.mark.promise("MK-ORDER", "MK-HOST-COMMS", "MK-PROVIDER", "MK-MODEL", "MK-CLIENT")
async def test_a_call_is_checked_in_the_order_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    everything: dict[str, Any] = {"prompt": " ", "host_mode": True, "provider": "bard", "model": "gpt-5.2"}
    mended: list[dict[str, Any]] = [
        {"prompt": "find it"},
        {"host_mode": False},
        {"provider": "gemini"},
        {"model": "gemini-3-pro-preview"},
    ]
    attempts = [everything]
    for change in mended:
        attempts.append(attempts[-1] | change)
    providers: dict[str, Any] = {"providers": {}}

    lines = [calls("agent_spawn", **attempt) for attempt in attempts]
    assert await refusals(calls("agent_spawn", **(everything | {"budget": 7})), *lines, **providers) == [
        SHAPE + "Expected `str | object | null`, got `int` - at `$.budget`",
        "Invalid arguments: Prompt cannot be empty",
        "Invalid arguments: host_mode requires comms to be enabled for sub-agents",
        "Invalid arguments: Invalid provider: bard",
        f"Invalid arguments: Model 'gpt-5.2' is not in allowlist for provider 'gemini'. {GEMINI}",
        "Execution failed: Failed to create LLM client: Missing API key for provider: gemini",
    ]


@pytest.mark.promise("MK-ORDER", "MK-NESTED-OFF")
async def test_limits_and_nesting_come_before_the_prompt_and_limits_before_nesting() -> None:
    def below(depth: int) -> MeerkatSettings:
        limits = ConcurrencyLimits(max_depth=depth)
        return MeerkatSettings(nested_tools=True, allow_nested_spawn=False, concurrency_limits=limits)

    read: list[str] = []
    for depth in (1, 2):
        lines = {"find it": [spawn(" "), says("Found.")]}
        harness = MeerkatHarness(spawn(), says("Ok."), says("Ok."), spawned=lines, settings=below(depth))
        await harness.play()
        read += harness.texts("root/sub-agent/1")

    assert read == [
        "Execution failed: Cannot spawn sub-agent: concurrency or depth limit reached",
        "Execution failed: Nested spawning is not allowed at this depth",
    ]


# ---- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-ID-FORMAT", "MK-NOT-FOUND")
@pytest.mark.parametrize("tool", ["agent_status", "agent_cancel"])
async def test_malformed_and_unknown_ids_are_refused(tool: str) -> None:
    texts = await refusals(calls(tool, agent_id="sub-agent-019467d97e3a"), calls(tool, agent_id=UNKNOWN_ID))

    assert texts == [
        "Invalid arguments: Invalid agent_id format: badly formed hexadecimal UUID string",
        f"Execution failed: Sub-agent not found: {UNKNOWN_ID}",
    ]


@pytest.mark.promise("MK-NOT-FOUND")
async def test_sub_agents_of_another_run_are_unknown() -> None:
    other: list[str] = []

    def ask(_: object) -> ScriptedReply:
        return together(calls("agent_status", agent_id=other[0]), calls("agent_cancel", agent_id=other[0]))

    harness = MeerkatHarness(spawn(), about("agent_status"), hangs(), spawned={"find it": [hangs()]})
    harness.script("main", ask, calls("agent_list"), says("None."), task="second")
    async with harness:
        run = await harness.retinue.spawn("first")
        await asyncio.sleep(1)
        other += [row.run_id for row in harness.rows() if row.depth == 1]
        assert (await harness.run("second")).text == "None."
        second = next(row.run_id for row in harness.rows() if row.depth == 0 and row.run_id != run.run_id)
        await run.cancel()

    texts = [json.loads(text)["total_count"] if text[0] == "{" else text for text in _texts(harness, second)]
    assert texts == [f"Execution failed: Sub-agent not found: {other[0]}"] * 2 + [0]


def _texts(harness: MeerkatHarness, run_id: str) -> list[str]:
    return [event.text for event in harness.events(run_id) if isinstance(event, CallReturned)]
