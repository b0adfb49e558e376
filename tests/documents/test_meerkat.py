"""The document "Sub-Agents" of meerkat: its examples and use cases, under its own headings, in its order.

The calls are those that the document prints, and the answers are compared with those that it prints. What the project
settled otherwise is said in the docstring of the test.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.events import RunAccepted
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.core.usage import Usage
from retinue.providers.scripted import Line, calls, calls_verbatim, hangs, says, streams, together
from retinue.testing.harness import Harness
from tests.cli.stage import VARIABLES, serving
from tests.cli.stage import retinue as command
from tests.dialects.meerkat.harness import COMMS, TASK, MeerkatHarness, about, fork, name, slowly, spawn, users

ID = "019467d9-7e3a-7000-8000-000000000000"
"""The id in the document's examples."""


@retinue.tool(kind="pure")
def shell(command: str = "") -> str:
    """Run a command."""
    return f"ran {command}"


@retinue.tool(kind="pure")
def task_list() -> str:
    """List the tasks."""
    return "no tasks"


@retinue.tool(kind="pure")
def grep(pattern: str = "") -> str:
    """Search in files."""
    return f"2 lines about {pattern}"


def as_printed(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with the id of the document in place of its own."""
    own = answer.get("agent_id") or answer["agents"][0]["id"]
    text = json.dumps(answer).replace(own, ID)
    return json.loads(text.replace(own.replace("-", "")[:12], ID.replace("-", "")[:12]))


def offered_to(harness: MeerkatHarness, path: str) -> tuple[str, ...]:
    return harness.requests(path)[0].tools


class TestSubAgents:
    """# Sub-Agents."""

    async def test_a_parent_of_one_vendor_has_sub_agents_of_others_at_the_same_time(self) -> None:
        harness = MeerkatHarness(
            together(spawn("analyse", provider="gemini"), spawn("code", provider="openai")),
            says("Waiting."),
            says("Done."),
            spawned={"analyse": [slowly("Analysed.", 5)], "code": [slowly("Coded.", 5)]},
        )
        async with harness:
            began = asyncio.get_running_loop().time()
            await harness.run(TASK)
            assert asyncio.get_running_loop().time() - began == 5

        assert [(answer["provider"], answer["model"]) for answer in harness.answers()] == [
            ("gemini", "gemini-3-flash-preview"),
            ("openai", "gpt-5.2"),
        ]


class TestFeatureFlag:
    """## Feature Flag."""

    async def test_sub_agents_are_off_by_default_and_a_run_can_switch_them_on(self) -> None:
        """The feature and `enable_subagents` are the dialect here: `dialects=["meerkat"]`, of a retinue or of a run."""
        asked: list[tuple[str, ...]] = []

        def listen(request: Request) -> Line:
            asked.append(tuple(tool.name for tool in request.tools))
            return says("Done.")

        async with Harness(dialects=()) as r:
            r.script("main", listen, task="without")
            r.script("main", listen, task="with")
            await r.run("without")
            await r.run("with", dialects=["meerkat"])

        assert asked == [(), ("agent_spawn", "agent_fork", "agent_status", "agent_cancel", "agent_list")]


class TestAvailableTools:
    """## Available Tools."""

    async def test_the_five_tools_have_the_descriptions_of_the_table(self) -> None:
        harness = MeerkatHarness(says("Done."), tools=())
        async with harness:
            await harness.run(TASK)
            described = {tool: harness.tool(tool).spec.description for tool in offered_to(harness, "root")}

        assert described == {
            "agent_spawn": "Create a sub-agent with clean context (just the prompt).",
            "agent_fork": "Create a sub-agent that inherits the full conversation history.",
            "agent_status": "Get the status and output of a sub-agent by ID.",
            "agent_cancel": "Cancel a running sub-agent.",
            "agent_list": "List all sub-agents with their current states.",
        }


class TestSpawnVsFork:
    """## Spawn vs Fork."""

    async def test_agent_spawn(self) -> None:
        """### `agent_spawn`: the response as printed, and a child that has the prompt alone."""
        harness = MeerkatHarness(
            spawn("Count the lines.", provider="anthropic", model="claude-sonnet-4-5"),
            says("Waiting."),
            says("Done."),
            spawned={"Count": [says("Ten.")]},
        )

        await harness.play()

        assert as_printed(harness.answers()[0]) == {
            "agent_id": "019467d9-7e3a-7000-8000-000000000000",
            "name": "sub-agent-019467d97e3a",
            "provider": "anthropic",
            "model": "claude-sonnet-4-5",
            "state": "running",
            "message": "Sub-agent spawned successfully. Use agent_status to check progress.",
        }
        assert harness.requests("root/sub-agent/1")[0].messages == (UserMessage("Count the lines."),)

    async def test_agent_spawn_without_a_model_uses_the_first_allowed_one(self) -> None:
        """The example prints claude-sonnet-4-5; the default is the first of the list, as "Provider default" says."""
        harness = MeerkatHarness(spawn(), says("Waiting."), says("Done."), spawned={"find it": [says("Found.")]})

        await harness.play()

        assert (harness.answers()[0]["provider"], harness.answers()[0]["model"]) == ("anthropic", "claude-opus-4-6")

    async def test_agent_spawn_takes_every_parameter_of_the_table(self) -> None:
        budget = {"max_tokens": 20_000, "max_turns": 4, "max_tool_calls": 9}
        call = calls(
            "agent_spawn",
            prompt="keep the books",
            provider="anthropic",
            model="claude-opus-4-5",
            tool_access={"policy": "inherit"},
            budget=budget,
            system_prompt="You keep books.",
            host_mode=False,
        )
        harness = MeerkatHarness(
            call, says("Waiting."), says("Done."), spawned={"keep": [says("Kept.")]}, settings=COMMS
        )

        await harness.play()

        accepted = harness.events(harness.row("root/sub-agent/1").run_id)[0]
        assert isinstance(accepted, RunAccepted)
        limits = accepted.limits
        assert (limits.max_tokens, limits.max_turns, limits.max_calls) == (20_000, 4, 9)
        request = harness.requests("root/sub-agent/1")[0]
        assert (request.model, request.system) == ("claude-opus-4-5", "You keep books.")

    async def test_agent_fork(self) -> None:
        """### `agent_fork`: an inherited history, its count, and the fork prompt as a new user message.

        The response has a field `cache` more: whether the provider's cache is shared.
        """
        harness = MeerkatHarness(
            calls("grep", pattern="pool"),
            fork("Try the other way."),
            says("Waiting."),
            says("Done."),
            forked={"Try": [says("It works.")]},
            tools=(grep,),
        )

        await harness.play()

        printed = as_printed(json.loads(harness.texts()[1]))
        assert printed == {
            "agent_id": ID,
            "name": "fork-019467d97e3a",
            "provider": "anthropic",
            "model": "claude-sonnet-4-5",
            "state": "running",
            "messages_inherited": 3,
            "message": "Agent forked successfully with full conversation history. Use agent_status to check progress.",
            "cache": "lost: other tools",
        }
        inherited = harness.requests("root/fork/1")[0].messages
        assert inherited[:3] == harness.requests("root")[1].messages
        assert users(harness, "root/fork/1")[-1] == "Try the other way."

    async def test_a_fork_has_no_host_mode_and_the_system_prompt_of_the_session(self) -> None:
        harness = MeerkatHarness(fork(), says("Ok."), says("Ok."), forked={"look": [says("No.")]}, settings=COMMS)

        await harness.play(system="You lead.")

        async with harness:
            schema = json.loads(harness.tool("agent_fork").spec.parameters)
        assert "host_mode" not in schema["properties"]
        assert harness.requests("root/fork/1")[0].system == harness.requests("root")[0].system


class TestToolAccessPolicies:
    """## Tool Access Policies."""

    @pytest.mark.parametrize(
        ("printed", "tools"),
        [
            ('{"policy": "inherit"}', ("shell", "task_list", "grep")),
            ('{"policy": "allow_list", "tools": ["shell", "task_list"]}', ("shell", "task_list")),
            ('{"policy": "deny_list", "tools": ["shell"]}', ("task_list", "grep")),
        ],
    )
    @pytest.mark.parametrize("as_text", [False, True], ids=["object", "JSON in a string"])
    async def test_the_three_policies_as_printed(self, printed: str, tools: tuple[str, ...], as_text: bool) -> None:
        access = json.dumps(printed) if as_text else printed
        call = calls_verbatim("agent_spawn", f'{{"prompt": "find it", "tool_access": {access}}}')
        harness = MeerkatHarness(
            call, says("Ok."), says("Ok."), spawned={"find it": [says("Found.")]}, tools=(shell, task_list, grep)
        )

        await harness.play()

        assert offered_to(harness, "root/sub-agent/1") == tools

    async def test_sub_agents_do_not_receive_sub_agent_tools(self) -> None:
        nested = spawn("nested")
        harness = MeerkatHarness(
            spawn(), says("Ok."), says("Ok."), spawned={"find it": [nested, says("Found.")]}, tools=(shell,)
        )

        await harness.play()

        assert offered_to(harness, "root/sub-agent/1") == ("shell",)
        assert len(harness.rows()) == 2


class TestMonitoringSubAgents:
    """## Monitoring Sub-Agents."""

    async def test_agent_status(self) -> None:
        """### `agent_status`: the response as printed, of a sub-agent that worked 12.5 s and used 3,200 tokens."""
        analysis = streams("The analysis", " shows...", every=12.5)
        harness = MeerkatHarness(
            spawn(),
            about("agent_status"),
            says("Done."),
            spawned={"find it": [together(analysis, says("", usage=Usage(3_000, 200)))]},
            latency=20.0,
        )

        await harness.play()

        assert as_printed(harness.answers()[1]) == {
            "agent_id": "019467d9-7e3a-7000-8000-000000000000",
            "state": "completed",
            "output": "The analysis shows...",
            "is_final": True,
            "duration_ms": 12500,
            "tokens_used": 3200,
        }

    async def test_agent_list(self) -> None:
        """### `agent_list`: the response as printed, of a sub-agent that has worked for five seconds."""
        harness = MeerkatHarness(
            spawn(),
            calls("agent_list"),
            says("Waiting."),
            says("Done."),
            spawned={"find it": [slowly("Found.", 9)]},
            latency=5.0,
        )

        await harness.play()

        assert as_printed(harness.answers()[1]) == {
            "agents": [
                {
                    "id": "019467d9-7e3a-7000-8000-000000000000",
                    "name": "sub-agent-019467d97e3a",
                    "state": "running",
                    "depth": 1,
                    "running_ms": 5000,
                }
            ],
            "running_count": 1,
            "completed_count": 0,
            "failed_count": 0,
            "total_count": 1,
        }

    async def test_agent_cancel(self) -> None:
        """### `agent_cancel`: the response as printed; it has the `agent_id`, too."""
        harness = MeerkatHarness(
            spawn(), about("agent_cancel"), about("agent_cancel"), says("Ok."), spawned={"find it": [slowly("No.", 9)]}
        )

        await harness.play()

        assert as_printed(harness.answers()[1]) == {
            "agent_id": ID,
            "success": True,
            "previous_state": "running",
            "message": "Sub-agent cancelled successfully",
        }
        assert harness.answers()[2]["message"] == (
            "Cannot cancel sub-agent: already cancelled (only running agents can be cancelled)"
        )


class TestConcurrencyLimits:
    """## Concurrency Limits."""

    @pytest.mark.parametrize(
        ("limits", "started"),
        [
            ({}, 5),
            ({"max_children_per_agent": 20}, 8),
            ({"max_children_per_agent": 40, "max_concurrent_agents": 40}, 32),
            ({"max_depth": 1, "max_children_per_agent": 2}, 2),
        ],
        ids=["max_children_per_agent", "max_concurrent_agents", "max_concurrent_ops", "max_depth"],
    )
    async def test_spawning_beyond_a_limit_returns_an_error(self, limits: dict[str, int], started: int) -> None:
        """The defaults 5, 8 and 32 of the table, each where the others allow more; the first calls are served."""
        settings = retinue.MeerkatSettings(concurrency_limits=retinue.ConcurrencyLimits(**limits))
        harness = MeerkatHarness(
            together(*(spawn(f"child {n}") for n in range(40))),
            *[says("Ok.")] * 41,
            spawned={"child": [slowly("Done.", 9)]},
            settings=settings,
        )
        async with harness:
            await harness.run(TASK)
            harness.provider.script.verify = lambda: None

        texts = harness.texts()
        refused = "Execution failed: Cannot spawn sub-agent: concurrency or depth limit reached"
        assert [text == refused for text in texts] == [False] * started + [True] * (40 - started)

    async def test_nesting_ends_at_the_depth_of_three(self) -> None:
        """Nested spawning is enabled by the setting `nested_tools` here."""

        def nest(request: Request) -> Line:
            return spawn("nest")

        settings = retinue.MeerkatSettings(nested_tools=True)
        harness = MeerkatHarness(spawn("nest"), says("Ok."), says("Ok."), settings=settings)
        harness.script("sub-agent", nest, says("Waiting."), says("Done."))
        async with harness:
            await harness.run(TASK)
            harness.provider.script.verify = lambda: None

        assert [row.path for row in harness.rows()] == [
            "root",
            "root/sub-agent/1",
            "root/sub-agent/1/sub-agent/1",
            "root/sub-agent/1/sub-agent/1/sub-agent/1",
        ]


class TestSubAgentConfig:
    """## SubAgentConfig."""

    async def test_the_settings_have_the_fields_and_defaults_of_the_table(self) -> None:
        """`default_provider` is the parent's by default, and `anthropic` where the parent has none of the three."""
        settings = retinue.MeerkatSettings()

        assert (settings.default_provider, settings.default_model) == ("inherit", None)
        assert settings.concurrency_limits == retinue.ConcurrencyLimits(
            max_depth=3, max_concurrent_ops=32, max_concurrent_agents=8, max_children_per_agent=5
        )
        assert (settings.allow_nested_spawn, settings.max_budget_per_agent) == (True, None)
        assert (settings.default_budget, settings.inherit_system_prompt) == (50_000, True)
        assert settings.enable_comms is False

    @pytest.mark.parametrize(
        ("inherits", "system"), [(True, "# Available Tools\n\n## shell\nRun a command."), (False, "")]
    )
    async def test_inherit_system_prompt_passes_on_the_tool_usage_instructions(
        self, inherits: bool, system: str
    ) -> None:
        settings = retinue.MeerkatSettings(inherit_system_prompt=inherits)
        harness = MeerkatHarness(
            spawn(),
            says("Ok."),
            says("Ok."),
            spawned={"find it": [says("Found.")]},
            tools=(shell,),
            settings=settings,
        )

        await harness.play()

        assert harness.requests("root/sub-agent/1")[0].system == system


class TestBudgetAllocation:
    """## Budget Allocation."""

    @pytest.mark.parametrize(
        ("settings", "budget", "tokens"),
        [
            ({}, {}, 50_000),
            ({}, {"budget": {"max_tokens": 70_000}}, 70_000),
            ({"max_budget_per_agent": 30_000}, {"budget": {"max_tokens": 70_000}}, 30_000),
            ({"max_budget_per_agent": 30_000}, {}, 30_000),
        ],
    )
    async def test_spawn_budget(self, settings: dict[str, Any], budget: dict[str, Any], tokens: int) -> None:
        """### Spawn Budget; the cap holds for the default, too."""
        harness = MeerkatHarness(
            spawn(**budget),
            says("Ok."),
            says("Ok."),
            spawned={"find it": [says("Found.")]},
            settings=retinue.MeerkatSettings(**settings),
        )

        await harness.play()

        assert tokens_of(harness, "root/sub-agent/1") == tokens

    @pytest.mark.parametrize(
        ("policy", "tokens"),
        [("equal", 50_000), ("remaining", 50_000), ("proportional", 50_000), ("fixed:7000", 7_000)],
    )
    async def test_fork_budget_policies(self, policy: str, tokens: int) -> None:
        """### Fork Budget Policies, of a parent without a budget."""
        harness = MeerkatHarness(
            fork(budget_policy=policy), says("Ok."), says("Ok."), forked={"look": [says("Found.")]}
        )

        await harness.play()

        assert tokens_of(harness, "root/fork/1") == tokens


def tokens_of(harness: MeerkatHarness, path: str) -> int | None:
    accepted = harness.events(harness.row(path).run_id)[0]
    assert isinstance(accepted, RunAccepted)
    return accepted.limits.max_tokens


class TestModelAllowlists:
    """## Model Allowlists."""

    async def test_the_allowed_models_are_in_the_description_and_others_are_refused(self) -> None:
        harness = MeerkatHarness(spawn(model="gpt-4", provider="openai"), says("Ok."))
        async with harness:
            await harness.run(TASK)
            schema = json.loads(harness.tool("agent_spawn").spec.parameters)

        assert schema["properties"]["model"]["description"] == (
            "Model name (provider-specific). Allowed models - "
            "Anthropic: claude-opus-4-6, claude-sonnet-4-5, claude-opus-4-5; "
            "Gemini: gemini-3-flash-preview, gemini-3-pro-preview; OpenAI: gpt-5.2, gpt-5.2-pro"
        )
        assert harness.texts() == [
            "Invalid arguments: Model 'gpt-4' is not in allowlist for provider 'openai'. "
            "Allowed models: gpt-5.2, gpt-5.2-pro"
        ]


class TestSubAgentExecutionLifecycle:
    """## Sub-Agent Execution Lifecycle."""

    async def test_an_empty_prompt_is_refused_before_anything_is_registered(self) -> None:
        harness = MeerkatHarness(together(spawn("  "), fork("")), says("Ok."))

        await harness.play()

        assert harness.texts() == [
            "Invalid arguments: Prompt cannot be empty",
            "Invalid arguments: Fork prompt cannot be empty",
        ]
        assert len(harness.rows()) == 1

    async def test_results_are_kept_and_listeners_are_notified(self) -> None:
        """Completion posts a notice to the parent; the result can be queried afterwards."""
        harness = MeerkatHarness(
            spawn(), says("Waiting."), about("agent_status"), says("Done."), spawned={"find it": [slowly("Found.", 3)]}
        )

        await harness.play()

        child = harness.row("root/sub-agent/1").run_id
        assert users(harness, "root")[1] == f"[sub-agent {name(child)} completed] Task: find it\nFound."
        assert harness.answers()[1]["output"] == "Found."


class TestCommsIntegration:
    """## Comms Integration."""

    async def test_parent_and_child_exchange_messages(self) -> None:
        """The five points of the list: the block in the prompt, the tools, the peers, the instructions, in process."""

        def to_child(request: Request) -> Line:
            found = re.findall(r'"name":"(sub-agent-[0-9a-f]{12})"', "\n".join(each.text for each in request.messages))
            return calls("send_message", to=found[0], body="How far?")

        child = [calls("list_peers"), calls("send_message", to="parent", body="Half."), slowly("Done.", 2)]
        harness = MeerkatHarness(
            spawn(), to_child, says("Waiting."), *[says("Noted.")] * 2, spawned={"find it": child}, settings=COMMS
        )
        async with harness:
            await harness.run(TASK)
            harness.provider.script.verify = lambda: None

        answer = harness.answers()[0]
        assert answer["comms"] == f'To message this child: send_message("{answer["name"]}", "your message")'
        assert users(harness, "root/sub-agent/1")[0].startswith("# Parent Communication\n")
        assert json.loads(harness.texts("root/sub-agent/1")[0])["peers"][0]["name"] == "parent"
        assert "[message from parent]\nHow far?" in users(harness, "root/sub-agent/1")
        assert f"[message from {answer['name']}]\nHalf." in users(harness, "root")


class TestFactoryWiring:
    """## Factory Wiring."""

    async def test_sub_agents_have_the_builtin_tools_without_sub_agent_and_comms_tools(self) -> None:
        """A dialect registers its tools itself; the children's tools leave out both kinds."""
        harness = MeerkatHarness(
            spawn(), says("Ok."), says("Ok."), spawned={"find it": [says("Found.")]}, tools=(shell, grep)
        )

        await harness.play()

        assert offered_to(harness, "root")[:2] == offered_to(harness, "root/sub-agent/1") == ("shell", "grep")


class TestBestPractices:
    """## Best Practices."""

    async def test_parallel_independent_tasks_are_announced_and_need_no_polling(self) -> None:
        """The use case of the first list, in the manner of the monitoring tips: spawn, do other work, read the ends."""
        files = ("a.log", "b.log", "c.log")
        harness = MeerkatHarness(
            together(*(spawn(f"analyse {file}") for file in files)),
            calls("grep", pattern="pool"),
            says("Waiting."),
            says("Waiting."),
            says("Waiting."),
            says("All three are read."),
            spawned={f"analyse {file}": [slowly(f"{file} is fine.", n + 1)] for n, file in enumerate(files)},
            tools=(grep,),
        )

        outcome = await harness.play()

        assert outcome.text == "All three are read."
        ends = [text.partition("\n")[2] for text in users(harness, "root")[1:]]
        assert ends == ["a.log is fine.", "b.log is fine.", "c.log is fine."]
        assert "Do not poll" in harness.requests("root")[0].system

    async def test_when_not_to_use_sub_agents(self) -> None:
        """### When NOT to Use Sub-Agents: a simple task is done directly, although the tools are offered."""
        harness = MeerkatHarness(calls("grep", pattern="pool"), says("Two lines."), tools=(grep,))

        outcome = await harness.play()

        assert outcome.text == "Two lines."
        assert "agent_spawn" in offered_to(harness, "root")
        assert len(harness.requests("root")) == 2

    async def test_agent_list_shows_all_sub_agents_at_once(self) -> None:
        """### Monitoring Tips: one call in place of a status of each."""
        harness = MeerkatHarness(
            together(spawn("count"), spawn("sort")),
            calls("agent_list"),
            says("Waiting."),
            says("Waiting."),
            says("Done."),
            spawned={"count": [slowly("Counted.", 5)], "sort": [slowly("Sorted.", 6)]},
        )

        await harness.play()

        first, second, listed = harness.answers()[:3]
        assert [each["id"] for each in listed["agents"]] == [first["agent_id"], second["agent_id"]]
        assert (listed["running_count"], listed["total_count"]) == (2, 2)

    @pytest.mark.real_time
    async def test_the_same_on_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)

        def line(request: Any) -> Line:
            said = "\n".join(str(message["content"]) for message in request.body["messages"])
            if "completed] Task: count" in said:
                return says("There are ten.")
            if request.body["messages"][-1] == {"role": "user", "content": "count the lines"}:
                return says("Ten.")
            return says("Waiting.") if "agent_id" in said else calls("agent_spawn", prompt="count the lines")

        with serving(line) as vendor:
            flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "meerkat", "--quiet")
            ended = await command("run", *flags, "How many lines?")

        assert (ended.code, ended.stdout) == (0, "There are ten.\n")

    @pytest.mark.real_time
    async def test_the_five_tools_on_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Spawn, fork, list, cancel and status in one run of the command, with the answers that the document prints."""
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)

        def root(results: list[dict[str, Any]], notices: str) -> Line:
            match len(results):
                case 0:
                    return calls("agent_spawn", prompt="Watch the log.")
                case 1:
                    return calls("agent_list")
                case 2:
                    return calls("agent_cancel", agent_id=results[0]["agent_id"])
                case 3:
                    return calls("agent_spawn", prompt="Analyse a.log.")
                case 4:
                    return calls("agent_fork", prompt="Try the other way.")
                case 5 if "The analysis shows..." in notices and "The other way fails." in notices:
                    return calls("agent_status", agent_id=results[3]["agent_id"])
                case 5:
                    return says("Waiting.")
                case _:
                    return says("The first way it is.")

        def line(request: Any) -> Line:
            messages = request.body["messages"]
            users = [str(message["content"]) for message in messages if message["role"] == "user"]
            if users == ["Watch the log."]:
                return hangs()
            if users == ["Analyse a.log."]:
                return says("The analysis shows...")
            if any("Try the other way." in text and "completed]" not in text for text in users):
                return says("The other way fails.")
            results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
            read.extend(results[len(read) :])
            return root(results, "\n".join(users[1:]))

        read: list[dict[str, Any]] = []
        with serving(line) as vendor:
            flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "meerkat", "--quiet")
            ended = await command("run", *flags, "Which way?")

        assert (ended.code, ended.stdout) == (0, "The first way it is.\n"), ended.stderr
        watch, listed, cancelled, spawned, forked, status = read
        assert as_printed(spawned) == {
            "agent_id": ID,
            "name": "sub-agent-019467d97e3a",
            "provider": "openai",
            "model": "m",
            "state": "running",
            "message": "Sub-agent spawned successfully. Use agent_status to check progress.",
        }
        (agent,) = listed["agents"]
        assert (agent["id"], agent["state"], agent["depth"]) == (watch["agent_id"], "running", 1)
        counts = ("running_count", "completed_count", "failed_count", "total_count")
        assert [listed[count] for count in counts] == [1, 0, 0, 1]
        assert {key: cancelled[key] for key in ("success", "previous_state", "message")} == {
            "success": True,
            "previous_state": "running",
            "message": "Sub-agent cancelled successfully",
        }
        assert forked["messages_inherited"] >= 9, "the task, and four calls with their results"
        assert (status["agent_id"], status["state"], status["output"], status["is_final"]) == (
            spawned["agent_id"],
            "completed",
            "The analysis shows...",
            True,
        )
        assert {"duration_ms", "tokens_used"} <= status.keys()
