"""The registered and the defined agents of a session, and the decisions about definitions."""

import json

import pytest

from retinue.core.agent import Agent
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.spec.dialect import agent_named, agents_of, define, listing
from retinue.dialects.spec.requests import Define

RESEARCHER = Agent(
    name="researcher",
    description="Investigates technical issues",
    system_prompt="You research.",
    tools=("search_logs", "subagent", "shared_context"),
    model="anthropic:claude-sonnet-4-5",
    max_turns=100,
)
WRITER = Agent(name="writer", description="Drafts reports", system_prompt="You write.")
REGISTERED = (RESEARCHER, WRITER)


class Session:
    """The shelf of defined agents, changed as a store would change it."""

    def __init__(self) -> None:
        self.key_value: dict[str, bytes] = {}

    def define(self, name: str, *, prompt: str = "You work.", tools: tuple[str, ...] = (), turns: int = 10) -> object:
        """Define an agent, and give what the model reads."""
        request = Define(
            name=name, description=f"The {name}", system_prompt=prompt, tools=tools, model="", max_turns=turns
        )
        decision = define(request, self.key_value, registered=REGISTERED, tools=("shared_context", "run"))
        self.key_value.update(decision.puts)
        return json.loads(decision.answer)

    def agents(self) -> dict[str, Agent]:
        """Every agent of the session."""
        return agents_of(REGISTERED, self.key_value)


@pytest.mark.promise("SPEC-3.2-ANSWER", "SPEC-2.1-REGISTRY")
def test_a_defined_agent_can_be_found_like_a_registered_one() -> None:
    session = Session()

    assert session.define("remediator", prompt="You fix.", tools=("run",), turns=15) == {
        "defined": "remediator",
        "description": "The remediator",
    }
    assert agent_named(session.agents(), "remediator") == Agent(
        name="remediator", description="The remediator", system_prompt="You fix.", tools=("run",), max_turns=15
    )
    assert agent_named(session.agents(), "writer").system_prompt == "You write."


@pytest.mark.promise("SPEC-3.2-ALREADY-EXISTS", "SPEC-5-SHAPE")
def test_a_name_can_be_given_once() -> None:
    session = Session()
    session.define("analyst")

    for taken in ("analyst", "writer"):
        before = dict(session.key_value)
        assert session.define(taken, prompt="another") == {
            "error": "AGENT_ALREADY_EXISTS",
            "message": f"Agent already registered: '{taken}'",
        }
        assert session.key_value == before


@pytest.mark.promise("SPEC-3.2-ORDER", "SPEC-3.2-INVALID-TOOL")
def test_uniqueness_is_checked_last() -> None:
    assert Session().define("writer", tools=("nope",)) == {
        "error": "INVALID_TOOL",
        "message": "Tool not in application registry: 'nope'",
        "available_tools": "shared_context, run",
    }


@pytest.mark.promise("SPEC-3.3-AGENT-NOT-FOUND", "SPEC-5-SHAPE")
def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(CodedRefusal) as refused:
        agent_named(Session().agents(), "plumber")

    assert refused.value.answer == {"error": "AGENT_NOT_FOUND", "message": "Unknown agent: 'plumber'"}


@pytest.mark.promise("SPEC-3.1-FIELDS", "SPEC-3.1-ORDER", "SPEC-3.1-CLAMPED", "SPEC-2.2-NO-TOOLS")
def test_agents_are_listed_as_they_will_be_used_registered_ones_first() -> None:
    session = Session()
    session.define("zebra", turns=25)
    session.define("ant", tools=("shared_context",))

    def shown(model: str) -> str:
        return model.partition(":")[2] or "root-model"

    assert listing(session.agents(), shown) == {
        "agents": [
            {
                "name": "researcher",
                "description": "Investigates technical issues",
                "model": "claude-sonnet-4-5",
                "max_turns": 25,
                "tools": ("search_logs", "shared_context"),
            },
            {
                "name": "writer",
                "description": "Drafts reports",
                "model": "root-model",
                "max_turns": 10,
                "tools": (),
            },
            {"name": "zebra", "description": "The zebra", "model": "root-model", "max_turns": 25, "tools": ()},
            {
                "name": "ant",
                "description": "The ant",
                "model": "root-model",
                "max_turns": 10,
                "tools": ("shared_context",),
            },
        ]
    }


@pytest.mark.promise("SPEC-2.1-REGISTRY")
def test_an_agent_that_the_application_registers_later_wins_over_a_defined_one() -> None:
    session = Session()
    session.define("analyst")
    analyst = Agent(name="analyst", system_prompt="The application's own.")

    assert agents_of((*REGISTERED, analyst), session.key_value)["analyst"].system_prompt == "The application's own."
