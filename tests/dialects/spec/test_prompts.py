"""The system texts of orchestrators and subagents."""

import pytest

from retinue.core.agent import Agent
from retinue.dialects.shared_context.requests import KEY_NAMESPACE, PARTICIPANT_TEXT, READ_PATTERN, WRITE_DISCIPLINE
from retinue.dialects.spec.answers import COMPOSITION, DISCIPLINE, orchestrator_text, subagent_text

SUFFIX = (
    "You are a subagent. Keep your final response concise (under 1000 tokens). Write detailed findings to shared context "  # noqa: E501
    "rather than including them in your response. Your response will be returned to the orchestrator as a summary of your work."  # noqa: E501
)
AGENTS = (
    Agent(name="researcher", description="Investigates technical issues", tools=("search_logs", "shared_context")),
    Agent(name="writer", description="Drafts reports.", tools=("subagent",)),
)


@pytest.mark.promise("SPEC-8.4-SUFFIX", "SC-8-NAMESPACE", "SC-8-WRITING", "SC-8-READING")
def test_a_subagent_reads_its_prompt_then_the_shared_context_texts_then_the_suffix() -> None:
    assert subagent_text("You research.", ("search_logs", "shared_context")) == (
        f"You research.\n\n{KEY_NAMESPACE}\n\n{WRITE_DISCIPLINE}\n\n{READ_PATTERN}\n\n{SUFFIX}"
    )


@pytest.mark.promise("SPEC-8.4-SUFFIX")
def test_a_subagent_without_shared_context_has_no_text_about_keys() -> None:
    assert subagent_text("You write.\n", ()) == f"You write.\n\n\n{SUFFIX}"
    assert subagent_text("", ()) == SUFFIX


@pytest.mark.promise("SPEC-6.1-AGENTS")
def test_the_system_text_lists_each_registered_agent() -> None:
    text = orchestrator_text(AGENTS, ("subagent",))

    assert text.startswith(
        "Specialist agents that you can delegate to with the subagent tool:\n\n"
        "  researcher - Investigates technical issues. Tools: search_logs, shared_context.\n"
        "  writer - Drafts reports. Tools: none.\n\n"
        "If none of them fits the task at hand, define a new agent"
    )


@pytest.mark.promise("SPEC-6.1-AGENTS")
def test_without_registered_agents_the_system_text_asks_to_define_them() -> None:
    assert orchestrator_text((), ("subagent",)).startswith(
        "You can delegate to specialist agents with the subagent tool. None is registered yet"
    )


@pytest.mark.promise("SPEC-6.2-DISCIPLINE", "SPEC-6.3-COMPOSITION", "SC-8-NAMESPACE", "SC-8-WRITING", "SC-8-READING")
def test_the_system_text_explains_delegation_and_shared_context() -> None:
    _, _, text = orchestrator_text(AGENTS, ("subagent", "shared_context")).partition("list_agents shows those too.")

    assert text == f"\n\n{DISCIPLINE}\n\n{COMPOSITION}\n\n{PARTICIPANT_TEXT}"


def test_system_texts_do_not_mention_tools_that_are_not_offered() -> None:
    assert orchestrator_text(AGENTS, ()) == ""
    assert orchestrator_text(AGENTS, ("shared_context",)) == PARTICIPANT_TEXT
    assert COMPOSITION not in orchestrator_text(AGENTS, ("subagent",))


@pytest.mark.promise("SC-8-NAMESPACE")
def test_the_neutral_keys_are_announced_in_their_groups() -> None:
    words = KEY_NAMESPACE.split()
    announced = [word for word in words if "_" in word and word != "shared_context"]

    assert announced == [
        *("current_phase", "phase_status", "blocking_issues"),
        *("problem_summary", "scope", "constraints")[:1],
        *("findings_summary", "open_questions", "decisions_made"),
        *("deliverables_status", "quality_checks"),
    ]
    assert {"scope", "constraints"} <= set(words)


@pytest.mark.promise("SC-8-WRITING", "SC-8-READING")
@pytest.mark.parametrize(
    ("text", "themes"),
    [
        (WRITE_DISCIPLINE, ["conclusions, decisions, blockers", "id", "500 tokens", "Update", "Delete", "raw data"]),
        (WRITE_DISCIPLINE, ["transcripts", "scratch reasoning", "personal data"]),
        (READ_PATTERN, ["list_keys first", "only the keys", "value_size_tokens", "settled", "drafts", "other tools"]),
        (DISCIPLINE, ["BEFORE", "narrow", "keys", "Collect", "Define", "single tool call", "same task", "raw data"]),
        (COMPOSITION, ["BEFORE", "TASK", "DURING", "AFTER", "problem_summary"]),
    ],
)
def test_the_texts_cover_the_points_of_the_documents(text: str, themes: list[str]) -> None:
    assert [theme for theme in themes if theme not in text] == []
