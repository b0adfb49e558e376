"""Notices and messages in the requests of real wires, which strict vendors accept."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import retinue
from retinue.providers.scripted import Line, calls, says, together
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.dialects.meerkat.harness import COMMS, OWN, TASK, fork, grep, spawn
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

WIRES: dict[str, Callable[[Callable[[ReceivedRequest], Line]], Any]] = {
    "anthropic": FakeAnthropic,
    "openai-chat": FakeChat,
    "openai-responses": FakeResponses,
    "gemini": FakeGemini,
}


def plays(request: ReceivedRequest) -> Line:
    """A root with one of each kind; all of them write to it, and it writes to the host."""
    said = json.dumps(request.body, ensure_ascii=False)
    told = said.rpartition("# Task")[2] if "# Task" in said else ""
    if told.startswith("\\n\\ndig"):
        return says("Dug.") if "sent" in told else calls("send_message", to="parent", body="a trace")
    if told.startswith("\\n\\nlook"):
        return says("Nothing.") if "2 lines" in told else calls("grep", pattern="x")
    if told.startswith("\\n\\nkeep"):
        is_asked = "[message from parent]" in told and "Booked." not in told
        return calls("send_message", to="parent", body="Booked.") if is_asked else says("Ready.")
    names = re.findall(r"(sub-agent-[0-9a-f]{12})", said)
    if not names:
        return together(says("Let us see."), spawn("dig"), fork("look"), spawn("keep", host_mode=True))
    if "Book it." not in said:
        return calls("send_message", to=list(dict.fromkeys(names))[1], body="Book it.")
    everything = ("a trace", "Task: dig", "Task: look", "Booked.")
    return says("All in." if all(word in said for word in everything) else "Waiting.")


@pytest.mark.real_time
@pytest.mark.promise("MK-NOTICE", "MK-COMMS-WORDS", "MK-FORK-REPAIR", "MK-HOST")
@pytest.mark.parametrize("wire", WIRES)
async def test_every_vendor_accepts_a_conversation_with_news_messages_and_forks(wire: str) -> None:
    async with (
        WIRES[wire](plays) as vendor,
        retinue.open(
            model=f"{wire}:{OWN}",
            base_url=vendor.base_url,
            tools=[grep],
            dialects=["meerkat"],
            dialect_settings={"meerkat": COMMS},
            home=retinue.MEMORY,
        ) as r,
    ):
        run = await r.spawn(TASK)
        outcome = await run.wait()
        views = await r.tree(run)

    assert (outcome.result, outcome.text, outcome.error) == ("completed", "All in.", "")
    assert {view.agent: view.outcome and view.outcome.result for view in views} == {
        "main": "completed",
        "sub-agent": "completed",
        "fork": "completed",
        "host": "cancelled",
    }
