"""Child processes that crash, hang or are killed, and killed parents: clear errors, and no process is left."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.core.policy import Policy
from retinue.core.usage import Usage
from retinue.dialects.buzzllm import BuzzllmSettings, process_provider
from retinue.dialects.child_process import Grant, Tally, last_tally
from retinue.providers.scripted import Line, ScriptedReply, calls, hangs, says, streams
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import Command
from tests.dialects.buzzllm.harness import (
    CHAT,
    BuzzllmHarness,
    Cast,
    below,
    call_subagent,
    callers,
    command_of,
    exists,
    one_by_one,
    opened,
)

pytestmark = pytest.mark.real_time
BYE = says("Thanks.")
END = 'event: response_end\ndata: {"id":"","delta":"","type":"response_end"}\n\n'
HI = 'event: output_text\ndata: {"id":"","delta":"Hi.","type":"output_text"}\n\n'


async def read(program: str, monkeypatch: pytest.MonkeyPatch, seconds: int = 60) -> list[str]:
    """What a caller reads whose child is this program."""
    monkeypatch.setattr(process_provider, "COMMAND", (sys.executable, "-c", program))
    settings = {"buzzllm": BuzzllmSettings(timeout_secs=seconds, warm_processes=0)}
    async with (
        CHAT.vendor(Cast((call_subagent(tool_subset=["bash_find"]), BYE), BYE)) as vendor,
        opened(CHAT, vendor, dialect_settings=settings) as r,
    ):
        harness = BuzzllmHarness(r)
        await harness.play()
        return harness.read()


@pytest.mark.promise("BZ-STDIN", "BZ-KEYS", "BZ-MAX-TOKENS")
async def test_a_child_reads_the_ten_fields_and_the_name_of_the_key_on_stdin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "stdin"
    # The next process is kept ready, and hears nothing.
    told = f"import sys; told = sys.stdin.read(); told and open({str(said)!r}, 'w').write(told)"
    program = f"{told}; print({HI + END!r})"
    monkeypatch.setenv("MY_KEY", "sk-secret-1234")
    monkeypatch.setattr(process_provider, "COMMAND", (sys.executable, "-c", program))
    cast = Cast((call_subagent(system_prompt="You dig.", tool_subset=["bash_find"]), BYE), BYE)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor, api_key_env="MY_KEY") as r:
        await BuzzllmHarness(r).play()
        url = f"{vendor.base_url}/chat/completions"

    assert json.loads(said.read_text(), object_pairs_hook=lambda pairs: [list(pair) for pair in pairs]) == [
        ["model", "fake-1"],
        ["provider", "openai-chat"],
        ["url", url],
        ["api_key_name", "MY_KEY"],
        ["prompt", "Find it."],
        ["system_prompt", "You dig."],
        ["tool_subset", ["bash_find"]],
        ["think", False],
        ["temperature", 0.8],
        ["max_tokens", 8192],
    ]


def prints(*texts: str, code: int = 0) -> str:
    """A program that says this and ends so."""
    return f"import sys; sys.stdout.write({''.join(texts)!r}); sys.exit({code})"


def event(kind: str, data: str) -> str:
    """An event in the usual spacing."""
    return f"event: {kind}\ndata: {data}\n\n"


INCOMPLETE = "Error: Subagent ended without a complete answer"
UNREADABLE = "Error: Subagent wrote an output_text event that cannot be read"


@pytest.fixture
def earlier() -> set[int]:
    """The processes that other tests of the session keep, such as a database server."""
    return below(os.getpid())


@pytest.mark.promise("BZ-EXIT-CODE", "BZ-SSE", "BZ-REASON")
@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("raise SystemExit(3)", "Error: Subagent exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "Error: Subagent exited with code -9"),
        ("import os; os.close(0); os._exit(7)", "Error: Subagent exited with code 7"),
        (
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1); sys.exit(3)",
            "Error: Subagent exited with code 3",
        ),
        ("import sys; sys.exit('error: no such provider')", "Error: no such provider"),
        ("import sys; sys.exit('Segmentation fault')", "Error: Subagent exited with code 1"),
        (prints(HI, event("block_end", '{"delta":"Error: out of paper"}'), code=1), "Error: out of paper"),
        (prints(HI, END, code=5), "Error: Subagent exited with code 5"),
        (prints(), INCOMPLETE),
        (prints("garbage " * 10_000), INCOMPLETE),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)) * 500)", INCOMPLETE),
        (prints(HI), INCOMPLETE),
        (prints(event("output_text", "nonsense"), END), UNREADABLE),
        (prints(event("output_text", '{"delta":7}'), END), UNREADABLE),
        (prints("Traceback: x\n", HI, 'noise\ndata: {"delta": " More."}\n', END, "bye"), "Hi. More."),
        (prints('  event:output_text \r\n\tdata:{ "delta" : "Any spacing." }\r\nevent:response_end'), "Any spacing."),
        (prints(event("reasoning_content", '{"delta":"hm"}'), event("tool_result", "x"), HI, END), "Hi."),
        (prints(event("output_structured", '{"delta":"{}"}'), END), ""),
    ],
)
async def test_every_failure_of_a_child_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, earlier: set[int], program: str, answer: str
) -> None:
    assert await read(program, monkeypatch) == [answer]
    assert below(os.getpid(), without=earlier) == set()


@pytest.mark.promise("BZ-TIMEOUT", "BZ-REAPED")
async def test_a_child_that_hangs_is_killed_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, earlier: set[int]
) -> None:
    monkeypatch.setattr("retinue.dialects.buzzllm.process_provider.MARGIN", 0.0)
    program = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)"
    )

    assert await read(program, monkeypatch, seconds=1) == ["Error: Subagent did not finish within 1 s and was killed"]
    assert below(os.getpid(), without=earlier) == set()


@pytest.mark.promise("BZ-STARTS")
async def test_a_child_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_provider, "COMMAND", ("/no/such/program",))
    async with CHAT.vendor(Cast((call_subagent(), BYE), BYE)) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play()

    assert harness.read() == ["Error: Subagent process could not be started: No such file or directory"]


@pytest.mark.promise("BZ-KILLED", "BZ-USAGE")
async def test_a_killed_child_is_an_error_and_its_usage_is_counted() -> None:
    def child(request: ReceivedRequest) -> ScriptedReply:
        if len(cast.children) == 1:
            return ScriptedReply(calls=calls("bash_find", path=".").calls, usage=Usage(input=100, output=10))
        for pid in callers():
            os.kill(pid, signal.SIGKILL)
        return says("Too late.")

    cast = Cast((call_subagent(tool_subset=["bash_find"]), BYE), child)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play()
        killed, _ = await r.tree(harness.root_id)

    assert harness.read() == ["Error: Subagent exited with code -9"]
    assert killed.usage == Usage(input=100, output=10)


@pytest.mark.promise("BZ-CANCEL", "BZ-REAPED")
async def test_a_cancelled_call_leaves_no_process(earlier: set[int]) -> None:
    requested = asyncio.Event()

    def child(_: ReceivedRequest) -> Line:
        requested.set()
        return hangs("Let me ")

    cast = Cast((call_subagent(), BYE), child)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        run = await r.spawn("Go.")
        await requested.wait()
        at_work = callers()
        await run.cancel()
        outcome = await run.wait()

    assert (outcome.result, len(at_work)) == ("cancelled", 1)
    assert below(os.getpid(), without=earlier) == set()


async def soon(happened: Callable[[], bool]) -> bool:
    """Whether something happens in other processes, within twenty seconds."""
    for _ in range(400):
        if happened():
            return True
        await asyncio.sleep(0.05)
    return False


def is_sandboxed_code(pid: int) -> bool:
    """Whether a process is the Python that runs a model's code; the code itself comes on its stdin."""
    return "token, code = json.loads" in command_of(pid) and "bwrap" not in command_of(pid)


@pytest.mark.promise("BZ-PARENT-KILLED", "BZ-AGAIN")
async def test_nothing_is_left_of_a_parent_that_is_killed_and_its_run_can_be_resumed(
    tmp_path: Path, earlier: set[int]
) -> None:
    answers = one_by_one(hangs("Let me "), says("Found."))
    async with CHAT.vendor(cast := Cast((call_subagent(), BYE), answers)) as vendor:
        home = {"RETINUE_HOME": str(tmp_path / "home")}
        flags = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "fake-1")
        command = await Command.start("run", *flags, "--dialect", "buzzllm", "Go.", env=home, cwd=tmp_path)
        assert await soon(lambda: bool(cast.children))
        tree = below(os.getpid(), without=earlier)
        command.signal(signal.SIGKILL)
        await command.ended()
        assert len(tree) >= 2
        assert await soon(lambda: not any(map(exists, tree)))

        listed = await (await Command.start("runs", "--json", env=home, cwd=tmp_path)).ended()
        (run,) = listed.json
        resumed = await (await Command.start("runs", "resume", run["run_id"], env=home, cwd=tmp_path)).ended()

    assert (resumed.code, resumed.stdout) == (0, "Thanks.\n")
    assert json.dumps("Found.") in json.dumps(cast.root[-1].body)
    assert len(cast.children) == 2


@pytest.fixture(params=[(), ("--no-sandbox", "--agent", "free")], ids=["fenced", "unfenced"])
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Flags for programs within a sandbox, if there is one, and without."""
    if not request.param:
        request.getfixturevalue("sandbox")
    return request.param


@pytest.mark.promise("BZ-PARENT-KILLED")
async def test_programs_of_a_childs_tools_go_with_a_parent_that_is_killed(
    tmp_path: Path, flags: tuple[str, ...], earlier: set[int]
) -> None:
    rights = '[risk_profiles.any]\nlevel = "full"\nblock_high_risk_commands = false\n'
    (tmp_path / "retinue.toml").write_text(f'[agents.free]\ndescription = "x"\nrisk_profile = "any"\n{rights}')
    lines = one_by_one(calls("python_execute", code="import time; time.sleep(600)", timeout=300), says("Done."))
    async with CHAT.vendor(cast := Cast((call_subagent(tool_subset=["python_execute"]), BYE), lines)) as vendor:
        command = await Command.start(
            *("run", "--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "fake-1"),
            *("--dialect", "buzzllm", *flags, "Go."),
            env={"RETINUE_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
        )
        assert await soon(lambda: any(map(is_sandboxed_code, below(os.getpid(), without=earlier))))
        tree = below(os.getpid(), without=earlier)
        command.signal(signal.SIGKILL)
        await command.ended()

    assert await soon(lambda: not any(map(exists, tree)))
    assert len(cast.children) == 1


@pytest.mark.promise("BZ-GRANT")
async def test_a_waiting_child_leaves_when_its_parent_lets_go() -> None:
    child = process_provider.ChildProcess(process_provider.COMMAND, os.environ)
    pid = child.pid
    await child.end(grace=20.0)

    assert not exists(pid)


@pytest.mark.promise("BZ-GRANT")
async def test_the_grant_and_the_usage_are_sent_by_descriptors(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the pool")
    words = ScriptedReply(pieces=("Hi.",), usage=Usage(input=7, output=3))
    lines = one_by_one(calls("bash_read", filepath="notes.txt"), words)
    async with CHAT.vendor(lines) as vendor:
        child = process_provider.ChildProcess(process_provider.COMMAND, os.environ)
        grant = Grant(run_id="r1", policy=Policy(excluded_tools=("bash_find",)), workspace=str(tmp_path))
        order = {"model": "m", "provider": "openai-chat", "url": CHAT.url(vendor), "prompt": "x"}
        subset = {"tool_subset": ["bash_find", "bash_read"]}
        await child.send(grant.line(), json.dumps(order | subset).encode())
        said = b"".join([piece async for piece in child.stdout()])
        code, tally = await child.code(), child.tally()
        await child.end()

    assert (code, tally.turns, tally.usage.output >= 3) == (0, 2, True)
    assert b"the pool" in said
    assert [tool["function"]["name"] for tool in vendor.requests[0].body["tools"]] == ["bash_read"]


@pytest.mark.promise("BZ-GRANT")
async def test_an_incomplete_line_of_usage_is_ignored() -> None:
    whole = Tally(usage=Usage(input=1), turns=1)
    assert last_tally(whole.line() + whole.line()[:5]) == whole
    assert last_tally(b"") == Tally()


@pytest.mark.promise("BZ-PATH")
async def test_modules_in_the_workspace_are_not_loaded_by_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("aiohttp", "msgspec", "retinue", "ssl"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded from the workspace')")
    cast = Cast((call_subagent(), BYE), streams("Safe."))
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play()

    assert harness.read() == ["Safe."]
