"""Shell commands and Python code of a model, with a real sandbox."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.core.messages import ToolMessage
from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import Ended, Program, Request
from retinue.providers.scripted import ScriptedReply, calls, calls_verbatim, says, together
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from retinue.tools import python
from retinue.tools.dependencies import NoKeyValue, ToolDependencies, ToolOptions
from retinue.tools.shell import parser, shell_tool
from retinue.tools.shell.lexer import Operator, Word, tokens
from tests.tools.tool_calls import FixedClock, StoreKeyValue, ToolCaller, context, error_of, result_of

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.usefixtures("sandbox"),
]

FREE_HAND = Policy(autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, max_actions_per_hour=100)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("hello\n")
    monkeypatch.chdir(folder)
    return folder


async def results(*lines: ScriptedReply, policy: Policy = FREE_HAND, **options: Any) -> list[str]:
    """The results that a model reads after making all these calls at once."""
    texts: list[str] = []

    def collect_results(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    tools = ["shell", "terminal", "python_execute"]
    async with Harness(dialects=(), tools=tools, policy=policy, **options) as r:
        r.script("main", together(*lines), collect_results)
        await r.run("go")
    return texts


async def test_a_command_runs_in_the_workspace_and_its_output_is_the_result(workspace: Path) -> None:
    texts = await results(
        calls("shell", command="cat note.txt && echo more | wc -l"),
        calls("terminal", command="echo kept > made.txt"),
        calls("shell", command="ls", working_dir="."),
    )

    assert texts[0] == "hello\n1"
    assert texts[1] == "[no output]"
    assert (workspace / "made.txt").read_text() == "kept\n"


async def test_a_command_is_parsed_once_per_call(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counting(command: str) -> list[Word | Operator]:
        parsed.append(command)
        return tokens(command)

    monkeypatch.setattr(parser, "tokens", counting)
    await results(calls("shell", command="echo a && ls"), calls("terminal", command="curl x"))

    assert parsed == ["echo a && ls", "curl x"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_a_program_may_reserve_much_memory_and_use_only_its_limit(
    workspace: Path,
) -> None:
    (workspace / "many.js").write_text(
        "const { Worker, isMainThread } = require('worker_threads');\n"
        "if (isMainThread) {\n"
        "  const workers = [1, 2, 3, 4].map(() => new Worker(__filename));\n"
        "  Promise.all(workers.map((w) => new Promise((end) => w.on('exit', end)))).then(() => console.log('four'));\n"
        "  new WebAssembly.Memory({ initial: 1, maximum: 10 });\n"
        "}\n"
    )
    many = calls("shell", command="node many.js")
    much = calls("shell", command="node -e 'const kept = []; for (;;) kept.push(Buffer.alloc(1e7, 1))'")

    assert await results(many) == ["four"]
    (killed,) = await results(much, tool_options=ToolOptions(program_memory_mb=256))
    assert killed.endswith("and may use 256 MB")


async def test_a_failed_command_reports_its_exit_code(workspace: Path) -> None:
    assert await results(calls("shell", command="cat missing.txt")) == [
        "[stderr]\ncat: missing.txt: No such file or directory\n[exit code 1]"
    ]


async def test_a_command_ends_at_the_policys_timeout_however_long_was_asked_for(workspace: Path) -> None:
    policy = Policy(
        autonomy=Autonomy.FULL,
        require_approval_for_medium_risk=False,
        shell_timeout_secs=1,
        allowed_commands=("sleep", "echo"),
    )

    assert await results(calls("shell", command="echo begun; sleep 30", timeout_secs=20), policy=policy) == [
        "begun\nCommand timed out after 1s and was killed"
    ]


async def test_what_the_policy_closes_is_refused_in_words_that_name_the_setting(workspace: Path) -> None:
    texts = await results(
        calls("shell", command="env"),
        calls("shell", command="rm note.txt"),
        calls("shell", command="echo $(cat note.txt)"),
        calls("shell", command="ls", working_dir="/etc"),
        calls("shell", command="  "),
        calls_verbatim("shell", "not json"),
    )

    assert texts[0].startswith("Security policy: command 'env' is not allowed (allowed_commands); use one of: git, npm")
    assert (
        texts[1] == "Security policy: 'shell': high-risk calls are blocked (block_high_risk_commands); find a safer way"
    )
    assert texts[2] == (
        "Security policy: substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself"
    )
    assert texts[3] == "Security policy: '/etc' is outside the workspace and the allowed roots"
    assert texts[4] == "the command is empty"
    assert texts[5].startswith("shell: the arguments are not valid JSON")
    assert (workspace / "note.txt").exists()


async def test_a_read_only_agent_starts_no_command_and_may_still_compute(workspace: Path) -> None:
    texts = await results(
        calls("shell", command="ls"), calls("python_execute", code="2 ** 10"), policy=Policy(autonomy=Autonomy.READONLY)
    )

    assert texts[0] == "Security policy: read-only mode, cannot perform 'shell'"
    assert json.loads(texts[1]) == {"stdout": "", "stderr": "", "result": "1024"}


async def test_a_medium_risk_command_needs_a_person_and_a_low_risk_one_does_not(workspace: Path) -> None:
    texts = await results(
        calls("shell", command="git init"), calls("shell", command="pwd"), policy=Policy(), approvals="deny"
    )

    assert texts[0].startswith("Security policy: 'shell': this medium-risk call needs approval")
    assert texts[1] == str(workspace)


async def test_a_program_sees_only_the_variables_that_the_policy_lets_pass(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PASSED_ON", "yes")
    policy = Policy(
        autonomy=Autonomy.FULL,
        require_approval_for_medium_risk=False,
        allowed_commands=("env", "sort"),
        shell_env_passthrough=("PASSED_ON",),
    )
    (texts,) = await results(calls("shell", command="env | sort"), policy=policy)

    assert {"PASSED_ON=yes", "HOME=/tmp", "LANG=C.UTF-8"} <= set(texts.splitlines())
    assert "sk-secret" not in texts


async def test_programs_cannot_reach_settings_state_and_forbidden_paths(workspace: Path, tmp_path: Path) -> None:
    (workspace / "retinue.toml").write_text("[tools]\n")
    (workspace / "secret").mkdir()
    (workspace / "secret" / "key").write_text("sk-secret")
    home = workspace / "state"
    policy = Policy(
        autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, forbidden_paths=(str(workspace / "secret"),)
    )
    texts = await results(
        calls("shell", command="echo sandbox=off >> retinue.toml"),
        calls("shell", command="cat secret/key"),
        calls("shell", command="ls state"),
        policy=policy,
        home=home,
    )

    assert (workspace / "retinue.toml").read_text() == "[tools]\n"
    assert "Read-only file system" in texts[0] or "Permission denied" in texts[0]
    assert "sk-secret" not in texts[1]
    assert "retinue.db" not in texts[2]


async def test_settings_that_a_program_makes_do_not_stay(workspace: Path) -> None:
    (texts,) = await results(calls("shell", command="echo 'sandbox = \"off\"' > retinue.toml && echo made"))

    aside = "retinue.toml was renamed to ...made-by-an-agent: what agents may do is settled by people"
    assert texts == f"made\n[{aside.replace('...', '....')}]"
    assert not (workspace / "retinue.toml").exists()
    assert (workspace / "retinue.toml.made-by-an-agent").exists()


async def test_a_link_in_the_workspace_opens_nothing_that_it_points_to(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("sk-secret")
    (workspace / "link").symlink_to(tmp_path / "secret")
    policy = Policy(
        autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, allowed_roots=(str(workspace / "link"),)
    )

    (texts,) = await results(calls("shell", command="cat link/key"), policy=policy)

    assert "No such file" in texts


async def test_code_is_run_and_its_last_expression_is_the_result(workspace: Path) -> None:
    texts = await results(
        calls("python_execute", code="print(open('note.txt').read(), end='')\n[1, 2][::-1]"),
        calls("python_execute", code="import sys\nprint('oops', file=sys.stderr)\nx = 1"),
        calls("python_execute", code="1 / 0"),
        calls("python_execute", code="def broken("),
        calls("python_execute", code=" "),
        calls("python_execute", code="1", mem="lots"),
        calls("python_execute", code="print('x' * 20000)"),
    )
    outputs = [json.loads(text) for text in texts]

    assert outputs[0] == {"stdout": "hello\n", "stderr": "", "result": "[2, 1]"}
    assert outputs[1] == {"stdout": "", "stderr": "oops\n", "result": None}
    assert outputs[2]["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert "SyntaxError" in outputs[3]["stderr"]
    assert outputs[4] == {"stdout": "", "stderr": "No code provided", "result": None}
    assert outputs[5]["stderr"] == "Invalid memory limit: 'lots'; write a number with k, m or g, up to 4g"
    assert outputs[6]["stdout"] == "x" * 10000 + "\n... (truncated)"


async def test_the_result_is_returned_whatever_else_the_code_prints(workspace: Path) -> None:
    late = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()\n1"
    texts = await results(
        calls("python_execute", code=late),
        calls("python_execute", code="import os\n'child' if os.fork() == 0 else 'parent'"),
        calls("python_execute", code="class Half:\n    __repr__ = lambda self: '\\ud800'\nHalf()"),
        calls("python_execute", code="print('x' * 2_000_000)\n42"),
        calls("python_execute", code="import sys\nprint('x' * 2_000_000, file=sys.stderr)\n42"),
    )
    outputs = [json.loads(text) for text in texts]

    assert outputs[0] == {"stdout": "late\n", "stderr": "", "result": "1"}
    assert outputs[1] == {"stdout": "", "stderr": "", "result": "'parent'"}
    assert outputs[2] == {"stdout": "", "stderr": "", "result": "?"}
    assert (outputs[3]["stdout"][9999:], outputs[3]["result"]) == ("x\n... (truncated)", "42")
    assert outputs[4]["stderr"].startswith("More was printed than is kept, and the result is lost; print less\nxxx")


async def test_code_cannot_write_files_use_the_network_or_exhaust_memory(workspace: Path) -> None:
    texts = await results(
        calls("python_execute", code="open('made.txt', 'w')"),
        calls("python_execute", code="import socket; socket.create_connection(('127.0.0.1', 1), 1)"),
        calls("python_execute", code="x = bytearray(10**9)", mem="100m"),
        calls("python_execute", code="import time; time.sleep(60)", timeout=1),
    )
    outputs = [json.loads(text) for text in texts]

    assert "Read-only file system" in outputs[0]["stderr"]
    assert "Error" in outputs[1]["stderr"]
    assert "MemoryError" in outputs[2]["stderr"]
    assert outputs[3]["stderr"] == "Execution timed out after 1 seconds"
    assert not (workspace / "made.txt").exists()


class FullMachine:
    """A sandbox on a machine that can start no more processes."""

    async def run(self, program: Program) -> Ended:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("shell", {"command": "ls"}), ("terminal", {"command": "ls"}), ("python_execute", {"code": "1"})],
)
async def test_a_machine_that_can_start_nothing_more_says_so(
    workspace: Path, tool: str, arguments: dict[str, str]
) -> None:
    dependencies = ToolDependencies(sandbox=FullMachine(), key_value=NoKeyValue(), clock=FixedClock())
    call = ToolCaller([*shell_tool.tools(dependencies), *python.tools(dependencies)], workspace)

    assert await call.error(tool, **arguments) == "the program could not be run: Too many open files"


async def test_a_cancelled_run_stops_its_program(workspace: Path) -> None:
    os.mkfifo(workspace / "line")
    line = os.open(workspace / "line", os.O_RDONLY | os.O_NONBLOCK)
    policy = Policy(autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, allowed_commands=("sleep", "echo"))
    try:
        async with Harness(dialects=(), tools=["shell"], policy=policy) as r:
            r.script("main", calls("shell", command="(echo begun; sleep 60) > line"))
            handle = await r.retinue.spawn("go")
            begun = await _read_line(line)
            await handle.cancel()
            outcome = await handle.wait()
        ended = await _read_line(line)  # nothing: every process that could write has ended
    finally:
        os.close(line)

    assert (begun, ended) == (b"begun\n", b"")
    assert (outcome.result, outcome.unstopped) == ("cancelled", ())


async def _read_line(line: int) -> bytes:
    """The next bytes of a pipe, or none once its other end is closed."""
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    loop.add_reader(line, lambda: there.done() or there.set_result(None))
    try:
        await asyncio.wait_for(there, 20)
    finally:
        loop.remove_reader(line)
    return os.read(line, 4096)


async def test_without_a_sandbox_programs_are_refused_unless_configured(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.local.programs.SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(workspace))
    monkeypatch.setattr("retinue.sandbox.probe._verdicts", [])
    (refused,) = await results(calls("python_execute", code="1"))
    (allowed,) = await results(calls("python_execute", code="1 + 1"), tool_options=ToolOptions(sandbox="off"))

    assert "install bubblewrap" in refused
    assert json.loads(allowed)["result"] == "2"


async def test_without_a_sandbox_python_is_a_call_that_a_person_is_asked_about(workspace: Path) -> None:
    code = calls("python_execute", code="open('made', 'w').close()")
    off = ToolOptions(sandbox="off")

    (asked,) = await results(code, policy=Policy(), tool_options=off)
    (refused,) = await results(code, policy=Policy(autonomy=Autonomy.READONLY), tool_options=off)

    assert asked.startswith("Security policy: 'python_execute': this medium-risk call needs approval")
    assert refused == "Security policy: read-only mode, cannot perform 'python_execute'"
    assert not (workspace / "made").exists()


async def test_a_long_output_is_cut_and_can_be_read_on(workspace: Path) -> None:
    (workspace / "long.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
    read: list[str] = []

    def reads_on(request: Request) -> ScriptedReply:
        text = request.messages[-1].text
        read.append(text)
        name = text.rpartition('"id": "')[2].partition('"')[0]
        return calls("artifact_read", id=name, offset=len("line 0\n"), limit=14)

    def collect_results(request: Request) -> ScriptedReply:
        read.append(request.messages[-1].text)
        return says(", ".join(spec.name for spec in request.tools))

    async with Harness(dialects=(), tools=["shell", "artifact_read"], policy=FREE_HAND) as r:
        r.script("main", calls("shell", command="cat long.txt"), reads_on, collect_results)
        outcome = await r.run("go")

    assert outcome.text == "shell, artifact_read"
    assert len(read[0]) < 51_000
    assert read[1].startswith("line 1\nline 2\n")


KILLED = "Killed: all its processes used 700 MB of memory together, and may use 512 MB"


class KillingSandbox:
    """A sandbox that kills every program for its memory."""

    async def run(self, program: Program) -> Ended:
        return Ended(code=-signal.SIGKILL, stdout=b"begun\n", killed_for=KILLED)


async def test_the_reason_why_a_program_was_killed_is_in_its_result(tmp_path: Path) -> None:
    dependencies = ToolDependencies(
        sandbox=KillingSandbox(), key_value=StoreKeyValue(MemoryStore()), clock=FixedClock()
    )
    tools = {tool.spec.name: tool for tool in (*shell_tool.tools(dependencies), *python.tools(dependencies))}
    where = context(policy=FREE_HAND, workspace=str(tmp_path))

    command = await error_of(tools["shell"], where, command="echo begun")
    code = msgspec.json.decode(await result_of(tools["python_execute"], where, code="print('begun')"))

    assert command == f"begun\n{KILLED}"
    assert code == {"stdout": "begun\n", "stderr": KILLED, "result": None}


class RecordingSandbox:
    """A sandbox that records programs and runs none."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    async def run(self, program: Program) -> Ended:
        self.programs.append(program)
        return Ended(code=0)


@pytest.mark.parametrize(("asked", "given"), [("512m", 256), ("4g", 256), ("100m", 100)])
async def test_code_has_at_most_the_memory_of_the_settings(workspace: Path, asked: str, given: int) -> None:
    sandbox = RecordingSandbox()
    dependencies = ToolDependencies(
        sandbox=sandbox,
        key_value=NoKeyValue(),
        clock=FixedClock(),
        program_memory_mb=256,
        program_memory_total_mb=1024,
    )
    call = ToolCaller([*shell_tool.tools(dependencies), *python.tools(dependencies)], workspace)
    await call("python_execute", code="1", mem=asked)
    await call("shell", command="ls")

    of_code, of_command = sandbox.programs
    assert (of_code.memory, of_code.memory_of_all) == (given * 1024 * 1024, 1024 * 1024 * 1024)
    assert (of_command.memory, of_command.memory_of_all) == (256 * 1024 * 1024, 1024 * 1024 * 1024)


async def test_programs_together_have_a_limit_and_the_largest_is_killed(workspace: Path) -> None:
    much = "kept = b'x' * 230_000_000\nimport time\ntime.sleep(60)"
    options = ToolOptions(program_memory_mb=300, program_memory_total_mb=400)
    texts = await results(
        calls("python_execute", code=much, timeout=5),
        calls("python_execute", code=much, timeout=5),
        calls("python_execute", code="import time; time.sleep(1); 'small'", timeout=20),
        tool_options=options,
    )
    outputs = [json.loads(text) for text in texts]

    killed = [each["stderr"] for each in outputs if each["stderr"].startswith("Killed: all programs of agents used ")]
    assert len(killed) == 1
    assert "MB of memory together and may use 400 MB; this one used the most, " in killed[0]
    assert outputs[2]["result"] == "'small'"
