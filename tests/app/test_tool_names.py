"""Unknown tool names are warned about when a retinue is opened."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import retinue
from retinue.app.registries import DIALECTS, make_dialect
from retinue.app.validation import DELEGATION
from retinue.core.agent import Agent
from retinue.core.policy import NO_TOOLS, Policy
from retinue.dialects.context import DialectContext
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.engine.key_value import JournalKeyValue
from retinue.testing.harness import Harness


@retinue.tool
def mine() -> str:
    """An own tool."""
    return ""


async def test_unknown_tool_names_are_reported_with_a_suggestion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = Policy(allowed_tools=("mine", "delegate"), excluded_tools=("shel",), auto_approve=("weather",))
    agents = [Agent(name="dig", tools=("mine", "file_read", "minee"), policy=profile)]
    with caplog.at_level(logging.WARNING, logger="retinue.app"):
        async with Harness(agents=agents, tools=[mine], policy=Policy(always_ask=("zzz",))):
            pass

    assert caplog.messages == [
        "agent 'dig': tools: there is no tool named \"minee\", so this has no effect; did you mean mine?",
        "agent 'dig': excluded_tools: there is no tool named \"shel\", so this has no effect; did you mean shell?",
        'policy: always_ask: there is no tool named "zzz", so this has no effect',
    ]


async def test_known_tool_names_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(name="dig", tools=("mine", "shell"), policy=Policy(allowed_tools=NO_TOOLS))]
    with caplog.at_level(logging.WARNING, logger="retinue.app"):
        async with Harness(agents=agents, tools=[mine], policy=Policy(excluded_tools=DELEGATION)):
            pass

    assert caplog.messages == []


async def test_the_tools_of_all_dialects_are_known() -> None:
    comms: list[Any] = [MeerkatSettings(enable_comms=True, comms_tools=each) for each in ("send_message", "send")]
    async with Harness() as r:
        engine = r.retinue.supervisor.engine
        dialect_context = DialectContext(
            supervisor=r.retinue.supervisor,
            key_value=JournalKeyValue(engine),
            clock=engine.clock,
            agents=(),
            tool_names=(),
            resolve=lambda model, caller_spec: (caller_spec.provider, model),
        )
        made = [
            make_dialect(name, dialect_context, settings)
            for name in DIALECTS
            for settings in (comms if name == "meerkat" else [None])
        ]

    assert {tool for dialect in made for tool in dialect.tools()} == set(DELEGATION)
