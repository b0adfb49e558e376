"""The example of the documents, from beginning to end."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.core.messages import UserMessage
from retinue.dialects.spec.answers import subagent_text
from retinue.dialects.spec.settings import DEFAULTS
from retinue.providers.scripted import Line, calls, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.spec.harness import SpecHarness, context, other_work, subagent
from tests.dialects.spec.incident import AGENTS, TOOLS

SUMMARY = (
    "Root cause identified: connection pool reduced from 200 to 20 in Feb 18 config change. "
    "Thread starvation confirmed in staging. Details in shared context."
)
INVESTIGATE = (
    "Investigate the problem described in problem_summary. Check connection pool settings and thread utilization. "
    "Write findings to shared context key findings_summary."
)


def written(key: str, version: int, at: str, by: str = "orchestrator") -> dict[str, object]:
    """What `write` answers."""
    return {"key": key, "version": version, "written_by": by, "written_at": at}


def researcher_lines() -> list[Line]:
    """Seven turns of investigation."""
    return [
        context("list_keys"),
        context("read", key="problem_summary"),
        calls("search_logs", query="pool"),
        together(calls("query_metrics", name="threads"), calls("query_metrics", name="pool_size")),
        context("write", key="findings_summary", value="Pool went from 200 to 20."),
        context("write", key="open_questions", value="Was the pool size change intentional?"),
        says(SUMMARY),
    ]


@pytest.mark.promise(
    "SPEC-2.1-REGISTRY",
    "SPEC-3.1-FIELDS",
    "SPEC-3.2-ANSWER",
    "SPEC-3.3-ANSWER",
    "SPEC-3.3-AT-ONCE",
    "SPEC-3.3-FIRST-MESSAGE",
    "SPEC-3.3-TOOLS",
    "SPEC-3.3-SHARED-CONTEXT",
    "SPEC-3.4-RUNNING",
    "SPEC-3.4-COMPLETED",
    "SPEC-3.4-LIVE",
    "SPEC-3.5-COMPLETED",
    "SPEC-8.3-IDS",
    "SPEC-8.5-SAME-STORE",
    "SPEC-8.6-IDENTITY",
    "SC-2-DELETE",
)
@pytest.mark.parametrize("kept", ["in memory", "in a file"])
async def test_an_orchestrator_finds_and_mends_a_production_issue_with_three_specialists(
    kept: str, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "retinue.db") if kept == "in a file" else MemoryStore()
    researcher, writer = AGENTS
    agents = (researcher, replace(writer, model=""))  # the model of its parent
    harness = SpecHarness(agents=agents, tools=TOOLS, store=store)
    harness.script.play("researcher", *researcher_lines())
    harness.script.play(
        "remediator",
        context("read", key="decisions_made"),
        calls("run_staging_command", command="revert"),
        calls("update_config", pool=200),
        context("write", key="remediation_status", value="Reverted in staging."),
        says("Config reverted in staging."),
    )
    harness.script.play(
        "writer",
        context("read", key="findings_summary"),
        context("write", key="incident_report", value="The pool was too small."),
        says("Incident summary drafted."),
    )
    remediation_prompt = "You are a remediation specialist. Execute the approved fix."

    played = await harness.play(
        together(
            context("write", key="problem_summary", value="Throughput dropped 30% after config change on Feb 18."),
            context("write", key="scope", value="Identify root cause. Read-only access to production."),
        ),
        subagent("list_agents"),
        subagent("spawn", agent="researcher", task=INVESTIGATE),
        other_work(2.5),
        subagent("status", task_id="t_01"),
        other_work(10),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        context("read", key="findings_summary"),
        context("read", key="open_questions"),
        together(
            context("write", key="decisions_made", value="User approves revert."),
            context("delete", key="open_questions"),
        ),
        subagent(
            "define",
            name="remediator",
            description="Executes remediation steps",
            system_prompt=remediation_prompt,
            tools=["shared_context", "run_staging_command", "update_config"],
            max_turns=15,
        ),
        together(
            subagent("spawn", agent="remediator", task="Execute the approved revert."),
            subagent("spawn", agent="writer", task="Draft an incident summary."),
        ),
        other_work(2.5),
        together(subagent("status", task_id="t_02"), subagent("status", task_id="t_03")),
        subagent("collect", task_id="t_03"),
        subagent("collect", task_id="t_02"),
        context("read", key="remediation_status"),
        says("All is well again."),
    )

    assert played.outcome.text == "All is well again."
    assert played.answers == [
        written("problem_summary", 1, "2026-01-01T00:00:01Z"),
        written("scope", 1, "2026-01-01T00:00:01Z"),
        {
            "agents": [
                {
                    "name": "researcher",
                    "description": "Investigates technical issues using logs and metrics",
                    "model": "claude-sonnet-4-20250514",
                    "max_turns": 10,
                    "tools": ["search_logs", "query_metrics", "shared_context"],
                },
                {
                    "name": "writer",
                    "description": "Drafts documentation and reports",
                    "model": "lead-model",
                    "max_turns": 5,
                    "tools": ["shared_context"],
                },
            ]
        },
        {"task_id": "t_01", "agent": "researcher", "status": "running"},
        {"task_id": "t_01", "agent": "researcher", "status": "running", "turns_used": 4},
        {"task_id": "t_01", "agent": "researcher", "status": "completed", "turns_used": 7},
        {"task_id": "t_01", "agent": "researcher", "status": "completed", "result": SUMMARY, "turns_used": 7},
        {
            **written("findings_summary", 1, "2026-01-01T00:00:08Z", "subagent:researcher:t_01"),
            "value": "Pool went from 200 to 20.",
            "value_size_tokens": 6,
        },
        {
            **written("open_questions", 1, "2026-01-01T00:00:09Z", "subagent:researcher:t_01"),
            "value": "Was the pool size change intentional?",
            "value_size_tokens": 9,
        },
        written("decisions_made", 1, "2026-01-01T00:00:23Z"),
        {"deleted": "open_questions", "previous_version": 1},
        {"defined": "remediator", "description": "Executes remediation steps"},
        {"task_id": "t_02", "agent": "remediator", "status": "running"},
        {"task_id": "t_03", "agent": "writer", "status": "running"},
        {"task_id": "t_02", "agent": "remediator", "status": "running", "turns_used": 4},
        {"task_id": "t_03", "agent": "writer", "status": "completed", "turns_used": 3},
        {
            "task_id": "t_03",
            "agent": "writer",
            "status": "completed",
            "result": "Incident summary drafted.",
            "turns_used": 3,
        },
        {
            "task_id": "t_02",
            "agent": "remediator",
            "status": "completed",
            "result": "Config reverted in staging.",
            "turns_used": 5,
        },
        {
            **written("remediation_status", 1, "2026-01-01T00:00:29Z", "subagent:remediator:t_02"),
            "value": "Reverted in staging.",
            "value_size_tokens": 5,
        },
    ]

    first = harness.requests_of("researcher")[0]
    assert first.messages == (UserMessage(text=INVESTIGATE),)
    assert first.tools == ("search_logs", "query_metrics", "shared_context")
    assert first.system == subagent_text("You are a researcher.", first.tools, DEFAULTS.on)
    assert harness.requests_of("remediator")[0].system == subagent_text(
        remediation_prompt, ("shared_context",), DEFAULTS.on
    )
