"""A chat is one conversation, whatever its flags: children of earlier answers stay known, after a restart too."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, calls, fails, hangs, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.pty_command import PtyCommand
from tests.cli.stage import Ended, retinue, serving

pytestmark = pytest.mark.real_time

SETTINGS = """
[agents.lead]
description = "Leads."
system_prompt = "You lead."
max_turns = 9

[agents.lead.limits]
timeout = 600

[agents.dig]
description = "Digs."
system_prompt = "You dig."

[sub_agents]
enable_comms = true
"""

FLAGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "agent": ("--agent", "lead"),
    "tokens": ("--max-tokens", "200000"),
    "cost": ("--max-cost", "5", "--unpriced", "ok"),
}


class Model:
    """A model that makes the tool call an input names, and answers with the result of the call.

    A child with the task `hang` never answers, every other one answers at once.
    """

    def __init__(self, **inputs: Line) -> None:
        self._inputs = inputs

    def learn(self, **inputs: Line) -> None:
        """Make these tool calls at these inputs from now on."""
        self._inputs |= inputs

    def __call__(self, heard: ReceivedRequest) -> Line:
        last = heard.body["messages"][-1]
        text = last["content"]
        if last["role"] == "tool":
            return says(text)
        if text.endswith("hang"):
            return hangs()
        return self._inputs.get(text) or says(f"found: {text.split()[-1]}")


SPEC = Model(
    start=calls("subagent", action="spawn", agent="dig", task="hang"),
    quick=calls("subagent", action="spawn", agent="dig", task="small"),
    wait=calls("subagent", action="wait", task_ids=["t_01"], timeout_ms=20_000),
    status=calls("subagent", action="status", task_id="t_01"),
    collect=calls("subagent", action="collect", task_id="t_01"),
)
MEERKAT = Model(
    start=calls("agent_spawn", prompt="serve", host_mode=True),
    quick=calls("agent_spawn", prompt="small"),
    list=calls("agent_list"),
)
ZEROCLAW = Model(
    start=calls("delegate", agent="dig", prompt="hang", background=True),
    quick=calls("delegate", agent="dig", prompt="small", background=True),
    list=calls("delegate", action="list_results"),
)


@pytest.fixture
def settings(folder: Path) -> Path:
    (folder / "retinue.toml").write_text(SETTINGS)
    return folder


def chat(cli: Cli, vendor: FakeChat, dialect: str, *inputs: str, flags: tuple[str, ...] = ()) -> Ended:
    """One process of the session `s`, with these inputs."""
    stdin = "".join(f"{line}\n" for line in inputs).encode()
    where = ("--base-url", vendor.base_url, "--model", "m", "--session", "s", "--dialect", dialect, "--quiet")
    return cli("chat", *where, *flags, stdin=stdin)


def objects(ended: Ended) -> list[dict[str, Any]]:
    """The JSON objects on stdout, one for each answer."""
    decoder, text, found = json.JSONDecoder(), ended.stdout.strip(), list[dict[str, Any]]()
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].strip()
    return found


def first_object(ended: Ended) -> dict[str, Any]:
    """The JSON object at the start of stdout."""
    value, _ = json.JSONDecoder().raw_decode(ended.stdout)
    return value


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_a_running_task_survives_the_answer_that_started_it(cli: Cli, settings: Path, flags: tuple[str, ...]) -> None:
    with serving(SPEC) as vendor:
        ended = chat(cli, vendor, "spec", "start", "status", flags=flags)

    started, status = objects(ended)
    assert started == {"task_id": "t_01", "agent": "dig", "status": "running"}
    assert status == {"task_id": "t_01", "agent": "dig", "status": "running", "turns_used": 0}
    assert "cancelled 1 running task(s): t_01" in ended.stderr  # at the end of the chat, and not before
    assert len(cli("runs", "--json").json) == 1


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_a_host_keeps_running_between_answers(cli: Cli, settings: Path, flags: tuple[str, ...]) -> None:
    with serving(MEERKAT) as vendor:
        ended = chat(cli, vendor, "meerkat", "start", "list", flags=flags)

    started, listing = objects(ended)
    (row,) = listing["agents"]
    assert (row["id"], row["state"], listing["running_count"]) == (started["agent_id"], "running", 1)


@pytest.mark.promise("MK-CHAT")
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_sub_agents_are_known_after_a_restart(cli: Cli, settings: Path, flags: tuple[str, ...]) -> None:
    with serving(MEERKAT) as vendor:
        started = first_object(chat(cli, vendor, "meerkat", "quick", flags=flags))
        (listing,) = objects(chat(cli, vendor, "meerkat", "list", flags=flags))
        status = Model(status=calls("agent_status", agent_id=started["agent_id"]))
    with serving(status) as vendor:
        (known,) = objects(chat(cli, vendor, "meerkat", "status", flags=flags))

    row = {"id": started["agent_id"], "name": started["name"], "state": "completed", "depth": 1}
    assert listing == {"agents": [row], "running_count": 0, "completed_count": 1, "failed_count": 0, "total_count": 1}
    assert (known["agent_id"], known["state"], known["output"]) == (started["agent_id"], "completed", "found: small")


def test_a_sub_agent_of_an_earlier_answer_cannot_be_cancelled_or_messaged(cli: Cli, settings: Path) -> None:
    with serving(MEERKAT) as vendor:
        started = first_object(chat(cli, vendor, "meerkat", "start"))
    late = Model(
        cancel=calls("agent_cancel", agent_id=started["agent_id"]),
        send=calls("send_message", to=started["name"], body="Still there?"),
        other=calls("agent_status", agent_id="01a1df26-cf36-7958-a316-2fa6e93daa3b"),
    )
    with serving(late) as vendor:
        cancelled = chat(cli, vendor, "meerkat", "cancel").stdout
        sent = chat(cli, vendor, "meerkat", "send").stdout
        unknown = chat(cli, vendor, "meerkat", "other").stdout

    refusal = "Cannot cancel sub-agent: already cancelled (only running agents can be cancelled)"
    assert (json.loads(cancelled)["success"], json.loads(cancelled)["message"]) == (False, refusal)
    assert sent == "Execution failed: Peer offline (no ack received)\n"
    assert unknown == "Execution failed: Sub-agent not found: 01a1df26-cf36-7958-a316-2fa6e93daa3b\n"


PAIRS = [*((each, each) for each in FLAGS), ("agent", "tokens"), ("cost", "plain")]
"""The flags of a first and a second process."""


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_tasks_of_an_earlier_process_can_be_collected(cli: Cli, settings: Path, before: str, after: str) -> None:
    with serving(SPEC) as vendor:
        first = chat(cli, vendor, "spec", "quick", "wait", flags=FLAGS[before])
        again = chat(cli, vendor, "spec", "status", "collect", "collect", flags=FLAGS[after])

    assert objects(first)[1] == {"done": ["t_01"], "pending": [], "timed_out": False}
    facts = {"task_id": "t_01", "agent": "dig", "status": "completed", "turns_used": 1}
    assert objects(again) == [
        facts,
        facts | {"result": "found: small"},
        {"error": "TASK_NOT_FOUND", "message": "Unknown or already-collected task: 't_01'"},
    ]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_background_results_of_an_earlier_process_can_be_read(
    cli: Cli, settings: Path, before: str, after: str
) -> None:
    with serving(ZEROCLAW) as vendor:
        started = chat(cli, vendor, "zeroclaw", "quick", flags=FLAGS[before])
    task_id = re.findall(r"[0-9a-f-]{36}", started.stdout)[0]
    check = Model(check=calls("delegate", action="check_result", task_id=task_id))
    with serving(check) as vendor:
        again = chat(cli, vendor, "zeroclaw", "check", flags=FLAGS[after])

    result = json.loads(again.stdout)
    assert (result["status"], result["agent"]) == ("Completed", "dig")
    assert result["output"].endswith("found: small")


def test_a_failed_answer_cancels_no_children(cli: Cli, settings: Path) -> None:
    broken = fails(ProviderError("no", fault="bad_request", status=400))
    model = Model(
        start=calls("subagent", action="spawn", agent="dig", task="hang"),
        status=calls("subagent", action="status", task_id="t_01"),
        broken=broken,
    )
    with serving(model) as vendor:
        ended = chat(cli, vendor, "spec", "start", "broken", "status")

    assert "error: " in ended.stderr or "failed" in ended.stderr
    assert objects(ended)[-1]["status"] == "running"
    (row,) = cli("runs", "--json").json
    assert row["outcome"] == "completed"


class Endless(Model):
    """A model that calls a tool again and again after the input `loop`."""

    def __call__(self, heard: ReceivedRequest) -> Line:
        inputs = [message["content"] for message in heard.body["messages"] if message["role"] == "user"]
        return calls("agent_list") if inputs[-1] == "loop" else super().__call__(heard)


def test_a_limit_on_tokens_holds_for_each_answer_of_one_run(cli: Cli, settings: Path) -> None:
    model = Endless(start=calls("agent_spawn", prompt="serve", host_mode=True), list=calls("agent_list"))
    limit = 12_000
    with serving(model) as vendor:
        ended = chat(cli, vendor, "meerkat", "start", "loop", "list", "list", flags=("--max-tokens", str(limit)))

    assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ["exhausted"]
    assert [json.loads(line)["running_count"] for line in ended.stdout.splitlines()[1:]] == [1, 1]
    (row,) = cli("runs", "--json").json
    assert (row["outcome"], row["usage"]["input"] > limit) == ("completed", True)


# ---- processes that are killed --------------------------------------------------------------------------------------


def start(vendor: FakeChat, dialect: str, *flags: str) -> PtyCommand:
    where = ("--base-url", vendor.base_url, "--model", "m", "--session", "s", "--dialect", dialect, "--quiet")
    return PtyCommand("chat", *where, *flags, all_there=True)


class Released(Model):
    """A model whose children hang until the chat has been killed."""

    def __init__(self, **inputs: Line) -> None:
        super().__init__(**inputs)
        self.is_released = False

    def __call__(self, heard: ReceivedRequest) -> Line:
        if self.is_released and heard.body["messages"][-1]["content"].endswith("hang"):
            return says("found: late")
        return super().__call__(heard)


@pytest.mark.parametrize("flags", [FLAGS["plain"], FLAGS["agent"]], ids=["plain", "agent"])
async def test_tasks_go_on_after_a_chat_is_killed_at_the_prompt(settings: Path, flags: tuple[str, ...]) -> None:
    model = Released(
        start=calls("subagent", action="spawn", agent="dig", task="hang"),
        wait=calls("subagent", action="wait", task_ids=["t_01"], timeout_ms=20_000),
        collect=calls("subagent", action="collect", task_id="t_01"),
    )
    async with FakeChat(model) as vendor:
        terminal = start(vendor, "spec", *flags)
        await terminal.expect("> ")
        terminal.type_line("start")
        await terminal.expect('"status":"running"}')
        await terminal.expect("> ")
        terminal.send_signal(signal.SIGKILL)
        await terminal.result()
        model.is_released = True
        where = ("--base-url", vendor.base_url, "--model", "m", "--session", "s", "--dialect", "spec", "--quiet")
        again = await retinue("chat", *where, *flags, stdin=b"wait\ncollect\n")
    rows = (await retinue("runs", "--json")).json

    assert objects(again) == [
        {"done": ["t_01"], "pending": [], "timed_out": False},
        {"task_id": "t_01", "agent": "dig", "status": "completed", "turns_used": 1, "result": "found: late"},
    ]  # fmt: skip
    assert [(row["state"], row["outcome"]) for row in rows] == [("ended", "completed")]


async def killed_at_the_prompt(terminal: PtyCommand, line: str, answer: str) -> str:
    """The id in the answer to a line, after which the chat was killed."""
    await terminal.expect("> ")
    terminal.type_line(line)
    await terminal.expect(answer)
    await terminal.expect("> ")
    terminal.send_signal(signal.SIGKILL)
    left = await terminal.result()
    return re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", left.terminal.partition(line)[2])[0]


async def continued(vendor: FakeChat, dialect: str, flags: tuple[str, ...], *inputs: str) -> Ended:
    """The next process of the session, with these inputs."""
    where = ("--base-url", vendor.base_url, "--model", "m", "--session", "s", "--dialect", dialect, "--quiet")
    return await retinue("chat", *where, *flags, stdin="".join(f"{line}\n" for line in inputs).encode())


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
async def test_background_results_can_be_read_after_a_chat_is_killed(settings: Path, flags: tuple[str, ...]) -> None:
    model = Released(start=calls("delegate", agent="dig", prompt="hang", background=True))
    async with FakeChat(model) as vendor:
        task_id = await killed_at_the_prompt(start(vendor, "zeroclaw", *flags), "start", "task_id")
        model.is_released = True
        model.learn(
            wait=calls("delegate", action="await", task_ids=[task_id], timeout_ms=20_000),
            check=calls("delegate", action="check_result", task_id=task_id),
        )
        again = await continued(vendor, "zeroclaw", flags, "wait", "check")

    result = objects(again)[-1]
    assert (result["task_id"], result["status"], result["agent"]) == (task_id, "Completed", "dig")
    assert result["output"].endswith("found: late")


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
async def test_sub_agents_are_known_after_a_chat_is_killed(settings: Path, flags: tuple[str, ...]) -> None:
    model = Model(start=calls("agent_spawn", prompt="small"))
    async with FakeChat(model) as vendor:
        agent_id = await killed_at_the_prompt(start(vendor, "meerkat", *flags), "start", '"state":"running"')
        model.learn(status=calls("agent_status", agent_id=agent_id))
        again = await continued(vendor, "meerkat", flags, "status")

    (known,) = objects(again)
    assert (known["agent_id"], known["state"], known["output"]) == (agent_id, "completed", "found: small")


async def test_a_host_goes_on_after_a_chat_is_killed(settings: Path) -> None:
    model = Model(start=calls("agent_spawn", prompt="serve", host_mode=True))
    async with FakeChat(model) as vendor:
        agent_id = await killed_at_the_prompt(start(vendor, "meerkat"), "start", '"state":"running"')
        model.learn(status=calls("agent_status", agent_id=agent_id))
        again = await continued(vendor, "meerkat", (), "status")

    (known,) = objects(again)
    assert (known["agent_id"], known["state"]) == (agent_id, "running")


async def test_a_chat_with_other_flags_continues_in_a_new_run_and_knows_the_children(settings: Path) -> None:
    async with FakeChat(MEERKAT) as vendor:
        terminal = start(vendor, "meerkat")
        await terminal.expect("> ")
        terminal.type_line("start")
        await terminal.expect('"state":"running"')
        await terminal.expect("> ")
        terminal.send_signal(signal.SIGKILL)
        await terminal.result()
        where = ("--base-url", vendor.base_url, "--model", "m", "--session", "s", "--dialect", "meerkat", "--quiet")
        again = await retinue("chat", *where, "--max-turns", "7", stdin=b"list\n")
    rows = (await retinue("runs", "--json")).json

    (listing,) = objects(again)
    assert [row["state"] for row in listing["agents"]] == ["cancelled"]
    assert [(row["state"], row["outcome"]) for row in rows] == [("ended", "completed")] * 2


class Thoughtful(Model):
    """A model that hangs at the input `think`."""

    def __init__(self, **inputs: Line) -> None:
        super().__init__(**inputs)
        self.is_thinking = asyncio.Event()

    def __call__(self, heard: ReceivedRequest) -> Line:
        if heard.body["messages"][-1]["content"] == "think":
            self.is_thinking.set()
            return hangs()
        return super().__call__(heard)


async def test_children_of_a_stopped_answer_are_known_as_cancelled(settings: Path) -> None:
    model = Thoughtful(start=calls("agent_spawn", prompt="serve", host_mode=True), list=calls("agent_list"))
    async with FakeChat(model) as vendor:
        terminal = start(vendor, "meerkat")
        await terminal.expect("> ")
        terminal.type_line("start")
        await terminal.expect('"state":"running"')
        await terminal.expect("> ")
        terminal.type_line("think")
        await model.is_thinking.wait()
        terminal.send_signal(signal.SIGINT)
        await terminal.expect("> ")
        terminal.type_line("list")
        listing = await terminal.expect('"total_count":1}')
        terminal.type_line("/quit")
        await terminal.result()

    assert '"state":"cancelled"' in listing
