"""The names that the calls of a model may use are in the schema, or where that would be too long, in a text."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

import retinue
from retinue.core.agent import Agent, ToolSpec
from retinue.core.policy import Policy
from retinue.core.ports import Request, Tool
from retinue.core.text import MAX_LISTED
from retinue.dialects.buzzllm.requests import CATALOG
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from retinue.testing.harness import Harness
from retinue.tools.builtin import BUILTIN
from retinue.tools.function import FunctionTool

TASK = "Find the names."
CHILD = "Look closer."


class ShowingProvider(ScriptedProvider):
    """A scripted provider that keeps the tools of each request by the task of its run."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.shown: dict[str, list[tuple[ToolSpec, ...]]] = {}

    async def answer(self, request: Request, publish: Any) -> Any:
        self.shown.setdefault(request.messages[0].text, []).append(request.tools)
        return await super().answer(request, publish)


async def properties(
    tool: str, dialect: str, *lines: Any, child: str = "", task: str = TASK, **options: Any
) -> dict[str, Any]:
    """The parameters of a tool in the first request of the run with this task."""
    provider = ShowingProvider()
    agent: str | None = options.pop("agent", None)
    async with Harness(provider=provider, dialects=[dialect], **options) as r:
        r.script(agent or "main", *(lines or (says("Done."),)), task=TASK)
        if child:
            r.script(child, says("Found."), *((says("Sum."),) if dialect == "xzatoma" else ()), task=CHILD)
        await r.run(TASK, agent=agent)
    first = provider.shown[task][0]
    assert all(tools == first for tools in provider.shown[task][:-1])  # the beginning of a cached prompt
    (spec,) = [spec for spec in first if spec.name == tool]
    return json.loads(spec.parameters)["properties"]


def many(count: int) -> list[Tool]:
    """Tools `tool_0`, `tool_1`, ..."""

    def make(number: int) -> Tool:
        def empty() -> str:
            return ""

        return FunctionTool(empty, name=f"tool_{number}", kind="pure")

    return [make(number) for number in range(count)]


def enum_of(prop: dict[str, Any]) -> Sequence[str] | None:
    return prop["items"].get("enum")


# ---- buzzllm ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("BZ-TOLD-TOOLS")
@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (Policy(), CATALOG),
        (Policy(excluded_tools=("search_web", "python_execute")), CATALOG[1:5]),
        (Policy(allowed_tools=("call_subagent", "bash_read", "bash_find")), ("bash_find", "bash_read")),
    ],
)
async def test_the_schema_of_call_subagent_lists_what_this_run_may_give(policy: Policy, names: Sequence[str]) -> None:
    shown = await properties("call_subagent", "buzzllm", policy=policy)

    assert shown["tool_subset"] == {
        "type": ["array", "null"],
        "items": {"type": "string", "enum": list(names)},
        "description": "Names of the tools that the subagent has; none by default.",
    }


@pytest.mark.promise("BZ-TOLD-TOOLS")
async def test_the_schema_of_call_subagent_says_that_there_is_nothing_to_give() -> None:
    shown = await properties("call_subagent", "buzzllm", policy=Policy(excluded_tools=CATALOG))

    assert shown["tool_subset"] == {
        "type": ["array", "null"],
        "items": {"type": "string"},
        "description": "Names of the tools that the subagent has; none by default. Available: (none).",
    }


# ---- spec ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SPEC-3.2-TOLD-TOOLS")
async def test_the_schema_of_define_lists_the_registry_within_the_policy() -> None:
    tools = many(2)

    everything = await properties("subagent", "spec", tools=tools)
    within = await properties(
        "subagent", "spec", tools=tools, policy=Policy(allowed_tools=("subagent", "tool_1", "grep"))
    )

    assert enum_of(everything["tools"]) == ["tool_0", "tool_1", *BUILTIN, "shared_context"]
    assert enum_of(within["tools"]) == ["tool_1", "grep"]


@pytest.mark.promise("SPEC-3.2-TOLD-TOOLS", "SPEC-3.2-INVALID-TOOL")
async def test_a_huge_registry_is_listed_in_part() -> None:
    answers: list[str] = []

    def reads(request: Request) -> Any:
        answers.append(request.messages[-1].text)
        return says("Done.")

    define = calls("subagent", action="define", name="a", description="d", system_prompt="p", tools=["nope"])
    shown = await properties("subagent", "spec", define, reads, tools=many(1000))

    first = ", ".join(f"tool_{number}" for number in range(MAX_LISTED))
    told = f"{first}, and {1000 + len(BUILTIN) + 1 - MAX_LISTED} more"
    assert enum_of(shown["tools"]) is None
    assert shown["tools"]["description"].endswith(f"Available: {told}.")
    assert json.loads(answers[0]) == {
        "error": "INVALID_TOOL",
        "message": "Tool not in application registry: 'nope'",
        "available_tools": told,
    }


# ---- xzatoma ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-TOOLS-TOLD")
async def test_the_schema_of_subagent_lists_the_callers_own_tools() -> None:
    shown = await properties("subagent", "xzatoma", tools=["grep", "fetch", "file_ops"])
    batch = await properties("parallel_subagent", "xzatoma", tools=["grep", "fetch", "file_ops"])
    task = batch["tasks"]["items"]["properties"]

    assert enum_of(shown["allowed_tools"]) == ["grep", "fetch", "file_ops"]
    assert enum_of(task["allowed_tools"]) == ["grep", "fetch", "file_ops"]


@pytest.mark.promise("XZ-TOOLS-TOLD", "XZ-TOOLS-NO-REGAIN")
async def test_the_schema_of_a_nested_subagent_lists_what_it_has_itself() -> None:
    delegate = calls("subagent", label="dig", task_prompt=CHILD, allowed_tools=["fetch"])

    shown = await properties(
        "subagent", "xzatoma", delegate, says("Done."), child="main", task=CHILD, tools=["grep", "fetch"]
    )

    assert enum_of(shown["allowed_tools"]) == ["fetch"]


@pytest.mark.promise("XZ-TOOLS-TOLD")
async def test_the_schema_of_a_caller_without_tools_has_none() -> None:
    shown = await properties("subagent", "xzatoma")

    assert shown["allowed_tools"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "The only tools of yours that the subagent can use; all of them by default. Must not name "
        "subagent. Available: (none).",
    }


# ---- meerkat ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["agent_spawn", "agent_fork"])
async def test_the_schema_of_tool_access_lists_what_a_child_can_have(tool: str) -> None:
    comms = MeerkatSettings(enable_comms=True)

    shown = await properties(tool, "meerkat", tools=["grep", "fetch"], dialect_settings={"meerkat": comms})

    assert enum_of(shown["tool_access"]["properties"]["tools"]) == ["grep", "fetch"]


async def test_the_comms_tools_say_where_the_names_of_peers_are() -> None:
    for tool, look in (("send_message", "list_peers"), ("send", "peers")):
        comms = MeerkatSettings(enable_comms=True, comms_tools="send" if tool == "send" else "send_message")
        shown = await properties(tool, "meerkat", dialect_settings={"meerkat": comms})
        assert shown["to"]["description"] == f"The peer's name; {look} shows all."


# ---- models and commands ---------------------------------------------------------------------------------------------


async def test_the_schema_of_define_names_the_models_in_use() -> None:
    agents = [
        Agent(name=name, model=model) for name, model in (("a", "quick"), ("b", ""), ("c", "deep"), ("d", "quick"))
    ]

    assert (await properties("subagent", "spec", agents=agents))["model"]["description"] == (
        "define and redefine: the agent's model; yours by default. Models of other agents: quick, deep."
    )
    assert (await properties("subagent", "spec"))["model"]["description"] == (
        "define and redefine: the agent's model; yours by default."
    )


@pytest.mark.parametrize("tool", ["shell", "terminal"])
async def test_the_shell_lists_the_commands_that_the_policy_allows(tool: str) -> None:
    shown = await properties(tool, "spec", tools=[tool], policy=Policy(allowed_commands=("git", "ls")))
    nothing = await properties(tool, "spec", tools=[tool], policy=Policy(allowed_commands=()))

    assert shown["command"]["description"].endswith(" Allowed: git, ls.")
    assert nothing["command"]["description"].endswith(" Allowed: (none).")


# ---- what `retinue chat` and Python list -----------------------------------------------------------------------------


async def test_offers_has_the_tool_definitions_of_a_run() -> None:
    agents = [Agent(name="clerk", tools=("grep",))]
    async with retinue.open(
        provider=ScriptedProvider(Script()), agents=agents, dialects=["xzatoma"], home=retinue.MEMORY
    ) as r:
        (spec,) = [spec for spec in r.offers(agent="clerk") if spec.name == "subagent"]

    assert enum_of(json.loads(spec.parameters)["properties"]["allowed_tools"]) == ["grep"]


# ---- calls of tools that do not exist --------------------------------------------------------------------------------


@pytest.mark.promise("SPEC-8.8-UNKNOWN", "SPEC-8.8-CALLS")
async def test_a_call_of_an_unknown_tool_is_logged_with_its_task(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retinue")
    agents = [Agent(name="clerk", description="Reads.", system_prompt="You read.")]
    async with Harness(agents=agents, dialects=["spec"]) as r:
        r.script(
            "main",
            calls("nonesuch"),
            calls("subagent", action="spawn", agent="clerk", task=CHILD),
            calls("subagent", action="wait", task_ids=["t_01"]),
            says("Done."),
        )
        r.script("clerk", calls("zap\nforged=yes", secret=1), calls("grep", pattern="x"), says("Found."))
        await r.run(TASK)
        root, child = r.run_of("main"), r.run_of("clerk")

    lines = [record.getMessage() for record in caplog.records if record.name == "retinue.spec"]
    called = [text.partition(" timestamp=")[0] for text in lines if " action=call " in text]
    assert called == [
        "session_id=session agent=main action=call tool=nonesuch turn=1 status=failed",
        "session_id=session agent=main action=call tool=subagent turn=2 status=ok",
        'session_id=session task_id=t_01 agent=clerk action=call tool="zap\\nforged=yes" turn=1 status=failed',
        "session_id=session task_id=t_01 agent=clerk action=call tool=grep turn=2 status=failed",
        "session_id=session agent=main action=call tool=subagent turn=3 status=ok",
    ]
    task = "session_id=session task_id=t_01 agent=clerk"
    assert [record.getMessage() for record in caplog.records if "does not have" in record.getMessage()] == [
        f"session_id=session agent=main run_id={root} called the tool 'nonesuch', which it does not have",
        f"{task} run_id={child} called the tool 'zap\\nforged=yes', which it does not have",
        f"{task} run_id={child} called the tool 'grep', which it does not have",
    ]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("dialect", ["xzatoma", "meerkat", "buzzllm", "zeroclaw"])
async def test_a_call_of_an_unknown_tool_is_logged_in_every_dialect(
    dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "retinue")
    async with Harness(dialects=[dialect]) as r:
        r.script("main", calls("nonesuch"), says("Done."))
        await r.run(TASK)
        run_id = r.run_of("main")
        results = r.results("main")

    (logged,) = [record.getMessage() for record in caplog.records if "does not have" in record.getMessage()]
    assert logged.endswith(" called the tool 'nonesuch', which it does not have")
    assert logged.count(run_id) == 1
    assert results[0].startswith("There is no tool named 'nonesuch'. Tools you can use: ")
    if dialect == "zeroclaw":
        assert f"agent_alias=main session_key={run_id} tool=nonesuch turn=1 status=failed" in caplog.text
