"""`spawn_subagent`: what a subagent shares with its caller, and every text that the caller reads."""

import asyncio
import logging
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import retinue
from retinue.core.agent import Agent
from retinue.core.errors import PolicyError, ProviderError
from retinue.core.messages import AssistantMessage, ToolMessage, UserMessage
from retinue.core.policy import NO_TOOLS, Autonomy, Policy, RuntimeProfile
from retinue.core.run import Limits
from retinue.dialects.zeroclaw.dialect import ZeroclawDialect
from retinue.providers.scripted import calls, calls_verbatim, fails, hangs, says, together
from retinue.testing.harness import dialect_context
from tests.dialects.zeroclaw.harness import REVIEWER, TASK, ZeroclawHarness, delegate, spawn

FRONTLINE = Agent(
    name="frontline",
    system_prompt="You are at the front.",
    tools=("look",),
    policy=Policy(max_actions_per_hour=5),
    memory_from=("reviewer",),
    runtime=RuntimeProfile(max_delegation_depth=2),
)


# ---- the child ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-SPAWN-BLOCKS", "ZC-SPAWN-OUTPUT")
async def test_the_call_returns_the_final_response_of_the_subagent() -> None:
    harness = ZeroclawHarness(
        spawn(), says("Thanks."), tasks={("main", "dig"): [calls("look", where="below"), says("Found it.")]}
    )

    assert (await harness.play()).text == "Thanks."
    assert (harness.texts(), harness.failed()) == (["Found it."], [False])


@pytest.mark.promise("ZC-SPAWN-FIRST-MESSAGE", "ZC-SPAWN-ISOLATED")
async def test_neither_conversation_is_seen_by_the_other() -> None:
    prompt = "  dig\n\n\there "
    harness = ZeroclawHarness(
        spawn(prompt), says("Thanks."), tasks={("main", "dig"): [calls("look"), says("Found it.")]}
    )
    await harness.play()

    assert harness.requests(harness.row("main"))[0].messages == (UserMessage(prompt),)
    kinds = [type(message) for message in harness.requests(harness.root_row)[-1].messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage]


@pytest.mark.promise("ZC-SPAWN-IDENTITY", "ZC-SPAWN-REGISTRY")
async def test_a_subagent_is_its_caller_in_everything_but_its_history() -> None:
    harness = ZeroclawHarness(
        spawn(),
        says("Thanks."),
        root="frontline",
        agents=(FRONTLINE, REVIEWER),
        tasks={("frontline", "dig"): [says("Found it.")]},
    )
    await harness.play()

    (mine, *_), (its,) = harness.requests(harness.root_row), harness.requests(harness.row("frontline"))
    assert (its.agent, its.model, its.system, its.tools) == (mine.agent, mine.model, mine.system, mine.tools)
    assert its.tools == ("look", "spawn_subagent", "delegate")
    parent, child = (harness.store.run_spec(row.run_spec) for row in (harness.root_row, harness.row("frontline")))
    assert replace(child, launch_config="") == replace(parent, launch_config="")
    assert (child.identity, child.memory_from) == ("frontline", ("reviewer",))
    assert [accepted.policy for accepted in harness.accepted()] == [FRONTLINE.policy] * 2


@pytest.mark.promise("ZC-SPAWN-EMPTY")
async def test_an_empty_response_is_replaced_by_the_placeholder() -> None:
    harness = ZeroclawHarness(spawn(), says("Thanks."), tasks={("main", "dig"): [says("  \n")]})
    await harness.play()

    assert (harness.texts(), harness.failed()) == (["subagent completed without output"], [False])


@pytest.mark.promise("ZC-SPAWN-FAILED")
async def test_a_failing_subagent_returns_its_reason() -> None:
    broken = fails(ProviderError("no such model", fault="bad_request"))
    harness = ZeroclawHarness(spawn(), says("Thanks."), tasks={("main", "dig"): [broken]})
    await harness.play()

    assert (harness.texts(), harness.failed()) == (["subagent run failed: no such model"], [True])


@pytest.mark.promise("ZC-SPAWN-FAILED")
async def test_a_subagent_without_an_end_fails_at_the_turns_of_its_caller() -> None:
    harness = ZeroclawHarness(
        spawn(), says("Thanks."), tasks={("main", "dig"): [calls("look"), calls("look"), calls("look")]}
    )
    async with harness:
        await harness.play_on(limits=Limits(max_turns=3))

    assert harness.texts() == ["subagent run failed: Agent exceeded maximum tool iterations (3)"]


@pytest.mark.promise("ZC-SPAWN-NO-TIMEOUT")
async def test_a_subagent_has_no_time_of_its_own() -> None:
    @retinue.tool(kind="pure", polls=True)
    async def ponder() -> str:
        """Think for two hours."""
        await asyncio.sleep(500)
        return "so"

    thinking = [calls("ponder")] * 20
    harness = ZeroclawHarness(
        spawn(), says("Thanks."), tools=(ponder,), tasks={("main", "dig"): [*thinking, says("Found it.")]}
    )
    async with harness:
        await harness.play_on(limits=Limits(max_turns=30))

    assert harness.texts() == ["Found it."]


@pytest.mark.promise("ZC-SPAWN-EACH")
async def test_equal_calls_of_one_reply_all_run_and_at_the_same_time() -> None:
    harness = ZeroclawHarness(
        together(spawn(), spawn(), spawn()), says("Thanks."), tasks={("main", "dig"): [says("Found it.")]}, latency=1
    )
    await harness.play()

    assert harness.texts() == ["Found it."] * 3
    assert len({row.accepted_at for row in harness.rows()[1:]}) == 1


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-SPAWN-PROMPT")
@pytest.mark.parametrize(
    "arguments",
    ["{}", '{"prompt":""}', '{"prompt":" \\n\\t"}', '{"prompt":null}', '{"prompt":7}', "[]", "nonsense", ""],
)
async def test_a_missing_or_empty_prompt_is_refused(arguments: str) -> None:
    harness = ZeroclawHarness(calls_verbatim("spawn_subagent", arguments), says("Thanks."))
    await harness.play()

    assert (harness.texts(), harness.failed()) == (["Missing or empty 'prompt' parameter"], [True])
    assert len(harness.rows()) == 1


@pytest.mark.promise("ZC-SPAWN-DEPTH")
async def test_a_subagent_is_offered_the_tool_and_may_not_use_it() -> None:
    harness = ZeroclawHarness(
        spawn(), says("Thanks."), tasks={("main", "dig"): [together(spawn("deeper"), spawn("")), says("Stayed here.")]}
    )
    await harness.play()

    assert harness.texts() == ["Stayed here."]
    assert harness.texts(harness.row("main")) == [
        "spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)",
        "Missing or empty 'prompt' parameter",
    ]
    assert len(harness.rows()) == 2


@pytest.mark.promise("ZC-SPAWN-DEPTH", "ZC-DELEGATE-SPAWNS")
async def test_a_delegated_agent_may_spawn_one_level() -> None:
    harness = ZeroclawHarness(
        delegate(),
        says("Thanks."),
        tasks={
            ("reviewer", "review"): [spawn("dig"), says("Reviewed.")],
            ("reviewer", "dig"): [spawn("deeper"), says("Stayed here.")],
        },
    )
    await harness.play()

    assert harness.texts(harness.row("reviewer")) == ["Stayed here."]
    assert harness.texts(harness.row("reviewer", 1)) == [
        "spawn_subagent: a subagent may not spawn its own subagents (depth-1 cap)"
    ]


@pytest.mark.promise("ZC-SPAWN-GATE", "ZC-HIDDEN")
@pytest.mark.parametrize(
    "policy",
    [
        Policy(allowed_tools=("look",)),
        Policy(excluded_tools=("spawn_subagent",)),
        Policy(allowed_tools=("look", "spawn_subagent"), excluded_tools=("spawn_subagent",)),
        Policy(allowed_tools=NO_TOOLS),
    ],
)
async def test_a_profile_without_the_tool_hides_it_and_refuses_it(policy: Policy) -> None:
    harness = ZeroclawHarness(
        together(spawn(), spawn(" ")), says("Thanks."), root="frontline", agents=(replace(FRONTLINE, policy=policy),)
    )
    await harness.play()

    assert "spawn_subagent" not in harness.requests(harness.root_row)[0].tools
    assert harness.texts() == [
        "spawn_subagent: refused — agent 'frontline' risk_profile does not list spawn_subagent in allowed_tools",
        "Missing or empty 'prompt' parameter",
    ]


@pytest.mark.promise("ZC-SPAWN-UNRESTRICTED")
@pytest.mark.parametrize("allowed", [None, (), ("spawn_subagent",)])
async def test_an_empty_list_of_allowed_tools_allows_all(allowed: tuple[str, ...] | None) -> None:
    harness = ZeroclawHarness(
        spawn(),
        says("Thanks."),
        root="frontline",
        agents=(replace(FRONTLINE, policy=Policy(allowed_tools=allowed)),),
        tasks={("frontline", "dig"): [says("Found it.")]},
    )
    await harness.play()

    assert harness.texts() == ["Found it."]


@pytest.mark.promise("ZC-SPAWN-ALIAS")
async def test_an_alias_that_is_configured_no_more_cannot_be_run_again() -> None:
    lives: list[int] = []

    harness = ZeroclawHarness(
        lambda _: spawn() if lives else hangs(), says("Thanks."), root="frontline", agents=(FRONTLINE,)
    )
    async with harness:
        await harness.retinue.spawn(TASK, agent="frontline", key="root")
        await asyncio.sleep(1)
        await harness.kill()
        lives.append(1)
        harness._options["agents"] = (REVIEWER,)  # pyright: ignore[reportPrivateUsage]
        await harness.open(adopt=True)
        await harness.retinue.wait(harness.root_row.run_id)

    assert harness.texts() == ['subagent spawn failed: no agent configured under alias "frontline"']


@pytest.mark.promise("ZC-READONLY")
async def test_a_read_only_agent_cannot_start_agents() -> None:
    agent = replace(FRONTLINE, policy=Policy(autonomy=Autonomy.READONLY))
    harness = ZeroclawHarness(
        together(spawn(), delegate()), says("Thanks."), root="frontline", agents=(agent, REVIEWER)
    )
    await harness.play()

    assert harness.texts() == [
        "Security policy: read-only mode, cannot perform 'spawn_subagent'",
        "Security policy: read-only mode, cannot perform 'delegate'",
    ]


@pytest.mark.promise("ZC-ACTIONS", "ZC-WINDOWS")
async def test_every_valid_launch_costs_an_action_and_refusals_cost_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder for results of background tasks is made there
    agent = replace(FRONTLINE, policy=Policy(max_actions_per_hour=2))
    harness = ZeroclawHarness(
        together(spawn(""), delegate("unknown"), spawn("")),
        spawn(),
        delegate(),
        together(spawn(), delegate(), delegate(background=True)),
        says("Thanks."),
        root="frontline",
        agents=(agent, REVIEWER),
        tasks={("frontline", "dig"): [says("Found it.")], ("reviewer", "review"): [says("Good.")]},
    )
    await harness.play()

    assert (
        harness.texts()[3:]
        == ["Found it.", "[Agent 'reviewer' (custom/m)]\nGood."] + ["Rate limit exceeded: action budget exhausted"] * 3
    )


@pytest.mark.promise("ZC-WINDOWS")
async def test_a_subagent_draws_on_the_actions_of_its_caller() -> None:
    @retinue.tool(acts=True)
    def mark() -> str:
        """Change something."""
        return "marked"

    agent = replace(FRONTLINE, tools=("mark",), policy=Policy(max_actions_per_hour=3))
    harness = ZeroclawHarness(
        spawn(),
        calls("mark"),
        says("Thanks."),
        root="frontline",
        tools=(mark,),
        agents=(agent,),
        tasks={("frontline", "dig"): [calls("mark"), calls("mark"), calls("mark"), says("Done.")]},
    )
    await harness.play()

    spent = "Rate limit exceeded: action budget exhausted"
    assert harness.texts(harness.row("frontline")) == ["marked", "marked", spent]
    assert harness.texts() == ["Done.", spent]


# ---- telemetry ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-SPAN", "ZC-SESSION-KEY")
async def test_every_line_of_a_subagent_names_its_alias_its_session_and_its_span(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "retinue.zeroclaw")
    harness = ZeroclawHarness(
        calls("look"),
        spawn(),
        says("Thanks."),
        root="frontline",
        agents=(FRONTLINE,),
        tasks={("frontline", "dig"): [calls("look", where="secret"), says("Found it.")]},
    )
    await harness.play()

    root_id, run_id = harness.root_row.run_id, harness.row("frontline").run_id
    span = f"span=agent.frontline.subagent.{run_id} agent_alias=frontline session_key=subagent-{run_id}"
    lines = [record.getMessage() for record in caplog.records if record.name == "retinue.zeroclaw"]
    assert lines == [
        f"agent_alias=frontline session_key={root_id} tool=look turn=1 status=ok",
        f"{span} event=subagent_started parent={root_id}",
        f"{span} tool=look turn=1 status=ok",
        f"{span} event=subagent_ended status=completed reason=answered turns=2",
        f"agent_alias=frontline session_key={root_id} tool=spawn_subagent turn=2 status=ok",
    ]
    assert not re.search("secret|Found", "\n".join(lines))


# ---- overrides from Python ------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-OVERRIDE-POLICY")
async def test_an_override_that_escalates_is_refused_with_the_offending_field() -> None:
    ceiling = Policy(max_actions_per_hour=100, allowed_roots=("/srv",))
    async with ZeroclawHarness(policy=ceiling) as harness:
        with pytest.raises(PolicyError) as refused:
            await harness.retinue.spawn(TASK, policy=replace(ceiling, max_actions_per_hour=200))
        harness.provider.script.play("main", says("Fine."), task=TASK)
        narrowed = replace(ceiling, allowed_roots=("/srv/app",))
        assert (await harness.retinue.run(TASK, policy=narrowed)).text == "Fine."

    assert str(refused.value) == (
        "subagent policy override escalates beyond parent: subagent max_actions_per_hour=200 exceeds parent's 100"
    )
    assert (refused.value.field, refused.value.asked, refused.value.allowed) == ("max_actions_per_hour", 200, 100)


@pytest.mark.promise("ZC-OVERRIDE-MEMORY")
async def test_an_override_of_the_memory_allowlist_may_only_narrow() -> None:
    agents = (replace(FRONTLINE, memory_from=("reviewer", "writer")), REVIEWER)
    async with ZeroclawHarness(root="frontline", agents=agents) as harness:
        with pytest.raises(PolicyError) as refused:
            await harness.retinue.spawn(TASK, agent="frontline", memory_from=["reviewer", "rogue-agent"])
        harness.provider.script.play("frontline", says("Fine."), task=TASK)
        await harness.retinue.run(TASK, agent="frontline")
        run = await harness.retinue.spawn(TASK, agent="frontline", memory_from=["writer"])
        await run.wait()
        run_spec = (await harness.retinue.supervisor.replay(run.run_id)).run_spec

    assert str(refused.value) == (
        'subagent allowlist override contains alias "rogue-agent" not present on parent\'s memory allowlist; '
        "SubAgent overrides may only narrow"
    )
    assert (run_spec.identity, run_spec.memory_from) == ("frontline", ("writer",))


def test_the_dialect_offers_both_tools_at_every_depth_in_the_order_of_its_document() -> None:
    dialect = ZeroclawDialect(dialect_context())

    assert dialect.offered(depth=0) == dialect.offered(depth=7) == ("spawn_subagent", "delegate")
    assert [*dialect.tools()] == ["spawn_subagent", "delegate"]


@pytest.mark.promise("ZC-MEMORY")
async def test_a_subagent_shares_the_memory_of_its_agent() -> None:
    agent = replace(FRONTLINE, tools=("memory_store", "memory_recall"), policy=None)
    harness = ZeroclawHarness(
        spawn(),
        delegate(),
        calls("memory_recall", query="pool"),
        says("Thanks."),
        root="frontline",
        agents=(agent, Agent(name="reviewer", tools=("memory_recall",))),
        tasks={
            ("frontline", "dig"): [calls("memory_store", key="pool", content="The pool has 20."), says("Stored.")],
            ("reviewer", "review"): [calls("memory_recall", query="pool"), says("Good.")],
        },
    )
    await harness.play()

    assert "The pool has 20." in harness.texts()[-1]
    assert harness.texts(harness.row("reviewer")) == ["No memories found."]


@pytest.mark.promise("ZC-SPAWN-GATE")
async def test_a_profile_that_lost_the_tool_refuses_it_with_the_same_text() -> None:
    lives: list[int] = []
    harness = ZeroclawHarness(
        lambda _: spawn() if lives else hangs(), says("Thanks."), root="frontline", agents=(FRONTLINE,)
    )
    async with harness:
        await harness.retinue.spawn(TASK, agent="frontline")
        await asyncio.sleep(1)
        await harness.kill()
        lives.append(1)
        today = replace(FRONTLINE, policy=Policy(excluded_tools=("spawn_subagent",)))
        harness._options["agents"] = (today,)  # pyright: ignore[reportPrivateUsage]
        await harness.open(adopt=True)
        await harness.retinue.wait(harness.root_row.run_id)

    assert harness.texts() == [
        "spawn_subagent: refused — agent 'frontline' risk_profile does not list spawn_subagent in allowed_tools"
    ]
