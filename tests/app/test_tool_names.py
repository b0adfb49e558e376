"""Unknown tool names are warned about when a retinue is opened."""

from __future__ import annotations

import logging

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.policy import NO_TOOLS, Policy
from retinue.dialects import registry
from retinue.dialects.claude import ClaudeSettings
from retinue.dialects.meerkat import MeerkatSettings
from retinue.testing.harness import Harness, dialect_context


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
        async with Harness(agents=agents, tools=[mine], policy=Policy(excluded_tools=registry.tool_names())):
            pass

    assert caplog.messages == []


def test_each_dialect_registers_the_tools_that_it_can_offer_with_any_settings() -> None:
    comms = [MeerkatSettings(enable_comms=True, comms_tools=each) for each in ("send_message", "send")]
    claude = [ClaudeSettings(agent_tool=each) for each in ("Agent", "Task")]
    settings: dict[str, list[MeerkatSettings] | list[ClaudeSettings]] = {"meerkat": comms, "claude": claude}

    for entry in registry.entries():
        made = [entry.make(dialect_context(), each) for each in settings.get(entry.name, [None])]
        assert {name for dialect in made for name in dialect.tools()} == set(entry.tool_names)
        assert {dialect.name for dialect in made} == {entry.name}
    assert len(registry.tool_names()) == 32
