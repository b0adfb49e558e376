"""The Subagent Tool Specification: every example that it prints, in its order, sent by a scripted model as printed.

What comes back is compared with what the document prints. Times and settled differences are named in the tests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, ScriptedReply, calls, calls_verbatim, fails, says, together
from retinue.testing.fake_chat import ChatScript
from tests.cli.stage import VARIABLES, serving
from tests.cli.stage import retinue as command
from tests.dialects.spec.harness import SpecHarness, other_work
from tests.dialects.spec.incident import AGENTS, MODEL, TOOLS

TURN_LIMIT = "Max turns exceeded without producing a final response"


TOOL_MODULE = '''"""The tools of the document's agents."""

import retinue


@retinue.tool
def search_logs(query: str) -> str:
    """Search the logs."""
    return f"3 lines about {query}"


@retinue.tool
def query_metrics(name: str) -> str:
    """Query a metric."""
    return f"{name}=20"


@retinue.tool
def run_staging_command(command: str) -> str:
    """Run a command in staging."""
    return f"ran {command}"


@retinue.tool
def update_config(pool: int) -> str:
    """Change the configuration."""
    return f"pool={pool}"
'''

SETTINGS_FILE = """\
[tools]
modules = ["./mytools.py"]

[agents.researcher]
description = "Investigates technical issues using logs and metrics"
system_prompt = "You are a researcher."
tools = ["search_logs", "query_metrics", "shared_context"]
max_turns = 10

[agents.writer]
description = "Drafts documentation and reports"
system_prompt = "You are a writer."
tools = ["shared_context"]
max_turns = 5
"""


def sends(request: str) -> ScriptedReply:
    """A call of `subagent` with the JSON that the document prints."""
    return calls_verbatim("subagent", request)


def subagent(action: str, **fields: object) -> ScriptedReply:
    return calls("subagent", action=action, **fields)


def context(action: str, **fields: object) -> ScriptedReply:
    return calls("shared_context", action=action, **fields)


def turns(count: int, answer: str = "Done.") -> list[Line]:
    """The lines of a subagent that answers in its turn number `count`; each takes a second."""
    return [*(calls("search_logs", query=f"pool {number}") for number in range(1, count)), says(answer)]


async def play(
    *lines: Line,
    agents: Sequence[retinue.Agent] = AGENTS,
    children: dict[str, Sequence[Line]] | None = None,
    tasks: dict[str, Sequence[Line]] | None = None,
) -> tuple[list[dict[str, Any]], SpecHarness]:
    """Play these lines of the orchestrator, and those of its subagents by agent, or of `researcher` by task.

    Returns the results that the orchestrator read, and the harness with all requests.
    """
    harness = SpecHarness(agents=agents, tools=TOOLS)
    for agent, theirs in (children or {}).items():
        harness.script.play(agent, *theirs)
    for task, theirs in (tasks or {}).items():
        harness.script.play("researcher", *theirs, task=task)
    results: list[Any] = (await harness.play(*lines, says("Over."))).answers
    return results, harness


async def answers(*lines: Line, **options: Any) -> list[dict[str, Any]]:
    """The results of these calls; options as for `play`."""
    return (await play(*lines, **options))[0]


def code(answer: dict[str, Any]) -> object:
    """The code of an error; its message is a text for people and must be there."""
    assert answer["message"]
    return answer["error"]


class Test1Overview:
    """1. Overview."""

    async def test_an_orchestrator_asks_a_specialist_and_gets_an_answer(self) -> None:
        """Delegation is a call, the specialist works in turns of its own, and state is in shared context."""
        spawned, waited, collected, read = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            subagent("wait", task_ids=["t_01"]),
            subagent("collect", task_id="t_01"),
            context("read", key="findings_summary"),
            children={
                "researcher": [context("write", key="findings_summary", value="The pool."), says("It is the pool.")]
            },
        )

        assert spawned == {"task_id": "t_01", "agent": "researcher", "status": "running"}
        assert (waited["done"], collected["result"], collected["turns_used"]) == (["t_01"], "It is the pool.", 2)
        assert read["value"] == "The pool."


class Test2Concepts:
    """2. Concepts."""

    async def test_2_1_agent_registry(self) -> None:
        """Pre-registered agents and defined ones are in one registry."""
        define = subagent("define", name="analyst", description="Analyzes.", system_prompt="You analyze.")

        _, listed = await answers(define, subagent("list_agents"))

        assert [agent["name"] for agent in listed["agents"]] == ["researcher", "writer", "analyst"]

    async def test_2_2_agent_configuration(self) -> None:
        """The six fields of AgentConfig; `max_turns` is 10 where none is given, the tool itself never in `tools`."""
        config = {"name": "all", "description": "d", "system_prompt": "p", "tools": ["subagent", "search_logs"]}

        _, listed = await answers(subagent("define", **config, model=MODEL), subagent("list_agents"))

        assert listed["agents"][-1] == {
            "name": "all",
            "description": "d",
            "model": MODEL,
            "max_turns": 10,
            "tools": ["search_logs"],
        }

    async def test_2_3_task_and_2_4_task_lifecycle(self) -> None:
        """spawn, status, collect; then the task is no longer tracked."""
        spawned, running, completed, collected, gone = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            subagent("status", task_id="t_01"),
            other_work(5),
            subagent("status", task_id="t_01"),
            subagent("collect", task_id="t_01"),
            subagent("status", task_id="t_01"),
            children={"researcher": turns(2, "Found.")},
        )

        assert [each["status"] for each in (spawned, running, completed)] == ["running", "running", "completed"]
        assert (collected["result"], collected.get("error")) == ("Found.", None)
        assert code(gone) == "TASK_NOT_FOUND"


class Test3Operations:
    """3. Operations."""

    async def test_3_1_list_agents(self) -> None:
        (listed,) = await answers(sends('{\n  "action": "list_agents"\n}'))

        assert listed == json.loads(
            """
            {
              "agents": [
                {
                  "name": "researcher",
                  "description": "Investigates technical issues using logs and metrics",
                  "model": "claude-sonnet-4-20250514",
                  "max_turns": 10,
                  "tools": ["search_logs", "query_metrics", "shared_context"]
                },
                {
                  "name": "writer",
                  "description": "Drafts documentation and reports",
                  "model": "claude-sonnet-4-20250514",
                  "max_turns": 5,
                  "tools": ["shared_context"]
                }
              ]
            }
            """
        )

    DEFINE = """
    {
      "action": "define",
      "name": "analyst",
      "description": "Analyzes data patterns and produces summaries",
      "system_prompt": "You are a data analyst. Examine the data provided via tools and produce a concise summary of patterns, anomalies, and recommendations. Write findings to shared context.",
      "tools": ["query_database", "shared_context"],
      "model": "claude-sonnet-4-20250514",
      "max_turns": 10
    }
    """  # noqa: E501 as printed

    async def test_3_2_define(self) -> None:
        defined, again = await answers(sends(self.DEFINE), sends(self.DEFINE))

        assert defined == {"defined": "analyst", "description": "Analyzes data patterns and produces summaries"}
        assert code(again) == "AGENT_ALREADY_EXISTS"

    async def test_3_2_define_semantics(self) -> None:
        """Required fields, defaults, and tool names; a missing field is INVALID_REQUEST (settled row 24)."""
        plain = {"name": "plain", "description": "d", "system_prompt": "p"}
        defined, listed, invalid, *missing = await answers(
            subagent("define", **plain),
            subagent("list_agents"),
            subagent("define", **plain | {"name": "other", "tools": ["teleport"]}),
            subagent("define", name="none", description="d"),
            subagent("define", name="none", system_prompt="p"),
        )

        assert defined == {"defined": "plain", "description": "d"}
        assert listed["agents"][-1] == {
            "name": "plain",
            "description": "d",
            "model": "lead-model",
            "max_turns": 10,
            "tools": [],
        }
        assert code(invalid) == "INVALID_TOOL"
        assert [code(each) for each in missing] == ["INVALID_REQUEST"] * 2

    SPAWN = """
    {
      "action": "spawn",
      "agent": "researcher",
      "task": "Find the root cause of the latency spike that started at 14:00 UTC today. Check connection pool settings and thread utilization."
    }
    """  # noqa: E501 as printed

    async def test_3_3_spawn(self) -> None:
        results, harness = await play(sends(self.SPAWN), other_work(5), children={"researcher": turns(1)})
        (request,) = harness.requests_of("researcher")

        assert results == [{"task_id": "t_01", "agent": "researcher", "status": "running"}]
        assert [message.text for message in request.messages] == [json.loads(self.SPAWN)["task"]]
        assert request.system.startswith("You are a researcher.")
        assert list(request.tools) == ["search_logs", "query_metrics", "shared_context"]
        assert request.model == MODEL

    async def test_3_3_spawn_of_an_unknown_agent(self) -> None:
        (refused,) = await answers(subagent("spawn", agent="nobody", task="Look."))

        assert code(refused) == "AGENT_NOT_FOUND"

    STATUS = '{\n  "action": "status",\n  "task_id": "t_01"\n}'

    async def test_3_4_status(self) -> None:
        _, running, completed = await answers(
            sends(self.SPAWN),
            other_work(2.5),
            sends(self.STATUS),
            other_work(10),
            sends(self.STATUS),
            children={"researcher": turns(7)},
        )

        assert running == {"task_id": "t_01", "agent": "researcher", "status": "running", "turns_used": 4}
        assert completed == {"task_id": "t_01", "agent": "researcher", "status": "completed", "turns_used": 7}

    async def test_3_4_status_of_a_failed_task(self) -> None:
        """A subagent with three turns that asks for a tool in its third."""
        define = subagent(
            "define", name="hasty", description="d", system_prompt="p", tools=["search_logs"], max_turns=3
        )
        *_, failed = await answers(
            define,
            subagent("spawn", agent="hasty", task="Look."),
            other_work(10),
            sends(self.STATUS),
            children={"hasty": turns(4)[:3]},
        )

        printed = {"task_id": "t_01", "agent": "researcher", "status": "failed", "turns_used": 3, "error": TURN_LIMIT}
        assert failed == printed | {"agent": "hasty"}

    COLLECT = '{\n  "action": "collect",\n  "task_id": "t_01"\n}'
    RESULT = (
        "Root cause: connection pool was reduced from 200 to 20 in the Feb 18 config change. "
        "Thread starvation under load confirmed in staging."
    )

    async def test_3_5_collect(self) -> None:
        _, early, collected, again = await answers(
            sends(self.SPAWN),
            sends(self.COLLECT),
            other_work(10),
            sends(self.COLLECT),
            sends(self.COLLECT),
            children={"researcher": turns(7, self.RESULT)},
        )

        assert code(early) == "TASK_NOT_READY"
        assert collected == {
            "task_id": "t_01",
            "agent": "researcher",
            "status": "completed",
            "result": self.RESULT,
            "turns_used": 7,
        }
        assert code(again) == "TASK_NOT_FOUND"

    async def test_3_5_collect_of_a_failed_task(self) -> None:
        """As printed, with `result` null: the sentence below the example (settled row 21)."""
        _, collected = await answers(
            sends(self.SPAWN), other_work(20), sends(self.COLLECT), children={"researcher": turns(11)[:10]}
        )

        assert collected == {
            "task_id": "t_01",
            "agent": "researcher",
            "status": "failed",
            "result": None,
            "error": TURN_LIMIT,
            "turns_used": 10,
        }


class Test4Constraints:
    """4. Constraints."""

    async def test_4_1_result_size(self) -> None:
        """A token is four characters (settled row 23): 4003 characters pass, one more is too many."""
        _, _, fits, cut = await answers(
            subagent("spawn", agent="researcher", task="short"),
            subagent("spawn", agent="researcher", task="long"),
            other_work(5),
            subagent("collect", task_id="t_01"),
            subagent("collect", task_id="t_02"),
            tasks={"short": [says("x" * 4003)], "long": [says("x" * 4004)]},
        )

        assert fits["result"] == "x" * 4003
        assert cut["result"] == "x" * 4000 + "\n[truncated — full response exceeded 1000 token limit]"

    async def test_4_2_task_string_size(self) -> None:
        fits, refused = await answers(
            subagent("spawn", agent="researcher", task="x" * 4003),
            subagent("spawn", agent="researcher", task="x" * 4004),
            other_work(5),
            children={"researcher": turns(1)},
        )

        assert (fits["status"], code(refused)) == ("running", "TASK_TOO_LARGE")

    async def test_4_3_max_concurrent_tasks(self) -> None:
        """Five run; a sixth is refused, until one has ended, collected or not (settled row 20)."""
        spawn = subagent("spawn", agent="researcher", task="Look.")
        *running, refused, after = await answers(
            together(*[spawn] * 6), other_work(5), spawn, other_work(5), children={"researcher": turns(1)}
        )

        assert [each["task_id"] for each in running] == [f"t_0{number}" for number in range(1, 6)]
        assert code(refused) == "MAX_TASKS_EXCEEDED"
        assert after == {"task_id": "t_06", "agent": "researcher", "status": "running"}

    async def test_4_4_max_turns_per_subagent(self) -> None:
        """10 by default, at most 25: more is 25 (settled row 26)."""
        config = {"description": "d", "system_prompt": "p"}
        *_, listed = await answers(
            subagent("define", name="usual", **config),
            subagent("define", name="patient", **config, max_turns=100),
            subagent("list_agents"),
        )

        assert [agent["max_turns"] for agent in listed["agents"][-2:]] == [10, 25]

    async def test_4_5_no_nesting(self) -> None:
        """A subagent is not offered the tool, and a call of it starts nothing."""
        results, harness = await play(
            subagent("spawn", agent="researcher", task="Look."),
            other_work(5),
            subagent("collect", task_id="t_01"),
            children={"researcher": [subagent("spawn", agent="writer", task="Write."), says("Alone.")]},
        )

        assert results[-1]["result"] == "Alone."
        assert all("subagent" not in each.tools for each in harness.requests_of("researcher"))
        assert harness.requests_of("writer") == []

    @pytest.mark.parametrize("name", ["Senior", "a b", "", "x" * 65, "analyst\n"])
    async def test_4_6_agent_name_format(self, name: str) -> None:
        (refused,) = await answers(subagent("define", name=name, description="d", system_prompt="p"))

        assert code(refused) == "INVALID_AGENT_NAME"

    async def test_4_7_system_prompt_size(self) -> None:
        fits, refused = await answers(
            subagent("define", name="a", description="d", system_prompt="x" * 16_003),
            subagent("define", name="b", description="d", system_prompt="x" * 16_004),
        )

        assert (fits["defined"], code(refused)) == ("a", "PROMPT_TOO_LARGE")


class Test5ErrorHandling:
    """5. Error handling: the table, one call for each line."""

    async def test_every_code_of_the_table(self) -> None:
        config = {"description": "d", "system_prompt": "p"}
        spawn = subagent("spawn", agent="researcher", task="Look.")
        found = await answers(
            subagent("spawn", agent="nobody", task="Look."),
            subagent("define", name="writer", **config),
            subagent("status", task_id="t_99"),
            subagent("spawn", agent="researcher", task="x" * 4004),
            subagent("define", name="A", **config),
            subagent("define", name="a", **config, tools=["teleport"]),
            subagent("define", name="a", description="d", system_prompt="x" * 16_004),
            together(*[spawn] * 6),
            subagent("collect", task_id="t_01"),
            other_work(20),
            children={"researcher": turns(7)},
        )

        assert [code(each) for each in found if "error" in each] == [
            "AGENT_NOT_FOUND",
            "AGENT_ALREADY_EXISTS",
            "TASK_NOT_FOUND",
            "TASK_TOO_LARGE",
            "INVALID_AGENT_NAME",
            "INVALID_TOOL",
            "PROMPT_TOO_LARGE",
            "MAX_TASKS_EXCEEDED",
            "TASK_NOT_READY",
        ]


class Test6SystemPromptIntegration:
    """6. System prompt integration: in words of our own, with all that the three texts say (settled row 31)."""

    async def test_6_1_available_agents_description(self) -> None:
        system = await self.system()

        for agent in AGENTS:
            line = f"  {agent.name} - {agent.description}. Tools: {', '.join(agent.tools)}.\n"
            assert line in system
        assert "define a new agent with the define action; list_agents shows those too." in system

    async def test_6_2_delegation_discipline_instructions(self) -> None:
        """Five points of each list, and one about polling (section 9.6)."""
        _, _, advice = (await self.system()).partition("When you delegate:\n\n")
        do, do_not, *_ = advice.split("\n\n")

        assert (do.splitlines()[0], do_not.splitlines()[0]) == ("DO:", "Do NOT:")
        assert (do.count("\n  - "), do_not.count("\n  - ")) == (5, 6)
        for words in ("BEFORE you spawn", "narrow objective", "shared context keys", "Collect results", "Define a new"):
            assert words in do
        for words in ("single tool call", "several agents", "raw data", "this conversation", "broad prompts"):
            assert words in do_not

    async def test_6_3_composition_with_shared_context(self) -> None:
        _, _, advice = (await self.system()).partition("Subagents and shared context go together:\n\n")
        steps = advice.partition("\n\n")[0]

        for number, moment in enumerate(("BEFORE spawning", "In the TASK", "DURING its work", "AFTER collecting"), 1):
            assert f"{number}. {moment}" in steps
        assert '"Analyze the issue in problem_summary"' in steps

    async def system(self) -> str:
        """The system text of the orchestrator."""
        _, harness = await play()
        return harness.requests[0].system


class Test7Extensions:
    """7. Extensions."""

    async def test_7_1_cancellation(self) -> None:
        """The partial result comes back, and the task is gone as after collect (settled row 29)."""
        found = together(says("So far: the pool."), calls("search_logs", query="pool"))
        _, cancelled, gone = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            other_work(0.5),
            sends('{\n  "action": "cancel",\n  "task_id": "t_01"\n}'),
            subagent("status", task_id="t_01"),
            children={"researcher": [found] * 2},
        )

        assert (cancelled["task_id"], cancelled["agent"], cancelled["status"]) == ("t_01", "researcher", "cancelled")
        assert cancelled["result"] == "So far: the pool."
        assert code(gone) == "TASK_NOT_FOUND"

    async def test_7_2_streaming_progress(self) -> None:
        _, progress = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            other_work(0.5),
            subagent("progress", task_id="t_01"),
            other_work(5),
            children={"researcher": turns(3)},
        )

        assert (progress["status"], progress["turns_used"], progress["more"]) == ("running", 2, False)
        assert [(each["turn"], each["kind"]) for each in progress["entries"]] == [
            (1, "call"),
            (1, "result"),
            (2, "call"),
            (2, "result"),
        ]

    EXTENDS = """
    {
      "action": "define",
      "name": "senior_researcher",
      "extends": "researcher",
      "system_prompt_append": "You are a senior researcher. Validate findings with at least two independent sources.",
      "max_turns": 15
    }
    """

    async def test_7_3_agent_inheritance(self) -> None:
        results, harness = await play(
            sends(self.EXTENDS),
            subagent("list_agents"),
            subagent("spawn", agent="senior_researcher", task="Look."),
            other_work(5),
            children={"senior_researcher": turns(1)},
        )
        (request,) = harness.requests_of("senior_researcher")

        researcher, *_, senior = results[1]["agents"]
        assert results[0]["defined"] == "senior_researcher"
        assert senior == researcher | {"name": "senior_researcher", "max_turns": 15}
        appended = "You are a senior researcher. Validate findings with at least two independent sources."
        assert request.system.startswith("You are a researcher.")
        assert appended in request.system

    CHAIN = """
    {
      "action": "spawn",
      "agent": "writer",
      "task": "Summarize findings",
      "depends_on": ["t_01", "t_02"]
    }
    """

    async def test_7_4_task_chaining(self) -> None:
        """The task is `pending` until both have completed, and reads their results (settled row 29)."""
        results, harness = await play(
            together(
                subagent("spawn", agent="researcher", task="logs"), subagent("spawn", agent="researcher", task="pool")
            ),
            sends(self.CHAIN),
            other_work(10),
            subagent("collect", task_id="t_03"),
            tasks={"logs": turns(2, "Logs are clean."), "pool": turns(4, "The pool is small.")},
            children={"writer": [says("Summary.")]},
        )
        (request,) = harness.requests_of("writer")

        assert results[2] == {"task_id": "t_03", "agent": "writer", "status": "pending"}
        assert results[3]["result"] == "Summary."
        assert [message.text for message in request.messages] == ["Summarize findings"]
        assert "Logs are clean." in request.system
        assert "The pool is small." in request.system

    async def test_7_5_agent_versioning(self) -> None:
        """`redefine` is an action of its own, with a version that counts from 1 (settled row 29)."""
        _, second, third = await answers(
            subagent("define", name="analyst", description="d", system_prompt="p"),
            subagent("redefine", name="analyst", description="better", system_prompt="p2"),
            subagent("redefine", name="analyst", description="best", system_prompt="p3"),
        )

        assert second == {"redefined": "analyst", "description": "better", "version": 2}
        assert third == {"redefined": "analyst", "description": "best", "version": 3}

    BUDGET = """
    {
      "action": "spawn",
      "agent": "researcher",
      "task": "...",
      "max_input_tokens": 50000,
      "max_output_tokens": 5000
    }
    """

    async def test_7_6_resource_budgets(self) -> None:
        """The example runs within its budget; a task beyond its budget fails with this text."""
        _, fits, _, spent = await answers(
            sends(self.BUDGET),
            other_work(5),
            subagent("collect", task_id="t_01"),
            subagent("spawn", agent="researcher", task="small", max_output_tokens=20),
            other_work(20),
            subagent("collect", task_id="t_02"),
            tasks={"...": turns(2, "Found."), "small": [calls("search_logs", query="x" * 80)]},
        )

        assert (fits["status"], fits["result"]) == ("completed", "Found.")
        assert spent["status"] == "failed"
        assert str(spent["error"]).startswith("Token budget exceeded: used ")


class Test8ImplementationGuidance:
    """8. Implementation guidance."""

    SUFFIX = (
        "You are a subagent. Keep your final response concise (under 1000 tokens). "
        "Write detailed findings to shared context rather than including them in your response. "
        "Your response will be returned to the orchestrator as a summary of your work."
    )

    async def test_8_1_execution_backend(self) -> None:
        """A loop of its own: the model of the config, its tools, its turns, and the last text as the result."""
        found, harness = await play(
            subagent("spawn", agent="researcher", task="Look."),
            other_work(20),
            subagent("collect", task_id="t_01"),
            children={"researcher": turns(3, "Found.")},
        )
        requests = harness.requests_of("researcher")

        assert found[-1] == {
            "task_id": "t_01",
            "agent": "researcher",
            "status": "completed",
            "result": "Found.",
            "turns_used": 3,
        }
        assert {request.model for request in requests} == {MODEL}
        assert requests[0].tools == ("search_logs", "query_metrics", "shared_context")
        assert [message.text for message in requests[0].messages] == ["Look."]

    async def test_8_2_concurrency_model(self) -> None:
        """Four tasks of four turns, a second each, take as long as one."""
        spawn = subagent("spawn", agent="researcher", task="Look.")
        found = await answers(
            together(*[spawn] * 4),
            other_work(4),
            together(*(subagent("status", task_id=f"t_0{number}") for number in range(1, 5))),
            children={"researcher": turns(4)},
        )

        assert [each["status"] for each in found[4:]] == ["completed"] * 4

    async def test_8_3_task_id_generation(self) -> None:
        """Ids count up and are never used again."""
        spawn, collect = subagent("spawn", agent="researcher", task="Look."), subagent("collect", task_id="t_01")
        found = await answers(
            together(spawn, spawn), other_work(5), collect, spawn, other_work(5), children={"researcher": turns(1)}
        )

        assert [each["task_id"] for each in found if each["status"] == "running"] == ["t_01", "t_02", "t_03"]

    async def test_8_4_subagent_system_prompt_construction(self) -> None:
        """The config's prompt first; the suffix last, on one line."""
        _, harness = await play(
            subagent("spawn", agent="researcher", task="Look."), other_work(5), children={"researcher": turns(1)}
        )
        (request,) = harness.requests_of("researcher")

        assert request.system.startswith("You are a researcher.\n\n")
        assert request.system.endswith(f"\n\n{self.SUFFIX}")

    async def test_8_5_shared_context_integration_and_8_6_participant_identity(self) -> None:
        """Three-part names (settled row 27)."""
        _, _, ours, theirs = await answers(
            context("write", key="scope", value="ours"),
            subagent("spawn", agent="researcher", task="Look."),
            other_work(5),
            context("read", key="scope"),
            context("read", key="findings_summary"),
            children={"researcher": [context("write", key="findings_summary", value="theirs"), says("Done.")]},
        )

        assert (ours["value"], ours["written_by"]) == ("ours", "orchestrator")
        assert (theirs["value"], theirs["written_by"]) == ("theirs", "subagent:researcher:t_01")

    async def test_8_7_failure_modes(self) -> None:
        @retinue.tool
        async def explode() -> str:
            """Explode."""
            raise OSError("the disk is gone")

        harness = SpecHarness(
            agents=(retinue.Agent(name="a", description="d", system_prompt="p", tools=("explode",), max_turns=2),),
            tools=(explode,),
        )
        harness.script.play("a", fails(ProviderError("no such model", fault="bad_request")), task="model")
        harness.script.play("a", calls("explode"), task="tool")
        played = await harness.play(
            together(subagent("spawn", agent="a", task="model"), subagent("spawn", agent="a", task="tool")),
            other_work(5),
            together(subagent("collect", task_id="t_01"), subagent("collect", task_id="t_02")),
            says("Over."),
        )

        errors = [each["error"] for each in played.answers[2:]]
        assert errors == [
            "Model API error: no such model",
            "Tool execution error in turn 1: the disk is gone",
        ]

    async def test_8_8_observability(self, caplog: pytest.LogCaptureFixture) -> None:
        """The fields of the document on every line, the task id on the subagent's calls, and no contents."""
        with caplog.at_level(logging.INFO, logger="retinue.spec"):
            await answers(
                subagent("spawn", agent="researcher", task="A secret task."),
                other_work(5),
                subagent("status", task_id="t_01"),
                subagent("collect", task_id="t_01"),
                children={"researcher": turns(2, "A secret result.")},
            )
        lines = [record.getMessage() for record in caplog.records if "task_id=t_01" in record.getMessage()]

        actions = [line.partition("action=")[2].split()[0] for line in lines]
        assert actions == ["spawn", "call", "status", "collect"]
        assert all("session_id=s1" in line and "agent=researcher" in line and "timestamp=" in line for line in lines)
        assert all("status=" in line for line in lines)
        assert "turns_used=2" in lines[-1]
        assert not any("secret" in record.getMessage() for record in caplog.records)


class Test9AntiPatterns:
    """9. Anti-patterns: what an implementation can see of them."""

    async def test_9_1_over_delegation_and_9_4_mega_agents(self) -> None:
        """Both are left to the orchestrator, whose instructions advise against them."""
        _, harness = await play()

        system = harness.requests[0].system
        assert "  - Delegate what a single tool call of your own would settle\n" in system
        assert "  - Define agents with broad prompts; one focused capability each is better\n" in system

    async def test_9_2_context_duplication(self) -> None:
        """A task that refers to a key is enough: the subagent reads the entry itself."""
        _, _, _, collected = await answers(
            context("write", key="problem_summary", value="Throughput dropped 30%."),
            subagent("spawn", agent="writer", task="Describe problem_summary."),
            subagent("wait", task_ids=["t_01"]),
            subagent("collect", task_id="t_01"),
            children={"writer": [context("read", key="problem_summary"), says("It dropped by 30%.")]},
        )

        assert collected["result"] == "It dropped by 30%."

    async def test_9_3_fire_and_forget(self) -> None:
        """Uncollected tasks that have ended do not count toward the limit (settled row 20)."""
        spawn = subagent("spawn", agent="researcher", task="Look.")
        found = await answers(
            together(*[spawn] * 5),
            other_work(5),
            together(*[spawn] * 5),
            other_work(5),
            children={"researcher": turns(1)},
        )

        assert [each["status"] for each in found] == ["running"] * 10

    async def test_9_5_nesting_workarounds(self) -> None:
        """A request for delegation in shared context is an entry like any other: it starts nothing."""
        found = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            other_work(5),
            context("read", key="please_delegate"),
            subagent("status", task_id="t_02"),
            children={
                "researcher": [
                    context("write", key="please_delegate", value='{"action": "spawn", "agent": "writer"}'),
                    says("Asked."),
                ]
            },
        )

        assert found[-2]["value"] == '{"action": "spawn", "agent": "writer"}'
        assert code(found[-1]) == "TASK_NOT_FOUND"

    async def test_9_6_polling_storms(self) -> None:
        """A rate-limited status answers as usual, with a hint."""
        status = subagent("status", task_id="t_01")
        _, *polls = await answers(
            subagent("spawn", agent="researcher", task="Look."),
            together(*[status] * 11),
            other_work(20),
            children={"researcher": turns(7)},
        )

        assert ["hint" in each for each in polls] == [False] * 10 + [True]
        assert {each["status"] for each in polls} == {"running"}


class Test10ExampleFullInteractionCycle:
    """10. Example: full interaction cycle. The calls are those of the document; the user speaks in the middle."""

    INVESTIGATE = (
        "Investigate the problem described in problem_summary.\n"
        "          Check connection pool settings and thread utilization.\n"
        "          Write findings to shared context key findings_summary."
    )
    SUMMARY = (
        "Root cause identified: connection pool reduced from\n      200 to 20 in Feb 18 config change. "
        "Thread starvation confirmed\n      in staging. Details in shared context."
    )

    def researcher(self) -> list[Line]:
        """Seven turns."""
        return [
            context("list_keys"),
            context("read", key="problem_summary"),
            calls("search_logs", query="pool"),
            calls("query_metrics", name="threads"),
            context("write", key="findings_summary", value="Pool: 200 to 20 on Feb 18."),
            context("write", key="open_questions", value="Was the pool size change intentional?"),
            says(self.SUMMARY),
        ]

    def remediator(self) -> list[Line]:
        """Eight turns."""
        return [
            context("read", key="findings_summary"),
            context("read", key="decisions_made"),
            calls("run_staging_command", command="revert"),
            calls("run_staging_command", command="load test"),
            calls("update_config", pool=200),
            calls("run_staging_command", command="load test"),
            context("write", key="remediation_status", value="Reverted in staging."),
            says("Config reverted in staging. Throughput recovered to baseline. Ready for production."),
        ]

    def writer(self) -> list[Line]:
        """Three turns."""
        return [
            context("read", key="findings_summary"),
            context("write", key="incident_report", value="The pool was too small."),
            says("Incident summary drafted and written to shared context\n      key incident_report."),
        ]

    async def test_the_cycle(self) -> None:
        harness = SpecHarness(agents=AGENTS, tools=TOOLS)
        harness.script.play("researcher", *self.researcher())
        harness.script.play("remediator", *self.remediator())
        harness.script.play("writer", *self.writer())
        harness.script.play(
            "main",
            context("write", key="problem_summary", value="Throughput dropped 30% after config change on Feb 18."),
            context("write", key="scope", value="Identify root cause. Read-only access to production."),
            subagent("list_agents"),
            subagent("spawn", agent="researcher", task=self.INVESTIGATE),
            other_work(2.5),
            subagent("status", task_id="t_01"),
            other_work(2.5),
            subagent("status", task_id="t_01"),
            subagent("collect", task_id="t_01"),
            context("read", key="findings_summary"),
            context("read", key="open_questions"),
            says("Was the pool size change intentional?"),
            context("write", key="decisions_made", value="Config change was accidental. User approves revert."),
            context("delete", key="open_questions"),
            subagent(
                "define",
                name="remediator",
                description="Executes remediation steps in staging and production",
                system_prompt="You are a remediation specialist. Read the findings\n      and decisions from shared "
                "context, then execute the approved fix.\n      Verify the fix resolves the issue. Write results to "
                "shared context.",
                tools=["shared_context", "run_staging_command", "update_config"],
                max_turns=15,
            ),
            subagent(
                "spawn",
                agent="remediator",
                task="Execute the approved revert per decisions_made.\n"
                "          Verify throughput recovery in staging before prod.",
            ),
            subagent(
                "spawn",
                agent="writer",
                task="Draft an incident summary for stakeholders based on\n"
                "          findings_summary and decisions_made in shared context.",
            ),
            other_work(1.5),
            subagent("status", task_id="t_02"),
            subagent("status", task_id="t_03"),
            subagent("collect", task_id="t_03"),
            other_work(2.5),
            subagent("status", task_id="t_02"),
            subagent("collect", task_id="t_02"),
            context("read", key="incident_report"),
            context("read", key="remediation_status"),
            says("Reverted in staging; the report is drafted."),
        )
        async with harness.open() as opened:
            handle = await opened.spawn("Why did throughput drop?", keep_alive=True)
            question = await handle.answer()
            answer = await handle.ask("No, that was accidental.")
            run = await opened.supervisor.replay(handle.run_id)
            results = [
                json.loads(message.text)
                for message in run.history
                if message.text.startswith("{") and message.text.endswith("}")
            ]
            await handle.close()
        harness.script.verify()

        researcher, writer = ({"agent": name} for name in ("researcher", "writer"))
        assert question.text == "Was the pool size change intentional?"
        assert answer.text == "Reverted in staging; the report is drafted."
        assert [agent["name"] for agent in results[2]["agents"]] == ["researcher", "writer"]
        assert results[3:7] == [
            {"task_id": "t_01", "status": "running"} | researcher,
            {"task_id": "t_01", "status": "running", "turns_used": 4} | researcher,
            {"task_id": "t_01", "status": "completed", "turns_used": 7} | researcher,
            {"task_id": "t_01", "status": "completed", "result": self.SUMMARY, "turns_used": 7} | researcher,
        ]
        assert (results[7]["value"], results[7]["written_by"]) == (
            "Pool: 200 to 20 on Feb 18.",
            "subagent:researcher:t_01",
        )
        assert results[8]["value"] == "Was the pool size change intentional?"
        assert results[10] == {"deleted": "open_questions", "previous_version": 1}
        assert results[11] == {
            "defined": "remediator",
            "description": "Executes remediation steps in staging and production",
        }
        assert [(each["task_id"], each["status"]) for each in results[12:16]] == [
            ("t_02", "running"),
            ("t_03", "running"),
            ("t_02", "running"),
            ("t_03", "completed"),
        ]
        assert (
            results[16]
            == {
                "task_id": "t_03",
                "status": "completed",
                "result": "Incident summary drafted and written to shared context\n      key incident_report.",
                "turns_used": 3,
            }
            | writer
        )
        assert (results[17]["status"], results[18]["turns_used"]) == ("completed", 8)
        assert results[18]["result"].startswith("Config reverted in staging. Throughput recovered to baseline.")
        assert [each["value"] for each in results[19:]] == ["The pool was too small.", "Reverted in staging."]

    @pytest.mark.real_time
    async def test_the_cycle_on_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chat with two inputs, with the agents of a settings file; `wait` is in place of work and polls."""
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mytools.py").write_text(TOOL_MODULE)
        (tmp_path / "retinue.toml").write_text(SETTINGS_FILE)
        script = ChatScript()
        script.play(*self.researcher(), words="Investigate the problem")
        script.play(*self.remediator(), words="Execute the approved revert")
        script.play(*self.writer(), words="Draft an incident summary")
        script.play(
            context("write", key="problem_summary", value="Throughput dropped 30% after config change on Feb 18."),
            context("write", key="scope", value="Identify root cause. Read-only access to production."),
            subagent("list_agents"),
            subagent("spawn", agent="researcher", task=self.INVESTIGATE),
            subagent("wait", task_ids=["t_01"], timeout_ms=30_000),
            subagent("status", task_id="t_01"),
            subagent("collect", task_id="t_01"),
            context("read", key="findings_summary"),
            context("read", key="open_questions"),
            says("Was the pool size change intentional?"),
            context("write", key="decisions_made", value="Config change was accidental. User approves revert."),
            context("delete", key="open_questions"),
            subagent(
                "define",
                name="remediator",
                description="Executes remediation steps in staging and production",
                system_prompt="You are a remediation specialist.",
                tools=["shared_context", "run_staging_command", "update_config"],
                max_turns=15,
            ),
            subagent("spawn", agent="remediator", task="Execute the approved revert per decisions_made."),
            subagent("spawn", agent="writer", task="Draft an incident summary for stakeholders."),
            subagent("wait", task_ids=["t_02", "t_03"], timeout_ms=30_000),
            subagent("collect", task_id="t_03"),
            subagent("collect", task_id="t_02"),
            context("read", key="incident_report"),
            context("read", key="remediation_status"),
            says("Reverted in staging; the report is drafted."),
            words="Why did throughput drop?",
        )
        with serving(script) as vendor:
            ended = await command(
                *("chat", "--quiet", "--dialect", "spec", "--session", "incident"),
                *("--base-url", vendor.base_url, "--model", "m"),
                stdin=b"Why did throughput drop?\nNo, that was accidental.\n",
            )
            shown = await command("context", "show", "incident", "--json")

        assert (ended.code, ended.stdout) == (
            0,
            "Was the pool size change intentional?\nReverted in staging; the report is drafted.\n",
        ), ended.stderr
        mine = [each.body["messages"] for each in vendor.requests if "Why did throughput drop?" in each.raw.decode()]
        last = max(mine, key=len)
        results = [json.loads(message["content"]) for message in last if message["role"] == "tool"]
        researcher, remediator, writer = ({"agent": name} for name in ("researcher", "remediator", "writer"))
        assert [agent["name"] for agent in results[2]["agents"]] == ["researcher", "writer"]
        assert results[3] == {"task_id": "t_01", "status": "running"} | researcher
        assert results[5] == {"task_id": "t_01", "status": "completed", "turns_used": 7} | researcher
        assert (
            results[6]
            == {"task_id": "t_01", "status": "completed", "result": self.SUMMARY, "turns_used": 7} | researcher
        )
        assert results[7]["written_by"] == "subagent:researcher:t_01"
        assert results[10] == {"deleted": "open_questions", "previous_version": 1}
        assert results[12:14] == [
            {"task_id": "t_02", "status": "running"} | remediator,
            {"task_id": "t_03", "status": "running"} | writer,
        ]
        assert [(each["task_id"], each["turns_used"]) for each in results[15:17]] == [("t_03", 3), ("t_02", 8)]
        assert [each["value"] for each in results[17:]] == ["The pool was too small.", "Reverted in staging."]
        for key in ("problem_summary", "decisions_made", "incident_report", "remediation_status"):
            assert key in shown.stdout
        assert "open_questions" not in shown.stdout
