"""`RETINUE_LOG`, `RUST_LOG` and `RETINUE_LOG_PAYLOADS` on the command line, in every dialect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.core.errors import ProviderError
from retinue.providers.scripted import ScriptedReply, calls, fails, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.stage import retinue

NOTICE = (
    "warning: RETINUE_LOG_PAYLOADS=1: with RETINUE_LOG=info, prompts, answers, tool arguments and results are logged "
    "in plain text; unset it to stop"
)
SECRETS = ("SECRET-SYSTEM", "SECRET-PROMPT", "SECRET-TASK", "SECRET-FILE", "SECRET-CHILD", "SECRET-ANSWER")

READ = calls("file_read", path="notes.txt")
READ_IN_A_PROCESS = calls("bash_read", filepath="notes.txt")
SETTINGS = '[agents.dig]\ndescription = "Digs."\nsystem_prompt = "You dig."\ntools = ["file_read"]\n'

DELEGATIONS: dict[str, tuple[ScriptedReply, ...]] = {
    "xzatoma": (calls("subagent", label="dig", task_prompt="Dig SECRET-TASK."),),
    "spec": (
        calls("subagent", action="spawn", agent="dig", task="Dig SECRET-TASK."),
        calls("subagent", action="wait", task_ids=["t_01"]),
    ),
    "meerkat": (calls("agent_spawn", prompt="Dig SECRET-TASK."),),
    "zeroclaw": (calls("spawn_subagent", prompt="Dig SECRET-TASK."),),
    "buzzllm": (calls("call_subagent", prompt="Dig SECRET-TASK.", tool_subset=["bash_read"]),),
}


def story(dialect: str) -> ChatScript:
    """A lead that delegates; the child reads a file and answers."""
    read = READ_IN_A_PROCESS if dialect == "buzzllm" else READ
    script = ChatScript().play(*DELEGATIONS[dialect], says("SECRET-ANSWER"), says("SECRET-ANSWER"))
    return script.play(read, says("SECRET-CHILD"), says("SECRET-CHILD"), words="Dig SECRET-TASK.")


async def run(folder: Path, dialect: str, env: dict[str, str]) -> list[str]:
    """The lines on stderr of a run with that dialect."""
    (folder / "notes.txt").write_text("SECRET-FILE\n")
    (folder / "retinue.toml").write_text(f"{SETTINGS}\n[buzzllm]\nwarm_processes = 0\n[spec]\nextensions = ['wait']\n")
    async with FakeChat(story(dialect)) as vendor:
        tools = "file_read,bash_read"
        flags = ("--model", "m", "--base-url", vendor.base_url, "--dialect", dialect, "--tools", tools, "--quiet")
        ended = await retinue("run", *flags, "--system", "SECRET-SYSTEM", "SECRET-PROMPT", env=env)

    assert ended.code == 0, ended.stderr
    return ended.stderr.splitlines()


@pytest.mark.parametrize("dialect", DELEGATIONS)
async def test_contents_are_logged_in_every_dialect_on_request_and_a_notice_says_so_once(
    folder: Path, dialect: str
) -> None:
    lines = await run(folder, dialect, {"RETINUE_LOG": "info", "RETINUE_LOG_PAYLOADS": "1"})

    assert lines[0] == NOTICE
    assert lines.count(NOTICE) == 1
    assert [secret for secret in SECRETS if not any(secret in line for line in lines)] == []


@pytest.mark.parametrize("dialect", DELEGATIONS)
async def test_no_contents_are_logged_without_a_request(folder: Path, dialect: str) -> None:
    lines = await run(folder, dialect, {"RETINUE_LOG": "debug"})

    assert [line for line in lines if "SECRET" in line or line == NOTICE] == []


async def test_the_notice_is_on_stderr_alone_also_where_no_contents_are_shown(folder: Path) -> None:
    quiet = await retinue("runs", "--json", env={"RETINUE_LOG_PAYLOADS": "1"})
    off = await retinue("runs", "--json", env={"RETINUE_LOG_PAYLOADS": "0"})

    assert (quiet.stdout, quiet.stderr) == ("[]\n", f"{NOTICE}\n")
    assert off.stderr == ""


@pytest.mark.parametrize("filters", [None, "error"])
async def test_the_failure_of_a_child_is_a_log_line_only_where_lines_were_asked_for(
    folder: Path, filters: str | None
) -> None:
    script = ChatScript().play(calls("subagent", label="dig", task_prompt="Dig it."), says("It failed."))
    script.play(fails(ProviderError("no such model", fault="bad_request")), words="Dig it.")
    async with FakeChat(script) as vendor:
        flags = ("--model", "m", "--base-url", vendor.base_url, "--dialect", "xzatoma")
        env = {} if filters is None else {"RETINUE_LOG": filters}
        ended = await retinue("run", *flags, "Why?", env=env)

    assert ended.stdout == "It failed.\n"
    assert ("subagent.event=error" in ended.stderr) == (filters is not None)
    assert re.search(r"^main \[dig\]: failed \(.*no such model.*\), 0 turns, ", ended.stderr, re.MULTILINE)


# ---- RUST_LOG --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("XZ-RUST-LOG")
async def test_rust_log_selects_lines_where_retinue_log_is_unset(folder: Path) -> None:
    everything = await run(folder, "xzatoma", {"RUST_LOG": "info"})
    one_target = await run(folder, "xzatoma", {"RUST_LOG": "xzatoma::tools::subagent=debug"})
    other = await run(folder, "xzatoma", {"RUST_LOG": "hyper=trace"})
    hidden = await run(folder, "xzatoma", {"RUST_LOG": "info", "RETINUE_LOG": "error"})

    events = [line.partition(" subagent.event=")[2].partition(" ")[0] for line in one_target]
    assert events == ["spawn", "complete"]
    assert len(everything) == 2
    assert (other, hidden) == ([], [])


async def test_malformed_parts_of_rust_log_are_named_once_and_the_others_hold(folder: Path) -> None:
    lines = await run(folder, "xzatoma", {"RUST_LOG": "xzatoma=loud,info"})

    ignored = "RUST_LOG: 'xzatoma=loud' is ignored: expected off, error, warn, info, debug or trace after the ="
    assert lines[0] == f"warning: {ignored}"
    assert [" INFO retinue.tools.subagent " in line for line in lines[1:]] == [True, True]
