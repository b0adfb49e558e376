"""Ctrl-C, kill -9 and --detach: real processes, and what a later one resumes."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, calls, hangs, says
from retinue.testing.fake_chat import ChatScript, FakeChat, count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import Command, Ended, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]


class SilentOnce:
    """A model that answers a first turn, hangs in the second, and answers when called again."""

    def __init__(self) -> None:
        self.fell_silent = asyncio.Event()

    def __call__(self, heard: ReceivedRequest) -> Line:
        if count_replies(heard) == 0:
            return calls("shared_context", action="list_keys")
        if not self.fell_silent.is_set():
            self.fell_silent.set()
            return hangs("It was ")
        return says("It was the pool.")


def vendor_of(silent: SilentOnce) -> FakeChat:
    return FakeChat(ChatScript().play(silent, silent))


async def begun(vendor: FakeChat, silent: SilentOnce, *flags: str) -> Command:
    command = await Command.start(
        "run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "spec", *flags, "Why?"
    )
    await silent.fell_silent.wait()
    return command


def turns_asked(vendor: FakeChat) -> list[int]:
    return [count_replies(heard) + 1 for heard in vendor.requests]


async def test_the_first_ctrl_c_saves_the_run_and_prints_how_to_resume() -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor:
        command = await begun(vendor, silent)
        command.signal(signal.SIGINT)
        ended = await command.ended()
        run_id = ended.stderr.split()[-1]
        listed = (await retinue("runs", "--json")).json
        resumed = await retinue("runs", "resume", run_id[-8:])
        again = await retinue("runs", "resume", run_id)

    assert (ended.code, ended.stdout) == (130, "")
    assert ended.stderr.endswith(f"interrupted; go on with: retinue runs resume {run_id}\n")
    assert [(row["run_id"], row["state"], row["outcome"]) for row in listed] == [(run_id, "interrupted", None)]
    assert (resumed.code, resumed.stdout) == (0, "It was the pool.\n")
    assert again == Ended(0, "It was the pool.\n", "")
    assert turns_asked(vendor) == [1, 2, 2]


async def test_a_killed_run_resumes_without_repeating_answered_calls() -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor:
        command = await begun(vendor, silent)
        command.signal(signal.SIGKILL)
        killed = await command.ended()
        (row,) = (await retinue("runs", "--json")).json
        resumed = await retinue("runs", "resume", row["run_id"], "--json")

    assert (killed.code, row["state"], row["turns"]) == (-signal.SIGKILL, "interrupted", 1)
    assert (resumed.code, resumed.json["text"]) == (0, "It was the pool.")
    assert turns_asked(vendor) == [1, 2, 2]


async def test_a_run_resumes_from_another_folder_with_another_model(tmp_path: Path) -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor, FakeChat(says("From elsewhere.")) as other:
        command = await begun(vendor, silent)
        command.signal(signal.SIGKILL)
        await command.ended()
        (row,) = (await retinue("runs", "--json")).json
        flags = ("--base-url", other.base_url, "--model", "other-1")
        resumed = await retinue("runs", "resume", row["run_id"], *flags, cwd=tmp_path)

    assert (resumed.code, resumed.stdout) == (0, "From elsewhere.\n")
    assert [heard.body["model"] for heard in other.requests] == ["other-1"]
    assert turns_asked(vendor) == [1, 2]


async def test_the_second_ctrl_c_exits_at_once(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["clings.py"]\n')
    (folder / "clings.py").write_text(
        """
import asyncio, sys, retinue

@retinue.tool(kind="pure")
async def cling() -> str:
    print("clinging", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("still clinging", file=sys.stderr, flush=True)
"""
    )
    async with FakeChat(calls("cling")) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--tools", "cling")
        command = await Command.start("run", *flags, "Hold on.")
        await command.expect_stderr("clinging")
        command.signal(signal.SIGINT)
        await command.expect_stderr("still clinging")
        command.signal(signal.SIGINT)
        ended = await command.ended()
    (row,) = (await retinue("runs", "--json")).json

    assert (ended.code, "go on with" in ended.stderr) == (130, False)
    assert row["state"] == "interrupted"


async def test_an_unstoppable_tool_thread_does_not_delay_exit(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["sleeps.py"]\n')
    (folder / "sleeps.py").write_text(
        """
import sys, threading, retinue

@retinue.tool(timeout=0.2)
def sleeps() -> str:
    threading.Event().wait()
"""
    )
    async with FakeChat(ChatScript().play(calls("sleeps"), says("It did not wake up."))) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--tools", "sleeps")
        ended = await retinue("run", *flags, "Wake it.")

    assert (ended.code, ended.stdout) == (0, "It did not wake up.\n")


async def test_a_detached_run_is_driven_by_a_process_of_its_own(home: Path) -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor:
        detached = await begun(vendor, silent, "--detach")
        left = await detached.ended()
        run_id = left.stdout.strip()
        refused = await retinue("runs", "resume", run_id)
        shown = await retinue("runs", "show", run_id, "--json")
        cancelled = await retinue("runs", "cancel", run_id)
        log = home / "logs" / f"{run_id}.log"
        async with asyncio.timeout(20):
            while (ended := await retinue("runs", "resume", run_id)).code == 1 and "at work" in ended.stderr:
                pass

    assert (left.code, left.stdout) == (0, f"{run_id}\n")
    assert refused.code == 1
    assert "it is driven by process " in refused.stderr
    assert (shown.json["state"], shown.json["turns"]) == ("working", 1)
    assert (cancelled.code, cancelled.stderr) == (0, "cancelled 1 run\n")
    assert (ended.code, "cancelled" in ended.stderr, "It was " in ended.stderr) == (1, True, True)
    assert "cancelled" in log.read_text()
    assert turns_asked(vendor) == [1, 2]


async def test_a_run_without_its_key_is_not_resumed_and_stays_interrupted() -> None:
    silent = SilentOnce()
    async with vendor_of(silent) as vendor:
        command = await begun(vendor, silent)
        command.signal(signal.SIGKILL)
        await command.ended()
        (row,) = (await retinue("runs", "--json")).json
        refused = await retinue("runs", "resume", row["run_id"], "--api-key-env", "NO_SUCH_KEY")
        (still,) = (await retinue("runs", "--json")).json
        resumed = await retinue("runs", "resume", row["run_id"])

    assert (refused.code, refused.stdout, still["state"]) == (2, "", "interrupted")
    assert "the environment variable NO_SUCH_KEY is not set" in refused.stderr
    assert (resumed.code, resumed.stdout) == (0, "It was the pool.\n")


async def test_a_detached_run_imports_no_modules_from_its_folder(folder: Path) -> None:
    for name in ("aiohttp", "msgspec", "retinue", "ssl"):
        (folder / f"{name}.py").write_text("raise SystemExit('loaded from the workspace')")
    asked = asyncio.Event()

    def model(heard: ReceivedRequest) -> Line:
        asked.set()
        return says("Safe.")

    async with FakeChat(model) as vendor:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "retinue", "run", "--detach"),
            *("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "Go."),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        code = await command.wait()
        async with asyncio.timeout(20):
            await asked.wait()

    assert (code, len(vendor.requests)) == (0, 1)
