"""`--temperature`, `--top-p` and `--max-output-tokens` of `run` and `chat`, and `retinue.ModelOptions`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, open_in_a_thread, serving
from tests.cli.stage import retinue as command
from tests.cli.test_interrupts import SilentOnce, begun, vendor_of
from tests.dialects.buzzllm.harness import WIRES, Wire
from tests.dialects.buzzllm.harness import serving as serving_wire
from tests.providers.fakes.gemini import FakeGemini

FLAGS = ("--temperature", "0.25", "--top-p", "0.9", "--max-output-tokens", "99")
SAMPLING = {"temperature": 0.25, "top_p": 0.9, "max_tokens": 99}


def asking(vendor: FakeChat, *flags: str) -> tuple[str, ...]:
    return ("run", "--base-url", vendor.base_url, "--model", "m", "--quiet", *flags)


def sampling(request: ReceivedRequest) -> dict[str, Any]:
    return {name: request.body[name] for name in SAMPLING if name in request.body}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_run_passes_the_settings_to_its_wire(cli: Cli, wire: Wire) -> None:
    with serving_wire(says("Yes."), wire) as vendor:
        where = ("--provider", wire.name, "--base-url", wire.base(vendor), "--model", "fake-1", "--quiet")
        ended = cli("run", *where, *FLAGS, "--dialect", "none", "Why?")

    body = vendor.requests[0].body
    assert ended == Ended(0, "Yes.\n", "")
    assert (body["temperature"], body["top_p"]) == (0.25, 0.9)
    assert body["max_output_tokens" if wire.name == "openai-responses" else "max_tokens"] == 99


def test_a_run_passes_the_settings_to_gemini(cli: Cli) -> None:
    with open_in_a_thread(FakeGemini(says("Yes."))) as vendor:
        where = ("--provider", "gemini", "--base-url", vendor.base_url, "--model", "gemini-2.5-flash", "--quiet")
        ended = cli("run", *where, *FLAGS, "--dialect", "none", "Why?")

    assert ended == Ended(0, "Yes.\n", "")
    assert vendor.requests[0].body["generationConfig"] == {"maxOutputTokens": 99, "temperature": 0.25, "topP": 0.9}


def test_without_flags_only_the_temperature_of_the_provider_is_sent(cli: Cli, folder: Path) -> None:
    with serving(says("Yes.")) as vendor:
        (folder / "retinue.toml").write_text(
            f'[providers.mine]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\ntemperature = 0.7\n'
        )
        cli("run", "--model", "mine:m", "--quiet", "Why?")
        cli("run", "--model", "mine:m", "--quiet", *FLAGS, "Why?")

    assert [sampling(request) for request in vendor.requests] == [{"temperature": 0.7}, SAMPLING]


def test_the_effort_of_a_flag_comes_before_that_of_the_agent_and_of_the_provider(cli: Cli, folder: Path) -> None:
    with serving(says("Yes.")) as vendor:
        (folder / "retinue.toml").write_text(
            f'[providers.mine]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\neffort = "low"\n'
            '[agents.careful]\ndescription = "careful"\neffort = "high"\nmax_output_tokens = 77\n'
        )
        where = ("--model", "mine:o3", "--quiet", "--dialect", "none")
        cli("run", *where, "Why?")
        cli("run", *where, "--agent", "careful", "Why?")
        cli("run", *where, "--agent", "careful", "--effort", "medium", "Why?")
        refused = cli("run", *where, "--effort", "huge", "Why?")

    bodies = [request.body for request in vendor.requests]
    assert [body.get("reasoning_effort") for body in bodies] == ["low", "high", "medium"]
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 77, 77]
    assert refused.code == 2
    assert "--effort 'huge': expected one of: none, minimal, low, medium, high, xhigh, max" in refused.stderr


@pytest.mark.real_time
def test_a_chat_uses_the_settings_for_every_answer(cli: Cli) -> None:
    with serving(says("Yes.")) as vendor:
        ended = cli("chat", "--base-url", vendor.base_url, "--model", "m", *FLAGS, stdin=b"One?\nTwo?\n")

    assert ended.code == 0
    assert [sampling(request) for request in vendor.requests] == [SAMPLING] * 2


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_a_resumed_run_uses_the_same_settings() -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor:
        interrupted = await begun(vendor, silent, *FLAGS)
        interrupted.signal(signal.SIGINT)
        run_id = (await interrupted.ended()).stderr.split()[-1]
        resumed = await command("runs", "resume", run_id)

    assert (resumed.code, resumed.stdout) == (0, "It was the pool.\n")
    assert [sampling(request) for request in vendor.requests] == [SAMPLING] * 3


def delegating(tool: str, **arguments: object) -> FakeChat:
    """A vendor whose root calls a tool once; a child says that it found something."""

    def play(request: ReceivedRequest) -> Line:
        first = next(message for message in request.body["messages"] if message["role"] == "user")
        if first["content"] != "Go.":
            return says("Found.")
        return says("Done.") if len(request.body["messages"]) > 2 else calls(tool, **arguments)

    return FakeChat(play)


def child_of(vendor: FakeChat) -> ReceivedRequest:
    return next(request for request in vendor.requests if "Find it." in str(request.body["messages"][-1]))


def test_a_child_does_not_have_the_settings_of_the_root(cli: Cli) -> None:
    with open_in_a_thread(delegating("subagent", label="dig", task_prompt="Find it.")) as vendor:
        ended = cli(*asking(vendor, "--dialect", "xzatoma"), *FLAGS, "Go.")

    assert ended == Ended(0, "Done.\n", "")
    assert sampling(vendor.requests[0]) == SAMPLING
    assert sampling(child_of(vendor)) == {}


@pytest.mark.real_time
@pytest.mark.promise("BZ-OPTIONS", "BZ-MAX-TOKENS")
def test_a_subagent_of_call_subagent_has_temperature_and_maximum_of_its_caller(cli: Cli) -> None:
    with open_in_a_thread(delegating("call_subagent", prompt="Find it.")) as vendor:
        ended = cli(*asking(vendor, "--dialect", "buzzllm"), *FLAGS, "Go.")

    assert ended == Ended(0, "Done.\n", "")
    assert sampling(child_of(vendor)) == {"temperature": 0.25, "max_tokens": 99}


def test_a_fork_of_meerkat_continues_with_the_settings_of_its_caller(cli: Cli) -> None:
    def play(request: ReceivedRequest) -> Line:
        if "Find it." in str(request.body["messages"][-1]):
            return says("Found.")
        return says("Done.") if len(request.body["messages"]) > 2 else calls("agent_fork", prompt="Find it.")

    with serving(play) as vendor:
        ended = cli(*asking(vendor, "--dialect", "meerkat"), *FLAGS, "Go.")

    assert ended.code == 0
    assert sampling(child_of(vendor)) == SAMPLING


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("--temperature", "2.1", "2.1 is not in the range 0<=x<=2"),
        ("--temperature", "-1", "-1.0 is not in the range 0<=x<=2"),
        ("--temperature", "nan", "temperature: found nan; expected a number from 0 to 2"),
        ("--temperature", "hot", "'hot' is not a number"),
        ("--top-p", "1.1", "1.1 is not in the range 0<=x<=1"),
        ("--max-output-tokens", "0", "0 is not in the range x>=1"),
        ("--max-output-tokens", "1.5", "'1.5' is not a whole number"),
    ],
)
def test_a_value_out_of_range_exits_2(cli: Cli, command: str, flag: str, value: str, error: str) -> None:
    with serving(says("Yes.")) as vendor:
        prompt = ("Why?",) if command == "run" else ()
        ended = cli(command, "--base-url", vendor.base_url, "--model", "m", flag, value, *prompt)

    assert (ended.code, ended.stdout, vendor.requests) == (2, "", [])
    assert error in ended.stderr


@pytest.mark.parametrize("wire", ["anthropic", "vertexai-anthropic"])
def test_a_temperature_above_that_of_the_wire_exits_2(cli: Cli, wire: str) -> None:
    url = "http://127.0.0.1:9/v1/messages"
    where = ("--provider", wire, "--base-url", url, "--model", "m")
    by_run = cli("run", *where, "--temperature", "1.5", "Why?")
    by_buzz = cli("buzz", "m", url, "Why?", "--provider", wire, "--api-key-name", "", "--temperature", "1.5")

    error = f"error: temperature: found 1.5; expected a number from 0 to 1, as the wire {wire} takes it\n"
    assert (by_run, by_buzz) == (Ended(2, "", error), Ended(2, "", error))


async def test_python_programs_pass_the_settings_as_options() -> None:
    settings = retinue.ModelOptions(temperature=0.25, top_p=0.9, max_output_tokens=99)
    async with (
        FakeChat(says("Yes.")) as vendor,
        retinue.open(model="openai-chat:m", base_url=vendor.base_url, home=retinue.MEMORY, dialects=()) as r,
    ):
        outcome = await r.run("Why?", options=settings)

    assert outcome.text == "Yes."
    assert sampling(vendor.requests[0]) == SAMPLING


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_output_tokens"])
def test_sampling_out_of_range_is_refused(name: str) -> None:
    negative: dict[str, Any] = {name: -1}
    with pytest.raises(BadInput, match=f"{name}: found -1; expected a number from "):
        retinue.ModelOptions(**negative)
