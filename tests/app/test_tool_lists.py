"""Lists of tools are exact: a run is offered what its list names, and a cut result names no tool that the run lacks."""

import re
from pathlib import Path
from typing import Any

import pytest

from retinue.__main__ import main
from retinue.core.agent import Agent
from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import Request
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedReply, calls, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.harness import Harness
from retinue.tools.dependencies import ToolOptions
from tests.dialects.buzzllm.harness import CHAT, BuzzllmHarness, Cast, call_subagent, one_by_one, opened, serving
from tests.dialects.recording import RecordingProvider

LONG = "x" * 897
READER = "artifact_read"
SHOWN = f"1: {LONG}"[:500]
CUT = f"{SHOWN}\n[Cut: 500 of 900 characters are shown. Ask for less.]"
READ = calls("file_read", path="long.txt")

TASK = "Read it."
CHILD = "Look into the file."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.txt").write_text(LONG)
    return tmp_path


async def offered(
    *lines: Line | LineFunction, child: str = "", spawn: dict[str, Any] | None = None, **options: Any
) -> tuple[list[str], str]:
    """The tools of a run that reads a long file, and what it reads: the root, or the child of this agent."""
    provider = RecordingProvider(Script())
    harness = Harness(provider=provider, tool_options=ToolOptions(max_result=500, sandbox="off"), **options)
    async with harness:
        root = (spawn or {}).get("agent", "main")
        reading = (READ, says("Read."))
        if child:
            harness.script(root, *lines, task=TASK)
            harness.script(
                child, *reading, *((says("Sum."),) if options["dialects"] == ["xzatoma"] else ()), task=CHILD
            )
        else:
            harness.script(root, *reading, task=TASK)
        await harness.run(TASK, **(spawn or {}))
        task = CHILD if child else TASK
        requests = [request for request in provider.requests if request.messages[0].text.endswith(task)]
    return list(requests[0].tools), requests[1].messages[-1].text


# ---- roots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialects", [(), ["xzatoma"], ["spec"], ["meerkat"], ["buzzllm"], ["zeroclaw"]])
async def test_the_tools_of_open_are_exact(dialects: Any) -> None:
    tools, read = await offered(tools=["file_read"], dialects=dialects)

    assert (READER in tools, read) == (False, CUT)


async def test_the_tools_of_a_run_are_exact() -> None:
    options: dict[str, Any] = {"tools": ["file_read", READER], "dialects": ()}

    assert await offered(spawn={"tools": ["file_read"]}, **options) == (["file_read"], CUT)
    tools, read = await offered(**options)
    assert tools == ["file_read", READER]
    assert re.fullmatch(
        rf'{SHOWN}\n\[Cut: 500 of 900 characters are shown\. Read on with artifact_read {{"id": "a_\w+", '
        r'"offset": 500}\.\]',
        read,
    )


async def test_the_tools_of_an_agent_are_exact() -> None:
    agents = [Agent(name="clerk", tools=("file_read",))]

    tools, read = await offered(agents=agents, dialects=(), spawn={"agent": "clerk"})

    assert (tools, read) == (["file_read"], CUT)


@pytest.mark.parametrize(
    ("policy", "has_reader"),
    [
        (Policy(allowed_tools=("file_read", "spawn_subagent")), False),
        (Policy(allowed_tools=("file_read", READER)), True),
        (Policy(excluded_tools=(READER,)), False),
        (Policy(), True),
    ],
)
async def test_the_lists_of_a_risk_profile_are_exact(policy: Policy, has_reader: bool) -> None:
    agents = [Agent(name="clerk", policy=policy)]

    tools, read = await offered(agents=agents, dialects=["zeroclaw"], spawn={"agent": "clerk"})

    assert (READER in tools, read == CUT) == (has_reader, not has_reader)


@pytest.mark.parametrize(
    ("dialect", "tool", "others"),
    [
        ("spec", "subagent", ("shared_context",)),
        ("spec", "shared_context", ("subagent",)),
        ("meerkat", "agent_spawn", ()),
    ],
)
async def test_the_system_text_is_about_the_tools_that_the_run_has(
    dialect: str, tool: str, others: tuple[str, ...]
) -> None:
    async def system(policy: Policy | None, spawn: Policy | None) -> str:
        provider = RecordingProvider(Script())
        async with Harness(provider=provider, dialects=[dialect], policy=policy) as harness:
            harness.script("main", says("Done."))
            await harness.run(TASK, policy=spawn)
        return provider.requests[0].system

    narrow = Policy(allowed_tools=others or ("nothing",))
    everything = await system(None, None)
    assert tool in everything
    assert await system(narrow, None) == await system(None, narrow) != everything
    assert f"{tool} tool" not in await system(narrow, None)


# ---- children --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "has_reader"),
    [({"allowed_tools": ["file_read"]}, False), ({"allowed_tools": ["file_read", READER]}, True), ({}, True)],
)
async def test_allowed_tools_are_exact(given: dict[str, object], has_reader: bool) -> None:
    tools, read = await offered(
        calls("subagent", label="dig", task_prompt=CHILD, **given),
        says("Done."),
        child="main",
        tools=["file_read", READER],
        dialects=["xzatoma"],
    )

    assert (READER in tools, read == CUT) == (has_reader, not has_reader)


@pytest.mark.parametrize(
    ("given", "has_reader"),
    [({"allowed_tools": ["file_read"]}, False), ({"allowed_tools": ["file_read", READER]}, True), ({}, True)],
)
async def test_allowed_tools_of_parallel_tasks_are_exact(given: dict[str, object], has_reader: bool) -> None:
    tools, read = await offered(
        calls(
            "parallel_subagent", tasks=[{"label": "dig", "task_prompt": CHILD, "summary_prompt": "Sum it up.", **given}]
        ),
        says("Done."),
        child="main",
        tools=["file_read", READER],
        dialects=["xzatoma"],
    )

    assert (tools, read == CUT) == (["file_read", *[READER] * has_reader], not has_reader)


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (Policy(), ["file_read"]),
        (Policy(), ["file_read", READER]),
        (Policy(excluded_tools=(READER,)), ["file_read", READER]),
        (Policy(allowed_tools=("file_read", "spawn_subagent")), ["file_read", READER]),
    ],
)
async def test_a_spawned_subagent_has_the_exact_tools_of_its_caller(policy: Policy, names: list[str]) -> None:
    tools, read = await offered(
        calls("spawn_subagent", prompt=CHILD),
        says("Done."),
        child="clerk",
        agents=[Agent(name="clerk", tools=tuple(names), policy=policy)],
        dialects=["zeroclaw"],
        spawn={"agent": "clerk"},
    )

    has_reader = READER in names and policy == Policy()
    assert [name for name in tools if name in names] == ["file_read", *[READER] * has_reader]
    assert (READER in tools, read == CUT) == (has_reader, not has_reader)


LONG_CALLS = {
    "bash_read": calls("bash_read", filepath="long.txt"),
    "python_execute": calls("python_execute", code="print('x' * 99_999)"),
}


@pytest.mark.real_time  # the child is a process, which virtual time would not wait for
@pytest.mark.parametrize("tool", LONG_CALLS)
async def test_a_tool_subset_is_exact(folder: Path, tool: str) -> None:
    (folder / "long.txt").write_text(f"{'x' * 99}\n" * 999)
    child = one_by_one(LONG_CALLS[tool], calls(READER, id="a_0123456789abcdef"), says("Read."))
    cast = Cast((call_subagent(tool_subset=[tool]), says("Done.")), child)
    options: dict[str, Any] = {"policy": Policy(autonomy=Autonomy.FULL), "tool_options": ToolOptions(sandbox="off")}
    async with FakeChat(cast) as vendor, opened(CHAT, vendor, **options) as r:
        harness = BuzzllmHarness(r)
        await harness.play()

    first, second, third = cast.children
    cut, refused = second.body["messages"][-1]["content"], third.body["messages"][-1]["content"]
    assert [each["function"]["name"] for each in first.body["tools"]] == [tool]
    assert (len(cut) < 50_000, "xxx" in cut, READER in cut) == (True, True, False)
    assert refused == f"There is no tool named '{READER}'. Tools you can use: {tool}."
    assert harness.read() == ["Read."]


async def test_a_child_without_a_list_has_the_exact_tools_of_its_parent() -> None:
    delegates = calls("subagent", label="dig", task_prompt=CHILD), says("Done.")

    assert await offered(*delegates, child="main", tools=["file_read"], dialects=["xzatoma"]) == (
        ["file_read", "subagent"],
        CUT,
    )


@pytest.mark.parametrize(
    ("access", "has_reader"),
    [
        ({"policy": "allow_list", "tools": ["file_read"]}, False),
        ({"policy": "deny_list", "tools": [READER]}, False),
        ({"policy": "deny_list", "tools": ["grep"]}, True),
        ({"policy": "inherit"}, True),
    ],
)
async def test_tool_access_is_exact(access: dict[str, object], has_reader: bool) -> None:
    tools, read = await offered(
        calls("agent_spawn", prompt=CHILD, tool_access=access),
        says("Waiting."),
        says("Done."),
        child="sub-agent",
        tools=["file_read", READER],
        dialects=["meerkat"],
    )

    assert (READER in tools, read == CUT) == (has_reader, not has_reader)


@pytest.mark.parametrize("names", [["file_read"], ["file_read", READER]])
async def test_the_tools_of_a_defined_agent_are_exact(names: list[str]) -> None:
    tools, read = await offered(
        calls("subagent", action="define", name="clerk", description="Reads.", system_prompt="You read.", tools=names),
        calls("subagent", action="spawn", agent="clerk", task=CHILD),
        calls("subagent", action="wait", task_ids=["t_01"]),
        says("Done."),
        child="clerk",
        dialects=["spec"],
    )

    assert (tools, read == CUT) == (names, READER not in names)


@pytest.mark.parametrize("names", [["file_read"], ["file_read", READER]])
async def test_the_tools_of_a_delegate_are_exact(names: list[str]) -> None:
    tools, read = await offered(
        calls("delegate", agent="clerk", prompt=CHILD),
        says("Done."),
        child="clerk",
        agents=[Agent(name="clerk", tools=tuple(names))],
        dialects=["zeroclaw"],
    )

    assert (tools, read == CUT) == ([*names, "spawn_subagent", "delegate"], READER not in names)


# ---- calls -----------------------------------------------------------------------------------------------------------


def named(request: Request) -> str:
    """The artifact that the last message names."""
    (name,) = re.findall(r"a_[0-9a-f]{16}", request.messages[-1].text)
    return name


def read_on(request: Request) -> ScriptedReply:
    return calls(READER, id=named(request))


@pytest.mark.parametrize(
    ("names", "result"),
    [
        (["file_read"], "There is no tool named 'artifact_read'. Tools you can use: file_read, subagent."),
        (["file_read", READER], f"1: {LONG}"),
    ],
    ids=["lacks", "has"],
)
async def test_the_reader_is_called_only_by_a_run_whose_list_names_it(names: list[str], result: str) -> None:
    """The artifact exists, and the child is told its name."""

    def delegates(request: Request) -> ScriptedReply:
        return calls("subagent", label="dig", task_prompt=f"{CHILD} {named(request)}", allowed_tools=names)

    provider = RecordingProvider(Script())
    options = ToolOptions(max_result=500, sandbox="off")
    async with Harness(
        provider=provider, tool_options=options, tools=["file_read", READER], dialects=["xzatoma"]
    ) as harness:
        harness.script("main", READ, delegates, says("Done."), task=TASK)
        harness.script("main", read_on, says("Read."), says("Sum."), task=CHILD)
        await harness.run(TASK)
        requests = [request for request in provider.requests if request.messages[0].text.startswith(CHILD)]

    assert requests[1].messages[-1].text == result


@pytest.mark.parametrize("policy", [Policy(excluded_tools=(READER,)), Policy(allowed_tools=("file_read",))])
async def test_the_reader_is_not_called_where_the_policy_lacks_it(policy: Policy) -> None:
    provider = RecordingProvider(Script())
    async with Harness(provider=provider, tools=["file_read", READER], dialects=()) as harness:
        harness.script("main", calls(READER, id="a_0123456789abcdef"), says("Done."), task=TASK)
        await harness.run(TASK, policy=policy)

    assert provider.requests[0].tools == ("file_read",)
    assert provider.requests[1].messages[-1].text == (
        "There is no tool named 'artifact_read'. Tools you can use: file_read."
    )


# ---- the command line ------------------------------------------------------------------------------------------------


def sent(*flags: str) -> list[str]:
    """The tools in the first request of `retinue run` with these flags."""
    with serving(says("Hi.")) as vendor:
        where = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "fake-1", "--quiet")
        assert main(["run", *where, "--dialect", "none", *flags, "Go."]) == 0
    return [tool["function"]["name"] for tool in vendor.requests[0].body.get("tools", [])]


def test_the_flag_tools_is_exact() -> None:
    assert sent("--tools", "fetch,file_read") == ["fetch", "file_read"]
    assert sent("--tools", f"fetch,{READER}") == ["fetch", READER]


def test_a_named_prompt_brings_the_reader_only_where_no_list_is_given(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.clerk]\ntools = ["file_read"]\n')

    assert sent("--system", "websearch") == ["search_web", "scrape_webpage", READER]
    assert sent("--system", "codesearch") == ["bash_find", "bash_ripgrep", "bash_read"]
    assert sent("--system", "websearch", "--tools", "grep") == ["grep", "search_web", "scrape_webpage"]
    assert sent("--system", "websearch", "--agent", "clerk") == ["file_read", "search_web", "scrape_webpage"]


@pytest.mark.parametrize(
    ("profile", "has_reader"),
    [
        ('allowed_tools = ["file_read"]', False),
        (f'allowed_tools = ["file_read", "{READER}"]', True),
        (f'excluded_tools = ["{READER}"]', False),
        (f'allowed_tools = ["file_read", "{READER}"]\nexcluded_tools = ["{READER}"]', False),
        ("", True),
    ],
    ids=["allowed", "allowed with the reader", "excluded", "both", "neither"],
)
@pytest.mark.parametrize("dialect", ["none", "zeroclaw"])
def test_the_lists_of_a_risk_profile_in_a_settings_file_are_exact(
    folder: Path, dialect: str, profile: str, has_reader: bool
) -> None:
    (folder / "retinue.toml").write_text(
        '[tools]\nmax_result = 1000\n[agents.clerk]\ntools = ["file_read", "artifact_read"]\nrisk_profile = "narrow"\n'
        f"[risk_profiles.narrow]\n{profile}\n"
    )
    (folder / "long.txt").write_text("x" * 1997)
    with serving(one_by_one(READ, says("Read."))) as vendor:
        where = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "fake-1", "--quiet")
        assert main(["run", *where, "--dialect", dialect, "--agent", "clerk", "Go."]) == 0

    first, second = vendor.requests
    tools = {tool["function"]["name"] for tool in first.body["tools"]}
    notice = second.body["messages"][-1]["content"].partition("[Cut: 1000 of 2000 characters are shown. ")[2]
    assert tools & {"file_read", READER} == {"file_read", *[READER] * has_reader}
    assert (notice == "Ask for less.]", notice.startswith(f"Read on with {READER} ")) == (not has_reader, has_reader)
