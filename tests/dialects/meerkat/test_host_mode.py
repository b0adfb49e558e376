"""Host mode: sub-agents serve messages until their budget, a cancel or their parent ends them."""

import pytest

from retinue.core.ports import Request
from retinue.core.run import Limits
from retinue.providers.scripted import Line, ScriptedReply, calls, says, together
from tests.dialects.meerkat.harness import COMMS, TASK, MeerkatHarness, about, name, spawn, tells, to_parent, users


def host(prompt: str = "keep the books", **more: object) -> ScriptedReply:
    return spawn(prompt, host_mode=True, **more)


@pytest.mark.promise("MK-HOST", "MK-HOST-ENDS", "MK-NAMES", "MK-STATUS")
async def test_a_host_serves_messages_until_its_parent_ends() -> None:
    def serves(request: Request) -> Line:
        return calls("send_message", to="parent", body=f"You said: {request.messages[-1].text.splitlines()[-1]}")

    harness = MeerkatHarness(
        host(),
        tells("one"),
        says("Waiting."),
        about("agent_status"),
        tells("two"),
        says("Waiting."),
        says("Thanks."),
        hosts={"keep the books": [says("Ready."), serves, says("Served."), serves, says("Served.")]},
        settings=COMMS,
        latency=1.0,
    )

    outcome = await harness.play()

    child = harness.row("root/host/1").run_id
    assert outcome.text == "Thanks."
    assert harness.answers()[0]["name"] == name(child)
    assert harness.answers()[2] == {"agent_id": child, "state": "running", "is_final": False, "duration_ms": 3000}
    assert users(harness, "root")[1:] == [
        f"[message from {name(child)}]\nYou said: one",
        f"[message from {name(child)}]\nYou said: two",
    ]
    ended = harness.outcome("root/host/1")
    assert (ended.result, ended.reason, ended.exchanges) == ("cancelled", "parent_ended", 3)


@pytest.mark.promise("MK-HOST-ENDS", "MK-COMMS-OFFLINE")
async def test_a_cancelled_host_has_ended() -> None:
    harness = MeerkatHarness(
        host(),
        about("agent_cancel"),
        together(calls("list_peers"), calls("agent_list")),
        says("Thanks."),
        hosts={"keep the books": [says("Ready.")]},
        settings=COMMS,
        latency=1.0,
    )

    await harness.play()

    assert harness.answers()[1]["success"] is True
    assert (harness.answers()[2], harness.answers()[3]["failed_count"]) == ({"peers": []}, 1)


@pytest.mark.promise("MK-HOST-ENDS", "MK-NOTICE", "MK-BUDGET")
async def test_a_host_without_budget_has_completed_with_its_last_text() -> None:
    harness = MeerkatHarness(
        host(budget={"max_turns": 1}),
        tells("one"),
        about("agent_status"),
        says("Thanks."),
        hosts={"keep the books": [says("Ready.")]},
        settings=COMMS,
        latency=1.0,
    )

    await harness.play()

    child = harness.row("root/host/1").run_id
    assert users(harness, "root")[1:] == [f"[sub-agent {name(child)} completed] Task: keep the books\nReady."]
    status = harness.answers()[2]
    assert (status["state"], status["output"], status["is_final"]) == ("completed", "Ready.", True)


@pytest.mark.promise("MK-COMMS-ENDLESS")
async def test_two_that_message_each_other_for_ever_are_ended_by_their_budgets() -> None:
    def ping(request: Request) -> Line:
        return tells("ping " * 50)(request)

    def pong(request: Request) -> Line:
        return to_parent("pong " * 50)

    harness = MeerkatHarness(host(budget={"max_tokens": 30_000}), settings=COMMS)
    harness.script("main", *[line for _ in range(200) for line in (ping, says("Waiting."))])
    harness.script("host", says("Ready."), *[line for _ in range(200) for line in (pong, says("Waiting."))])
    async with harness:
        outcome = await harness.run(TASK, limits=Limits(max_turns=300, max_tokens=200_000))
        harness.provider.script.verify = lambda: None

    ended = harness.outcome("root/host/1")
    assert (ended.result, ended.reason) == ("exhausted", "max_tokens")
    assert ended.usage.total <= 30_000 + 2_000
    assert outcome.usage.total <= 200_000 + 2_000


@pytest.mark.promise("MK-COMMS-ENDLESS")
async def test_an_endless_talk_with_a_root_that_has_turns_only_ends_with_its_turns() -> None:
    def ping(request: Request) -> Line:
        return tells("ping")(request)

    harness = MeerkatHarness(host(budget={"max_turns": 1_000}), *[ping] * 39, settings=COMMS)
    harness.script("host", *[line for _ in range(100) for line in (says("Ready."), to_parent("pong"))])
    async with harness:
        outcome = await harness.run(TASK, limits=Limits(max_turns=40))
        harness.provider.script.verify = lambda: None

    assert (outcome.result, outcome.reason) == ("exhausted", "max_turns")
    assert harness.outcome("root/host/1").result == "cancelled"
