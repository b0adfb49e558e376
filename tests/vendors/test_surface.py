"""The loops with the vendors' own SDKs on the page of `retinue.surface`, run as they stand against fake servers."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.testing import Script, ScriptedProvider, calls, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.providers.fakes.anthropic import FakeAnthropic

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "surface.md"
LOOPS = {name: block for block, name in re.findall(r"```text\n(client = (\w+)\..*?)```", PAGE.read_text(), re.DOTALL)}
TASK, ANSWER = "Count the owls.", "There are 4711 owls."

pytestmark = pytest.mark.real_time  # a server on loopback


def test_the_page_has_a_loop_for_each_sdk() -> None:
    assert sorted(LOOPS) == ["anthropic", "openai"]


async def run(sdk: str, base_url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], Any]:
    """Run a loop with a sub-agent that plays a line; the messages at its end, and the last reply."""
    module = pytest.importorskip(sdk, reason="make vendors installs it")
    monkeypatch.setenv(f"{sdk.upper()}_BASE_URL", base_url)
    monkeypatch.setenv(f"{sdk.upper()}_API_KEY", "sk-test")
    source, count = re.subn(r'surface\("native", model="[^"]+"\)', 'surface("native", **OPTIONS)', LOOPS[sdk])
    assert count == 1
    names: dict[str, Any] = {
        sdk: module,
        "retinue": retinue,
        "messages": [{"role": "user", "content": "How many owls are there?"}],
        "OPTIONS": {
            "provider": ScriptedProvider(Script().play("general", says(ANSWER))),
            "home": retinue.MEMORY,
        },
    }
    exec(f"async def loop():\n{textwrap.indent(source, '    ')}\n    return reply, client", names)
    reply, client = await names["loop"]()
    await client.close()
    return names["messages"], reply


async def test_the_loop_with_the_sdk_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ChatScript().play(calls("run_agent", task=TASK), says("4711."))
    async with FakeChat(script) as vendor:
        messages, reply = await run("openai", vendor.base_url, monkeypatch)

    assert ANSWER in messages[2]["content"]
    assert reply.choices[0].message.content == "4711."


async def test_the_loop_with_the_sdk_of_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ChatScript().play(calls("run_agent", task=TASK), says("4711."))
    async with FakeAnthropic(script) as vendor:
        messages, reply = await run("anthropic", vendor.base_url, monkeypatch)

    (result,) = messages[2]["content"]
    assert (ANSWER in result["content"], result["is_error"]) == (True, False)
    assert reply.content[0].text == "4711."
