"""`agent_spawn`: its answer, the history of the child, and the tools of the child."""

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.messages import UserMessage
from retinue.dialects.meerkat.answers import USAGE
from retinue.dialects.meerkat.comms import usage
from retinue.dialects.meerkat.settings import DEFAULT_MODELS, MeerkatSettings
from retinue.providers.scripted import ScriptedReply, calls, hangs, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.harness import Harness
from tests.dialects.meerkat.harness import COMMS, NESTED, TASK, MeerkatHarness, about, fork, slowly, spawn

ALLOWED = (
    "Model name (provider-specific). Allowed models - "
    "Anthropic: claude-opus-4-6, claude-sonnet-4-5, claude-opus-4-5; "
    "Gemini: gemini-3-flash-preview, gemini-3-pro-preview; "
    "OpenAI: gpt-5.2, gpt-5.2-pro"
)

OF_GREP = "# Available Tools\n\n## grep\nSearch in files."
OF_BOTH = "# Available Tools\n\n## fetch\nFetch a page.\n\n## grep\nSearch in files."
"""The usage instructions of the tools that the harness gives to the parent."""


async def schemas(settings: MeerkatSettings | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every tool that the root is offered: its description and its parameters."""
    harness = MeerkatHarness(says("Done."), settings=settings, tools=())
    async with harness:
        await harness.run(TASK)
        specs = [harness.tool(name).spec for name in harness.requests("root")[0].tools]
        return {spec.name: (spec.description, json.loads(spec.parameters)) for spec in specs}


@pytest.mark.promise("MK-TOOLS")
async def test_there_are_five_tools_in_the_order_of_the_document() -> None:
    assert [(name, about) for name, (about, _) in (await schemas()).items()] == [
        ("agent_spawn", "Create a sub-agent with clean context (just the prompt)."),
        ("agent_fork", "Create a sub-agent that inherits the full conversation history."),
        ("agent_status", "Get the status and output of a sub-agent by ID."),
        ("agent_cancel", "Cancel a running sub-agent."),
        ("agent_list", "List all sub-agents with their current states."),
    ]


@pytest.mark.promise("MK-SCHEMAS", "MK-FORK-NO-HOST", "MK-HOST-COMMS")
async def test_parameters_are_those_of_the_document_and_host_mode_needs_comms() -> None:
    without, with_comms = await schemas(), await schemas(COMMS)

    spawned = ["prompt", "provider", "model", "tool_access", "budget", "system_prompt"]
    assert {name: (list(s["properties"]), s["required"]) for name, (_, s) in without.items()} == {
        "agent_spawn": (spawned, ["prompt"]),
        "agent_fork": (["prompt", "provider", "model", "tool_access", "budget_policy"], ["prompt"]),
        "agent_status": (["agent_id"], ["agent_id"]),
        "agent_cancel": (["agent_id"], ["agent_id"]),
        "agent_list": ([], []),
    }
    assert without["agent_spawn"][1]["additionalProperties"] is False
    assert list(with_comms["agent_spawn"][1]["properties"]) == [*spawned, "host_mode"]
    assert "additionalProperties" not in with_comms["agent_spawn"][1]
    assert with_comms["agent_fork"] == without["agent_fork"]


@pytest.mark.promise("MK-MODELS-TOLD")
async def test_the_parameter_model_names_the_allowed_models_of_every_provider() -> None:
    settings = MeerkatSettings(allowed_models={**DEFAULT_MODELS, "openai": ("gpt-6",)})
    usual, own = await schemas(), await schemas(settings)

    for tool in ("agent_spawn", "agent_fork"):
        assert usual[tool][1]["properties"]["model"]["description"] == ALLOWED
        assert own[tool][1]["properties"]["model"]["description"] == ALLOWED.replace("gpt-5.2, gpt-5.2-pro", "gpt-6")


@pytest.mark.parametrize(
    ("keys", "expected", "models"),
    [
        ((), None, ()),
        (
            ("GEMINI_API_KEY", "ANTHROPIC_API_KEY"),
            ["anthropic", "gemini"],
            (*DEFAULT_MODELS["anthropic"], *DEFAULT_MODELS["gemini"]),
        ),
    ],
)
async def test_a_model_can_name_the_vendors_that_have_a_key_and_their_models(
    keys: Sequence[str], expected: object, models: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in keys:
        monkeypatch.setenv(name, "k")
    async with (
        FakeChat(ChatScript().play(says("Done."))) as vendor,
        retinue.open(
            provider="llamacpp", base_url=vendor.base_url, model="m", dialects=["meerkat"], home=retinue.MEMORY
        ) as r,
    ):
        await r.run(TASK)
    (request,) = vendor.requests
    offered = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in request.body["tools"]}

    for tool in ("agent_spawn", "agent_fork"):
        named = offered[tool].get("provider")
        assert (named and named.get("enum", "any")) == expected
        assert ("model" in offered[tool]) == bool(keys)
        if keys:
            assert sorted(offered[tool]["model"]["enum"]) == sorted(models)
            assert "OpenAI" not in offered[tool]["model"]["description"]


@pytest.mark.promise("MK-SPAWN", "MK-NAMES", "MK-IDS", "MK-DEFAULT-MODEL")
async def test_a_spawn_is_answered_at_once_with_the_six_fields() -> None:
    harness = MeerkatHarness(spawn(), says("Started."), says("Thanks."), spawned={"find it": [slowly("The pool.")]})

    assert (await harness.play()).text == "Thanks."

    child = harness.row("root/sub-agent/1")
    assert harness.texts() == [
        f'{{"agent_id":"{child.run_id}","name":"sub-agent-{child.run_id.replace("-", "")[:12]}",'
        '"provider":"anthropic","model":"claude-opus-4-6","state":"running",'
        '"message":"Sub-agent spawned successfully. Use agent_status to check progress."}'
    ]
    assert uuid.UUID(child.run_id).version == 7


@pytest.mark.promise("MK-BACKGROUND", "MK-WAITS")
async def test_sub_agents_work_at_the_same_time_as_each_other_and_as_their_parent() -> None:
    harness = MeerkatHarness(
        together(spawn("one"), spawn("two"), fork("three")),
        calls("grep", pattern="pool"),
        says("Meanwhile."),
        says("Three are in."),
        spawned={"one": [slowly("1.", 10)], "two": [slowly("2.", 10)]},
        forked={"three": [slowly("3.", 10)]},
    )
    async with harness:
        began = harness.retinue.supervisor.clock.now()
        outcome = await harness.run(TASK)
        took = harness.retinue.supervisor.clock.now() - began

    assert outcome.text == "Three are in."
    assert 10 <= took < 11


@pytest.mark.promise("MK-CLEAN", "MK-SYSTEM", "MK-NO-NESTING", "MK-ACCESS")
async def test_a_sub_agent_gets_its_prompt_byte_for_byte_and_nothing_else() -> None:
    prompt = "  find\tit — naïve \r\n"
    harness = MeerkatHarness(spawn(prompt), says("Started."), says("Thanks."), spawned={"find": [says("The pool.")]})

    await harness.play(system="You lead.")

    (request,) = harness.requests("root/sub-agent/1")
    assert (request.messages, request.system, request.tools) == ((UserMessage(prompt),), OF_BOTH, ("fetch", "grep"))


@pytest.mark.promise("MK-USAGE")
async def test_the_root_has_the_system_text_about_the_tools() -> None:
    harness = MeerkatHarness(says("Done."))

    await harness.play(system="You lead.")

    assert harness.requests("root")[0].system == f"You lead.\n\n{USAGE}"
    assert "Do not poll" in USAGE


@pytest.mark.promise("MK-SYSTEM", "MK-INHERIT")
@pytest.mark.parametrize(
    ("options", "asked", "texts"),
    [
        ({}, {}, [OF_BOTH]),
        ({}, {"tool_access": {"policy": "allow_list", "tools": ["grep"]}}, [OF_GREP]),
        ({}, {"tool_access": {"policy": "allow_list", "tools": []}}, []),
        ({}, {"system_prompt": "Dig."}, ["Dig."]),
        ({}, {"system_prompt": ""}, []),
        ({"inherit_system_prompt": False}, {}, []),
        ({"inherit_system_prompt": False}, {"system_prompt": "Dig."}, ["Dig."]),
        ({"nested_tools": True}, {}, [OF_BOTH, USAGE]),
        ({"enable_comms": True}, {}, [OF_BOTH, usage(COMMS)]),
        ({"enable_comms": True, "inherit_system_prompt": False}, {}, []),
    ],
)
async def test_a_sub_agents_system_text_is_the_requested_one_or_about_its_tools(
    options: dict[str, Any], asked: dict[str, Any], texts: list[str]
) -> None:
    harness = MeerkatHarness(
        spawn(**asked),
        says("Thanks."),
        says("Thanks."),
        spawned={"find it": [says("Found.")]},
        settings=MeerkatSettings(**options),
    )

    await harness.play()

    assert [request.system for request in harness.requests("root/sub-agent/1")] == ["\n\n".join(texts)]


# ---- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-ACCESS", "MK-ACCESS-STRING", "MK-ACCESS-UNKNOWN")
@pytest.mark.parametrize("start", [spawn, fork])
@pytest.mark.parametrize(
    ("access", "offered"),
    [
        (None, ("fetch", "grep")),
        ({"policy": "inherit"}, ("fetch", "grep")),
        ({"policy": "allow_list", "tools": ["grep", "nothing"]}, ("grep",)),
        ({"policy": "allow_list", "tools": []}, ()),
        ({"policy": "deny_list", "tools": ["grep", "nothing"]}, ("fetch",)),
        ({"policy": "allow_list", "tools": ["agent_spawn", "fetch"]}, ("fetch",)),
        ('{"policy":"inherit"}', ("fetch", "grep")),
        ('{"policy": "deny_list", "tools": ["fetch"]}', ("grep",)),
    ],
)
async def test_a_sub_agent_has_the_tools_that_its_access_leaves(
    start: Callable[..., ScriptedReply], access: object, offered: tuple[str, ...]
) -> None:
    line = start("find it", tool_access=access)
    lines = {"find it": [says("Found.")]}
    harness = MeerkatHarness(
        line,
        says("Ok."),
        says("Ok."),
        spawned=lines if start is spawn else None,
        forked=lines if start is fork else None,
    )

    await harness.play()

    assert [request.tools for request in harness.recorder.requests if request.path != "root"] == [offered]


@pytest.mark.promise("MK-ACCESS-GONE", "MK-FORK-DENIED")
async def test_a_tool_that_was_taken_away_is_not_there_when_it_is_called() -> None:
    harness = MeerkatHarness(
        spawn(tool_access={"policy": "deny_list", "tools": ["grep"]}),
        says("Ok."),
        says("Ok."),
        spawned={"find it": [together(calls("grep"), calls("agent_list")), says("Nothing.")]},
    )

    await harness.play()

    assert harness.texts("root/sub-agent/1") == [
        "There is no tool named 'grep'. Tools you can use: fetch.",
        "Execution failed: Tool access denied: agent_list",
    ]


@pytest.mark.promise("MK-CLEAN")
async def test_a_sub_agent_works_for_its_parent_despite_an_agent_of_its_name() -> None:
    harness = MeerkatHarness(
        spawn(),
        says("Ok."),
        says("Ok."),
        spawned={"find it": [says("Found.")]},
        agents=[Agent(name="sub-agent", description="Another.", system_prompt="You are another.", memory_from=("x",))],
    )

    await harness.play()

    run_spec = harness.store.run_spec(harness.row("root/sub-agent/1").run_spec)
    assert (run_spec.agent, run_spec.identity, run_spec.memory_from) == ("sub-agent", "main", ())
    assert run_spec.system == OF_BOTH


# ---- nesting --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-NESTED", "MK-LIMITS")
async def test_with_nested_tools_sub_agents_have_their_own_down_to_max_depth() -> None:
    harness = MeerkatHarness(
        spawn("one"),
        says("Ok."),
        says("Done."),
        spawned={
            "one": [spawn("two"), says("Ok."), says("1.")],
            "two": [fork("three"), says("Ok."), says("2.")],
        },
        forked={"three": [together(spawn("four"), fork("four")), says("3.")]},
        settings=NESTED,
    )

    await harness.play()

    assert [row.path for row in harness.rows()] == [
        "root",
        "root/sub-agent/1",
        "root/sub-agent/1/sub-agent/1",
        "root/sub-agent/1/sub-agent/1/fork/1",
    ]
    assert harness.texts("root/sub-agent/1/sub-agent/1/fork/1") == [
        "Execution failed: Cannot spawn sub-agent: concurrency or depth limit reached",
        "Execution failed: Cannot fork agent: concurrency or depth limit reached",
    ]


@pytest.mark.promise("MK-NESTED", "MK-ACCESS")
async def test_a_tool_that_a_sub_agent_does_not_have_none_of_its_own_can_have() -> None:
    denied = {"policy": "deny_list", "tools": ["agent_spawn", "grep"]}
    harness = MeerkatHarness(
        spawn("one", tool_access=denied),
        says("Ok."),
        says("Done."),
        spawned={"one": [fork("two", tool_access={"policy": "inherit"}), says("Ok."), says("1.")]},
        forked={"two": [says("2.")]},
        settings=NESTED,
    )

    await harness.play()

    left = ("fetch", "agent_fork", "agent_status", "agent_cancel", "agent_list")
    assert harness.requests("root/sub-agent/1")[0].tools == harness.requests("root/sub-agent/1/fork/1")[0].tools == left


@pytest.mark.promise("MK-NESTED-OFF")
async def test_without_allow_nested_spawn_nested_calls_are_refused() -> None:
    settings = MeerkatSettings(nested_tools=True, allow_nested_spawn=False)
    harness = MeerkatHarness(
        spawn("one"),
        says("Ok."),
        says("Done."),
        spawned={"one": [together(spawn("two"), fork("two")), says("1.")]},
        settings=settings,
    )

    await harness.play()

    assert harness.texts("root/sub-agent/1") == [
        "Execution failed: Nested spawning is not allowed at this depth",
        "Execution failed: Nested forking is not allowed at this depth",
    ]


@pytest.mark.promise("MK-NOT-FOUND", "MK-CANCEL")
async def test_a_run_sees_and_cancels_descendants_only() -> None:
    harness = MeerkatHarness(
        spawn("one"),
        says("Waiting."),
        calls("agent_list"),
        about("agent_cancel"),
        says("Done."),
        spawned={
            "one": [spawn("two"), hangs()],
            "two": [calls("agent_list"), hangs()],
        },
        settings=NESTED,
        latency=1.0,
    )

    async with harness:
        run = await harness.retinue.spawn(TASK)
        await asyncio.sleep(3.5)
        await run.send("look")
        await run.wait()

    rows = {row.path: row.run_id for row in harness.rows()}
    listed = next(answer for answer in harness.answers() if "agents" in answer)
    assert [(row["id"], row["depth"]) for row in listed["agents"]] == [
        (rows["root/sub-agent/1"], 1),
        (rows["root/sub-agent/1/sub-agent/1"], 2),
    ]
    assert harness.answers("root/sub-agent/1/sub-agent/1")[0]["total_count"] == 0
    assert harness.outcome("root/sub-agent/1/sub-agent/1").result == "cancelled"


# ---- the choice of a run --------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-OVERRIDE")
async def test_a_run_may_choose_the_dialect_although_its_retinue_was_opened_without_it() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", spawn(), says("Ok."), lambda ask: says(ask.messages[-1].text), task="with")
        r.script("main", says("Alone."), task="without")
        r.script("sub-agent", says("The pool."))

        told = (await r.run("with", dialects=["meerkat"])).text
        assert (told[:21], told[-35:]) == ("[sub-agent sub-agent-", " completed] Task: find it\nThe pool.")
        assert (await r.run("without")).text == "Alone."
        assert (await r.run("without", dialects=["spec"])).text == "Alone."
