"""Forks: the inherited conversation, the notice to the fork, and the vendor's prompt cache."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import retinue
from retinue.core.events import CallReturned
from retinue.core.messages import AssistantMessage, ToolMessage, UserMessage
from retinue.core.state import STILL_OPEN
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.providers.catalog import provider_config
from retinue.providers.scripted import Line, calls, says, together
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.dialects.meerkat.harness import OWN, TASK, MeerkatHarness, fork, grep, slowly, spawn
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.responses import FakeResponses

KEEPS = MeerkatSettings(fork_keeps_tools=True)


@pytest.mark.promise("MK-FORK", "MK-NAMES", "MK-FORK-INHERITED", "MK-FORK-MODEL", "MK-FORK-CACHE")
async def test_a_fork_is_answered_at_once_with_the_fields_of_a_spawn_and_two_more() -> None:
    harness = MeerkatHarness(
        calls("grep", pattern="pool"), fork(), says("Waiting."), says("Thanks."), forked={"look below": [slowly("No.")]}
    )

    await harness.play(system="You lead.")

    child = harness.row("root/fork/1")
    assert harness.texts()[1] == (
        f'{{"agent_id":"{child.run_id}","name":"fork-{child.run_id.replace("-", "")[:12]}",'
        f'"provider":"anthropic","model":"{OWN}","state":"running","messages_inherited":3,'
        '"message":"Agent forked successfully with full conversation history. Use agent_status to check progress.",'
        '"cache":"lost: other tools"}'
    )


@pytest.mark.promise(
    "MK-FORK-HISTORY", "MK-FORK-REPAIR", "MK-FORK-KNOWS", "MK-FORK-SYSTEM", "MK-FORK-INHERITED", "MK-NO-NESTING"
)
async def test_a_fork_begins_with_its_parents_messages_and_a_notice() -> None:
    harness = MeerkatHarness(
        calls("grep", pattern="pool"),
        together(says("Both."), fork("look below"), calls("grep", pattern="x"), spawn()),
        says("Waiting."),
        says("Thanks."),
        spawned={"find it": [slowly("Found.")]},
        forked={"look below": [calls("fetch"), slowly("No.")]},
    )

    await harness.play(system="You lead.")

    at_the_fork, first, second = harness.requests("root")[1], *harness.requests("root/fork/1")
    inherited = json.loads(next(text for text in harness.texts() if '"messages_inherited"' in text))
    assert inherited["messages_inherited"] == len(at_the_fork.messages) == 3
    made, *results, asked = first.messages[3:]
    assert first.messages[:3] == at_the_fork.messages
    assert first.system == at_the_fork.system
    assert isinstance(made, AssistantMessage)
    assert [call.name for call in made.calls] == ["agent_fork", "grep", "agent_spawn"]
    assert results == [
        ToolMessage(name=call.name, call_id=call.id, text=STILL_OPEN, failed=True) for call in made.calls
    ]
    assert "you are a fork" in STILL_OPEN
    assert asked == UserMessage("look below")
    assert second.messages[: len(first.messages)] == first.messages
    assert first.tools == ("fetch", "grep")


@pytest.mark.promise("MK-FORK-TOOLS", "MK-FORK-DENIED", "MK-FORK-CACHE")
async def test_with_fork_keeps_tools_a_fork_is_shown_its_parents_tools_and_may_use_its_own() -> None:
    harness = MeerkatHarness(
        fork(),
        says("Waiting."),
        says("Thanks."),
        forked={"look below": [together(calls("agent_list"), spawn(), calls("grep", pattern="x")), says("No.")]},
        settings=KEEPS,
    )

    await harness.play()

    assert harness.answers()[0]["cache"] == "shared"
    assert harness.requests("root/fork/1")[0].tools == harness.requests("root")[0].tools
    assert harness.texts("root/fork/1") == [
        "Execution failed: Tool access denied: agent_list",
        "Execution failed: Tool access denied: agent_spawn",
        "2 lines about x",
    ]


@pytest.mark.promise("MK-FORK-CACHE", "MK-FORK-MODEL")
@pytest.mark.parametrize(
    ("asked", "how", "cache"),
    [
        ({}, {}, "shared"),
        ({"tool_access": {"policy": "inherit"}}, {}, "shared"),
        ({"provider": "anthropic", "model": OWN}, {}, "shared"),
        ({"tool_access": {"policy": "deny_list", "tools": ["grep"]}}, {}, "lost: other tools"),
        ({"model": "claude-opus-4-6"}, {}, "lost: another model"),
        ({"provider": "openai"}, {}, "lost: another model"),
        ({}, {"output": dict}, "lost: another form of answer"),
    ],
)
async def test_a_fork_reports_whether_the_cache_is_shared(
    asked: dict[str, Any], how: dict[str, Any], cache: str
) -> None:
    last = says("{}") if how else says("Thanks.")
    harness = MeerkatHarness(fork(**asked), last, last, forked={"look below": [says("No.")]}, settings=KEEPS)

    await harness.play(**how)

    assert harness.answers()[0]["cache"] == cache


@pytest.mark.promise("MK-FORK-HISTORY", "MK-FORK-KNOWS")
async def test_a_forks_fork_has_all_that_went_before() -> None:
    harness = MeerkatHarness(
        fork("one"),
        says("Waiting."),
        says("Thanks."),
        forked={"one": [fork("two"), says("Waiting."), says("1.")], "two": [says("2.")]},
        settings=MeerkatSettings(nested_tools=True),
    )

    await harness.play()

    (request,) = harness.requests("root/fork/1/fork/1")
    texts = [message.text for message in request.messages]
    assert texts == [TASK, "", STILL_OPEN, "one", "", STILL_OPEN, "two"]
    assert harness.answers("root/fork/1")[0]["messages_inherited"] == 4


# ---- at real wires --------------------------------------------------------------------------------------------------


def plays(request: ReceivedRequest) -> Line:
    """The root looks, forks and waits; a fork answers at once."""
    said = json.dumps(request.body)
    if "the fork's task" in said and said.count("agent_fork") and "[you are a fork" in said:
        return says("Nothing below.")
    if "Agent forked successfully" in said:
        return says("Waiting.") if "[sub-agent fork-" not in said else _status(said)
    return fork("the fork's task") if "2 lines about" in said else calls("grep", pattern="pool")


def _status(said: str) -> Line:
    if "cached_tokens" in said:
        return says("Thanks.")
    agent_id = said.partition('agent_id\\":\\"')[2][:36]
    return calls("agent_status", agent_id=agent_id)


WIRES: dict[str, Callable[[], Any]] = {
    "anthropic": lambda: FakeAnthropic(plays),
    "openai-chat": lambda: FakeChat(plays),
    "openai-responses": lambda: FakeResponses(plays),
}


@asynccontextmanager
async def opened(wire: str, settings: MeerkatSettings) -> AsyncGenerator[retinue.Retinue]:
    async with (
        WIRES[wire]() as vendor,
        retinue.open(
            model=f"{wire}:{OWN}",
            base_url=vendor.base_url,
            tools=[grep],
            dialects=["meerkat"],
            dialect_settings={"meerkat": settings},
            home=retinue.MEMORY,
        ) as r,
    ):
        yield r


@pytest.mark.real_time
@pytest.mark.promise("MK-FORK-CACHED", "MK-FORK-CACHE", "MK-FORK-REPAIR", "MK-FORK-TOOLS")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_fork_hits_the_vendors_cache_only_with_its_parents_tools(wire: str) -> None:
    cached: dict[bool, int] = {}
    long = "Be thorough. " * 400
    for keeps in (True, False):
        async with opened(wire, MeerkatSettings(fork_keeps_tools=keeps)) as r:
            run = await r.spawn(TASK, system=long)
            assert (await run.wait()).text == "Thanks."
            results = [event.text async for event in run.events() if isinstance(event, CallReturned)]
            status = next(json.loads(text) for text in results if "cached_tokens" in text)
            told = next(json.loads(text) for text in results if "messages_inherited" in text)
            (child,) = [view for view in await r.tree(run) if view.agent == "fork"]
        assert (status["state"], status["output"]) == ("completed", "Nothing below.")
        assert status["cached_tokens"] == child.usage.cached
        assert told["cache"] == ("shared" if keeps else "lost: other tools")
        cached[keeps] = child.usage.cached
        assert child.usage.cached <= child.usage.input
        if keeps:
            assert child.usage.cached > child.usage.input * 0.8
    assert cached[False] < cached[True] / 10  # one tool is the same, and nothing after it


@pytest.mark.real_time
@pytest.mark.promise("MK-FAMILY", "MK-BACKGROUND", "MK-CLIENT")
async def test_sub_agents_work_at_another_vendor_than_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    def leads(request: ReceivedRequest) -> Line:
        said = json.dumps(request.body)
        if "sub-agent spawned" not in said.lower():
            return together(
                spawn(provider="gpt"), spawn(provider="google"), fork(provider="openai", model="gpt-5.2-pro")
            )
        return says("Waiting.") if said.count("completed] Task") < 2 else says("Thanks.")

    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    async with FakeAnthropic(leads) as lead, FakeChat(says("42")) as other:
        provider_configs = [provider_config("mine", wire="openai-chat", base_url=other.base_url)]
        async with retinue.open(
            model=f"anthropic:{OWN}",
            base_url=lead.base_url,
            provider_configs=provider_configs,
            dialects=["meerkat"],
            home=retinue.MEMORY,
        ) as r:
            run = await r.spawn(TASK)
            assert (await run.wait()).text == "Thanks."
            results = [event.text async for event in run.events() if isinstance(event, CallReturned)]

    assert [json.loads(text)["model"] for text in results if text[0] == "{"] == ["gpt-5.2", "gpt-5.2-pro"]
    assert [text for text in results if text[0] != "{"] == [
        "Execution failed: Failed to create LLM client: Missing API key for provider: gemini"
    ]
    assert sorted(request.body["model"] for request in other.requests) == ["gpt-5.2", "gpt-5.2-pro"]
    assert {request.body["model"] for request in lead.requests} == {OWN}
