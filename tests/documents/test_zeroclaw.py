"""The document of `zeroclaw` through the command line; the classes are its headings, in its order.

Rows are those of the list of settled differences. A model on a loopback server plays the bot.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import retinue
from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, ScriptedReply, calls, calls_verbatim, fails, hangs, says, together
from retinue.testing import Script, ScriptedProvider
from retinue.testing import says as scripted_says
from retinue.testing.fake_chat import ChatScript, FakeChat, Playable
from tests.cli.conftest import Cli
from tests.cli.stage import serving

SNIPPET = """\
[risk_profiles.frontline]
allowed_tools = ["shell", "file_read", "memory_recall", "spawn_subagent", "delegate"]
"""
"""As the document prints it."""

AGENTS = """
[agents.frontline]
system_prompt = "You are the frontline bot."
risk_profile = "frontline"
runtime_profile = "frontline"
workspace = { path = "./desk", read_memory_from = ["reviewer"] }

[agents.reviewer]
system_prompt = "You review."
model = "careful-1"
risk_profile = "reviewer"

[agents.tester]
system_prompt = "You test."
runtime_profile = "quick"

[risk_profiles.reviewer]
allowed_tools = ["memory_store", "memory_recall", "spawn_subagent", "delegate"]

[risk_profiles.alone]
allowed_tools = ["file_read"]

[agents.loner]
system_prompt = "You are alone."
risk_profile = "alone"

[runtime_profiles.frontline]
max_delegation_depth = 3

[runtime_profiles.quick]
delegation_timeout_secs = 1
"""
SETTINGS = SNIPPET + AGENTS
START = "Start the work, and report back."
TASK = "Look at the focused subtask."
FILE_KEYS = ["task_id", "agent", "status", "output", "error", "started_at", "finished_at"]


def spawn(prompt: str = TASK) -> ScriptedReply:
    return calls("spawn_subagent", prompt=prompt)


def delegate(**arguments: object) -> ScriptedReply:
    return calls("delegate", **arguments)


class Bot:
    """An agent of the settings with a model that plays lines: of the root by its prompt, of others by their tasks."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli = cli
        self.folder = folder
        self.stderr = ""
        self.vendor: FakeChat
        (folder / "retinue.toml").write_text(SETTINGS)

    def run(
        self,
        *lines: Line,
        agent: str = "frontline",
        log: str = "",
        below: Mapping[str, Sequence[Playable]] = MappingProxyType({}),
    ) -> str:
        """The answer of a run; `below` has the lines of the runs below the root, by their tasks."""
        script = ChatScript().play(*lines, words=START)
        for task, played in below.items():
            script.play(*played, words=task)
        with serving(script) as self.vendor:
            flags = ("--dialect", "zeroclaw", "--agent", agent, "--base-url", self.vendor.base_url, "--model", "m-1")
            env = {"RETINUE_LOG": log} if log else {}
            ended = self.cli("run", "--quiet", *flags, START, env=env)
        self.stderr = ended.stderr
        assert ended.code == 0, ended.stderr
        return ended.stdout.removesuffix("\n")

    def read(self, task: str = START) -> list[str]:
        """The tool results that the model of a run has read, in order."""
        (last,) = self.asked(task)[-1:]
        return [each["content"] for each in last if each["role"] == "tool"]

    def asked(self, task: str) -> list[list[dict[str, Any]]]:
        """The messages of each request of the run with this task."""
        requests = [heard.body["messages"] for heard in self.vendor.requests]
        return [messages for messages in requests if any(_is_task(each, task) for each in messages)]

    def offered(self, task: str = START) -> list[str]:
        """The tools of the first request of the run with this task."""
        body = next(
            heard.body for heard in self.vendor.requests if any(_is_task(each, task) for each in heard.body["messages"])
        )
        return [tool["function"]["name"] for tool in body.get("tools", [])]

    def schema(self, tool: str) -> dict[str, Any]:
        tools = {each["function"]["name"]: each["function"] for each in self.vendor.requests[0].body["tools"]}
        return tools[tool]["parameters"]

    def rows(self) -> list[dict[str, Any]]:
        """All runs, the root first."""
        return list(reversed(self.cli("runs", "--all", "--json").json))

    def memories(self) -> list[tuple[str, str]]:
        return sorted((row["agent"], row["key"]) for row in self.cli("memory", "list", "--json").json)

    def files(self) -> list[dict[str, Any]]:
        """The result files of the frontline bot's workspace."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "desk" / "delegate_results").iterdir())]


def _is_task(message: dict[str, Any], task: str) -> bool:
    return message["role"] == "user" and message["content"].endswith(task)


@pytest.fixture
def bot(cli: Cli, folder: Path) -> Bot:
    return Bot(cli, folder)


class TestSubAgents:
    def test_a_subagent_inherits_the_identity_of_its_parent(self, bot: Bot) -> None:
        """Same alias, policy, memory allowlist, provider and tools; a child in the tree."""
        assert bot.run(spawn(), says("Done."), below={TASK: [says("Looked.")]}) == "Done."

        root, child = bot.rows()
        assert (root["agent"], child["agent"], child["parent_id"]) == ("frontline", "frontline", root["run_id"])
        assert {heard.body["model"] for heard in bot.vendor.requests} == {"m-1"}
        assert bot.offered(TASK) == bot.offered(START)
        assert bot.asked(TASK)[0][0] == bot.asked(START)[0][0], "the same system text"

    def test_subagents_are_not_a_configuration_concept(self, cli: Cli, bot: Bot) -> None:
        (bot.folder / "retinue.toml").write_text(f"{SETTINGS}\n[subagents.helper]\nmodel = 'x'\n")

        refused = cli("run", "--agent", "frontline", "Go.")

        assert (refused.code, "subagents: unknown" in refused.stderr) == (2, True)


class TestWhenToUseASubAgentVsDelegate:
    def test_spawn_subagent_runs_the_same_agent_and_delegate_a_different_one(self, bot: Bot) -> None:
        bot.run(
            together(spawn(), delegate(agent="reviewer", prompt="Review the change.")),
            says("Done."),
            below={TASK: [says("Looked.")], "Review the change.": [says("It is good.")]},
        )

        assert sorted(row["agent"] for row in bot.rows()) == ["frontline", "frontline", "reviewer"]
        models = {heard.body["messages"][-1]["content"]: heard.body["model"] for heard in bot.vendor.requests}
        assert (models[TASK], models["Review the change."]) == ("m-1", "careful-1")
        assert bot.offered("Review the change.") == ["memory_store", "memory_recall", "spawn_subagent", "delegate"]


class TestHowASubAgentIsInstantiated:
    def test_from_an_agent_loop_with_a_prompt_string(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [says("Looked.")]})

        schema = bot.schema("spawn_subagent")
        assert (list(schema["properties"]), schema["required"]) == (["prompt"], ["prompt"])

    def test_from_cron_as_a_top_level_run_that_can_spawn_one_level(self, cli: Cli, bot: Bot) -> None:
        script = ChatScript().play(spawn(), says("Done."), words=START).play(spawn("Deeper."), says("No."), words=TASK)
        with serving(script) as bot.vendor:
            job = ("--every", "1h", "--agent", "frontline", "--prompt", START)
            cli("cron", "add", "report", *job, "--base-url", bot.vendor.base_url, "--model", "m-1")
            assert cli("cron", "run-now", "report", "--quiet").stdout == "Done.\n"

        root, child = bot.rows()
        assert (root["parent_id"], child["parent_id"]) == (None, root["run_id"])
        assert re.fullmatch(r"cron-[0-9a-f-]{36}", root["session_id"])
        assert bot.read(TASK) == ["spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)"]

    def test_a_subagent_always_sees_the_memory_rows_of_its_parent(self, bot: Bot) -> None:
        """The allowlist is `read_memory_from` and the parent's own alias."""
        keeps = [calls("memory_store", key="pool", content="The pool has 20 connections."), says("Kept.")]
        bot.run(delegate(agent="reviewer", prompt="Keep it."), says("Done."), below={"Keep it.": keeps})
        recalls = [calls("memory_recall", query="connections"), says("Seen.")]
        bot.run(spawn(), says("Done."), below={TASK: recalls})

        assert bot.read(TASK) == ["Found 1 memories:\n- [core] pool: The pool has 20 connections. [100%]"]


class TestLifecycle:
    def test_an_empty_prompt_is_refused(self, bot: Bot) -> None:
        bot.run(spawn(" "), says("Done."))

        assert bot.read() == ["Missing or empty 'prompt' parameter"]

    def test_the_parent_blocks_until_the_child_returns(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [calls("memory_recall"), says("Looked.")]})

        order = [heard.body["messages"][1]["content"] for heard in bot.vendor.requests]
        assert order == [START, TASK, TASK, START]

    def test_the_childs_turns_are_not_replayed_into_the_parents_history(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [calls("memory_recall"), says("Looked.")]})

        assert [each["role"] for each in bot.asked(START)[-1]] == ["system", "user", "assistant", "tool"]
        assert bot.read() == ["Looked."]

    def test_a_failure_is_wrapped_and_the_loop_continues(self, bot: Bot) -> None:
        assert (
            bot.run(spawn(), says("Done."), below={TASK: [fails(ProviderError("no such model", fault="bad_request"))]})
            == "Done."
        )

        (read,) = bot.read()
        assert re.match(r"subagent run failed: .*no such model", read, re.DOTALL)

    def test_an_empty_output_is_replaced_by_the_placeholder(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [says("")]})

        assert bot.read() == ["subagent completed without output"]


class TestWhatGetsDeliveredBackUpstream:
    def test_one_thing_the_final_assistant_message(self, bot: Bot) -> None:
        bot.run(
            spawn(), says("Done."), below={TASK: [together(says("Let me see."), calls("memory_recall")), says("Seen.")]}
        )

        assert bot.read() == ["Seen."]

    def test_memory_writes_go_to_the_parents_identity(self, bot: Bot) -> None:
        (bot.folder / "retinue.toml").write_text(SETTINGS.replace('"file_read", ', '"memory_store", "file_read", '))
        bot.run(spawn(), says("Done."), below={TASK: [calls("memory_store", key="pool", content="20"), says("Kept.")]})

        assert bot.memories() == [("frontline", "pool")]

    def test_markdown_memory_is_in_the_same_workspace_dir(self, bot: Bot) -> None:
        settings = SETTINGS.replace('"file_read", ', '"memory_store", "file_read", ')
        (bot.folder / "retinue.toml").write_text(f'{settings}\n[memory]\nbackend = "markdown"\n')
        bot.run(spawn(), says("Done."), below={TASK: [calls("memory_store", key="pool", content="20"), says("Kept.")]})

        assert "- **pool**: 20\n" in (bot.folder / "desk" / "MEMORY.md").read_text()

    def test_cron_runs_disable_auto_save_and_opt_in_writes_still_work(self, cli: Cli, bot: Bot) -> None:
        settings = SETTINGS.replace('"file_read", ', '"memory_store", "file_read", ')
        (bot.folder / "retinue.toml").write_text(f"{settings}\n[memory]\nauto_save = true\n")
        script = ChatScript().play(calls("memory_store", key="pool", content="20"), says("Done."), words=START)
        with serving(script) as vendor:
            job = ("--every", "1h", "--agent", "frontline", "--prompt", START)
            cli("cron", "add", "report", *job, "--base-url", vendor.base_url, "--model", "m-1")
            assert cli("cron", "run-now", "report").code == 0
        assert bot.memories() == [("frontline", "pool")]
        bot.run(says("Done."))

        saved = [key for agent, key in bot.memories() if key != "pool" and agent == "frontline"]
        assert [uuid.UUID(key.removeprefix("user_msg_")).version for key in saved] == [4]


class TestPermissionInheritance:
    async def test_an_override_that_escalates_is_rejected_with_the_offending_field(self) -> None:
        agent = retinue.Agent(name="frontline", policy=retinue.Policy(max_actions_per_hour=100))
        model = ScriptedProvider(Script().play("frontline", scripted_says("Done.")))
        async with retinue.open(provider=model, agents=[agent], dialects=["zeroclaw"], home=retinue.MEMORY) as opened:
            with pytest.raises(retinue.PolicyError) as refused:
                await opened.spawn("Go.", agent="frontline", policy=retinue.Policy(max_actions_per_hour=200))

        assert str(refused.value) == (
            "subagent policy override escalates beyond parent: subagent max_actions_per_hour=200 exceeds parent's 100"
        )

    async def test_an_allowlist_override_that_is_no_subset_is_rejected_by_name(self) -> None:
        agent = retinue.Agent(name="frontline", memory_from=("reviewer",))
        model = ScriptedProvider(Script().play("frontline", scripted_says("Done.")))
        async with retinue.open(provider=model, agents=[agent], dialects=["zeroclaw"], home=retinue.MEMORY) as opened:
            with pytest.raises(retinue.PolicyError) as refused:
                await opened.spawn("Go.", agent="frontline", memory_from=["rogue-agent"])

        assert str(refused.value) == (
            'subagent allowlist override contains alias "rogue-agent" not present on parent\'s memory allowlist; '
            "SubAgent overrides may only narrow"
        )

    def test_the_action_budget_is_shared_and_cannot_be_bypassed_by_spawning(self, bot: Bot) -> None:
        settings = SETTINGS.replace("max_delegation_depth = 3", "max_delegation_depth = 3\nmax_actions_per_hour = 2")
        settings = settings.replace('"file_read", ', '"memory_store", "file_read", ')
        (bot.folder / "retinue.toml").write_text(settings)
        stores = [calls("memory_store", key=f"k{number}", content="x") for number in range(2)]
        bot.run(spawn(), says("Done."), below={TASK: [*stores, says("Tried.")]})

        assert bot.read(TASK) == ["Stored memory: k0", "Rate limit exceeded: action budget exhausted"]

    def test_the_registry_is_filtered_by_the_parents_risk_profile(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [calls("file_write", path="x", content="y"), says("No.")]})

        assert sorted(bot.offered(TASK)) == ["delegate", "file_read", "memory_recall", "shell", "spawn_subagent"]
        (read,) = bot.read(TASK)
        assert "file_write" in read
        assert not (bot.folder / "desk" / "x").exists()

    def test_the_temperature_comes_from_the_parents_provider_entry(self, bot: Bot) -> None:
        with serving(
            ChatScript().play(spawn(), says("Done."), words=START).play(says("Looked."), words=TASK)
        ) as vendor:
            provider = f'\n[providers.work]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\ntemperature = 0.3\n'
            agent = 'model = "m-2"\nmodel_provider = "openai-chat.work"\nrisk_profile = "frontline"'
            settings = SETTINGS.replace('risk_profile = "frontline"', agent) + provider
            (bot.folder / "retinue.toml").write_text(settings)
            assert bot.cli("run", "--quiet", "--dialect", "zeroclaw", "--agent", "frontline", START).code == 0

        asked = [(heard.body["model"], heard.body["temperature"]) for heard in vendor.requests]
        assert asked == [("m-2", 0.3)] * 3


class TestHowAUserMakesOneFire:
    def test_allowed_tools_decide_what_the_model_sees(self, bot: Bot) -> None:
        bot.run(says("Done."))
        listed = bot.offered()
        (bot.folder / "retinue.toml").write_text(SETTINGS.replace(', "spawn_subagent", "delegate"]', "]", 1))
        bot.run(says("Done."))

        assert sorted(listed) == ["delegate", "file_read", "memory_recall", "shell", "spawn_subagent"]
        assert sorted(bot.offered()) == ["file_read", "memory_recall", "shell"]


class TestRefusalStringsTheModelSees:
    """`spawn_subagent`: refusal strings the model sees."""

    @pytest.mark.parametrize("arguments", ["{}", '{"prompt": ""}', '{"prompt": 5}'])
    def test_an_empty_or_missing_prompt(self, bot: Bot, arguments: str) -> None:
        bot.run(calls_verbatim("spawn_subagent", arguments), says("Done."))

        assert bot.read() == ["Missing or empty 'prompt' parameter"]

    def test_the_caller_is_itself_a_subagent(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [spawn("Deeper."), says("No.")]})

        assert bot.read(TASK) == ["spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)"]

    def test_the_risk_profile_does_not_list_it(self, bot: Bot) -> None:
        bot.run(spawn(), says("Alone."), agent="loner")

        assert bot.read() == [
            "spawn_subagent: refused — agent 'loner' risk_profile does not list spawn_subagent in allowed_tools"
        ]

    def test_the_child_run_returned_an_error(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [fails(ProviderError("too bad", fault="bad_request"))]})

        (read,) = bot.read()
        assert read.startswith("subagent run failed: ")

    def test_on_success_the_output_is_the_final_response_without_a_prefix(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), below={TASK: [says("Exactly this.")]})

        assert bot.read() == ["Exactly this."]

    def test_an_unknown_alias_fails_the_build(self, cli: Cli, bot: Bot) -> None:
        """The document's example of a build error, in the refusal of a job whose agent was removed."""
        cli("cron", "add", "a", "--every", "1h", "--agent", "frontline", "--prompt", "Go.", "--model", "m")
        (bot.folder / "retinue.toml").write_text("")

        refused = cli("cron", "run-now", "a")

        assert refused == (1, "", 'subagent spawn failed: no agent configured under alias "frontline"\n')


class TestHowToVerifyItActuallyFired:
    """`spawn_subagent`: how to verify it actually fired."""

    def test_a_new_session_key_appears_for_the_same_alias(self, bot: Bot) -> None:
        bot.run(spawn(), says("Done."), log="info", below={TASK: [calls("memory_recall"), says("Looked.")]})

        lines = [line for line in bot.stderr.splitlines() if "agent_alias=frontline" in line]
        keys = dict.fromkeys(re.findall(r"session_key=(\S+)", "\n".join(lines)))
        child = next(row["run_id"] for row in bot.rows() if row["parent_id"])
        assert len(keys) == 2
        assert f"subagent-{child}" in keys

    def test_cron_paths_are_greppable(self, cli: Cli, bot: Bot) -> None:
        with serving(ChatScript().play(says("Done."), words=START)) as vendor:
            job = ("--every", "1h", "--agent", "frontline", "--prompt", START)
            cli("cron", "add", "report", *job, "--base-url", vendor.base_url, "--model", "m-1")
            ended = cli("cron", "run-now", "report", "--quiet", env={"RETINUE_LOG": "info"})

        (root,) = bot.rows()
        found = [line for line in ended.stderr.splitlines() if 'spawn_site="cron"' in line]
        assert found
        fields = ('category="cron"', "agent_alias=frontline", "cron_job_id=report", f"run_id={root['run_id']}")
        assert all(field in found[-1] for field in fields)


class TestDelegateOutputStringsTheModelSees:
    """`delegate`: output strings the model sees."""

    REVIEW = "Review the change."

    def test_synchronous_success(self, bot: Bot) -> None:
        """`<provider_type>` is the wire's name (row 105)."""
        bot.run(delegate(agent="reviewer", prompt=self.REVIEW), says("Done."), below={self.REVIEW: [says("Good.")]})

        assert bot.read() == ["[Agent 'reviewer' (openai-chat/careful-1)]\nGood."]

    def test_an_empty_response(self, bot: Bot) -> None:
        bot.run(delegate(agent="reviewer", prompt=self.REVIEW), says("Done."), below={self.REVIEW: [says("")]})

        assert bot.read() == ["[Agent 'reviewer' (openai-chat/careful-1)]\n[Empty response]"]

    def test_synchronous_failure(self, bot: Bot) -> None:
        played: list[Line] = [fails(ProviderError("too bad", fault="bad_request"))]
        bot.run(delegate(agent="reviewer", prompt=self.REVIEW), says("Done."), below={self.REVIEW: played})

        (read,) = bot.read()
        assert re.match(r"Agent 'reviewer' failed: .*too bad", read, re.DOTALL)

    @pytest.mark.real_time
    def test_synchronous_timeout(self, bot: Bot) -> None:
        """The text ends without a dot (row 106)."""
        bot.run(delegate(agent="tester", prompt=self.REVIEW), says("Done."), below={self.REVIEW: [hangs("Hm")]})

        assert bot.read() == ["Agent 'tester' timed out after 1s"]

    def test_background_spawn_success_and_its_result_file(self, bot: Bot) -> None:
        """Terminal states are capitalised as the document has them (row 102)."""
        handed = delegate(agent="reviewer", prompt=self.REVIEW, background=True)
        bot.run(handed, says("Done."), below={self.REVIEW: [says("Good.")]})

        (file,) = bot.files()
        task_id = file["task_id"]
        assert bot.read() == [
            f"Background task started for agent 'reviewer'.\ntask_id: {task_id}\n"
            f"Use action='check_result' with task_id='{task_id}' to retrieve the result."
        ]
        assert list(file) == FILE_KEYS
        assert (file["status"], file["output"], file["error"]) == (
            "Completed",
            "[Agent 'reviewer' (openai-chat/careful-1)]\nGood.",
            None,
        )

    def test_check_result_with_an_unknown_task_id(self, bot: Bot) -> None:
        unknown = "0198c2f4-7d1e-7abc-8def-0123456789ab"
        bot.run(delegate(action="check_result", task_id=unknown), says("Done."))

        assert bot.read() == [f"No result found for task_id '{unknown}'"]

    def test_parallel_fan_out(self, bot: Bot) -> None:
        """A failed block has one newline before `Error:` (row 107)."""

        def answers(heard: Any) -> Line:
            is_reviewer = "You review." in heard.body["messages"][0]["content"]
            return says("Good.") if is_reviewer else fails(ProviderError("too bad", fault="bad_request"))

        fan_out = delegate(parallel=["reviewer", "tester"], prompt=self.REVIEW)
        bot.run(fan_out, says("Done."), below={self.REVIEW: [answers]})

        (read,) = bot.read()
        good = "--- reviewer (success=true) ---\n[Agent 'reviewer' (openai-chat/careful-1)]\nGood."
        bad = "--- tester (success=false) ---\nError: Agent 'tester' failed: "
        assert read.startswith(f"[Parallel delegation: 2 agents]\n\n{good}\n\n{bad}")

    def test_an_unknown_target(self, bot: Bot) -> None:
        bot.run(delegate(agent="nobody", prompt=self.REVIEW), says("Done."))

        assert bot.read() == ["Unknown agent 'nobody'. Available agents: frontline, reviewer, tester, loner"]

    def test_depth_exceeded(self, bot: Bot) -> None:
        """The caller's profile counts (row 103), and the text has no tail (row 106)."""
        (bot.folder / "retinue.toml").write_text(
            SETTINGS.replace("max_delegation_depth = 3", "max_delegation_depth = 1").replace(
                'risk_profile = "reviewer"', 'risk_profile = "reviewer"\nruntime_profile = "frontline"'
            )
        )
        played = [delegate(agent="tester", prompt="Test the change."), says("Good.")]
        bot.run(delegate(agent="reviewer", prompt=self.REVIEW), says("Done."), below={self.REVIEW: played})

        assert bot.read(self.REVIEW) == ["Delegation depth limit reached (1/1)"]

    def test_an_unknown_action(self, bot: Bot) -> None:
        """With the dot at its end (row 106)."""
        bot.run(delegate(action="fly"), says("Done."))

        assert bot.read() == ["Unknown action 'fly'. Use delegate/check_result/list_results/cancel_task."]


class TestDelegateHowToVerifyItActuallyFired:
    """`delegate`: how to verify it actually fired."""

    def test_the_result_file_carries_status_and_output(self, bot: Bot) -> None:
        handed = delegate(agent="reviewer", prompt="Review it now.", background=True)
        bot.run(handed, says("Done."), below={"Review it now.": [says("Good.")]})

        (path,) = (bot.folder / "desk" / "delegate_results").iterdir()
        task = next(row["run_id"] for row in bot.rows() if row["agent"] == "reviewer")
        assert path.name == f"{task}.json"
        assert re.search(r'"status": "Completed"', path.read_text())


class TestWhatsNotInThisPage:
    def test_the_reply_to_the_user_is_the_models_own(self, bot: Bot) -> None:
        """The bot reads the tool's output and writes its own reply on top."""
        assert bot.run(spawn(), says("In short: fine."), below={TASK: [says("A long story.")]}) == "In short: fine."


class TestChoosingBetweenSpawnSubagentAndDelegate:
    def test_background_and_parallel_are_parameters_of_delegate_alone(self, bot: Bot) -> None:
        bot.run(says("Done."))

        assert set(bot.schema("spawn_subagent")["properties"]) == {"prompt"}
        assert {"background", "parallel"} <= set(bot.schema("delegate")["properties"])

    def test_a_target_has_its_own_policy(self, bot: Bot) -> None:
        """It may have what its caller does not: `memory_store` is in the reviewer's profile alone (row 104)."""
        keeps = [calls("memory_store", key="pool", content="20"), says("Kept.")]
        bot.run(delegate(agent="reviewer", prompt="Keep it."), says("Done."), below={"Keep it.": keeps})

        assert bot.read("Keep it.") == ["Stored memory: pool"]
        assert "memory_store" not in bot.offered()

    def test_the_depth_of_delegate_is_three_by_default(self, bot: Bot) -> None:
        (bot.folder / "retinue.toml").write_text(
            '[agents.a]\nsystem_prompt = "You are a."\n[agents.b]\nsystem_prompt = "You are b."\n'
        )
        tasks = [f"Level {number} of the work." for number in (1, 2, 3)]
        other = {0: "b", 1: "a", 2: "b", 3: "a"}
        below: dict[str, list[Line]] = {
            task: [delegate(agent=other[number + 1], prompt=f"Level {number + 2} of the work."), says("Up.")]
            for number, task in enumerate(tasks)
        }
        bot.run(delegate(agent="b", prompt=tasks[0]), says("Done."), agent="a", below=below)

        assert bot.read(tasks[2]) == ["Delegation depth limit reached (3/3)"]


class TestWhatsNotSupported:
    def test_no_separate_identity_and_no_time_budget_can_be_asked_for(self, bot: Bot) -> None:
        call = calls("spawn_subagent", prompt=TASK, agent="reviewer", timeout_secs=1, model="other")
        bot.run(call, says("Done."), below={TASK: [says("Looked.")]})

        _, child = bot.rows()
        assert child["agent"] == "frontline"
        assert {heard.body["model"] for heard in bot.vendor.requests} == {"m-1"}

    def test_no_settings_of_an_agent_are_about_subagents(self, cli: Cli, bot: Bot) -> None:
        settings = SETTINGS.replace("[agents.reviewer]\n", "[agents.reviewer]\nsubagent_max_turns = 3\n")
        (bot.folder / "retinue.toml").write_text(settings)

        refused = cli("run", "--agent", "frontline", "Go.")

        assert (refused.code, "agents.reviewer.subagent_max_turns: unknown key" in refused.stderr) == (2, True)
