"""Whether a process is gone: certain on this host, never for another host, and not confused by reused pids."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator

import pytest

from retinue.engine.driver_table import identity_of, is_gone, this_host, this_process

linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells when a process began")


@pytest.fixture
def child() -> Generator[subprocess.Popen[str]]:
    """A process that runs until its stdin ends."""
    waits = [sys.executable, "-S", "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()


def test_the_own_process_is_not_gone() -> None:
    assert not is_gone(this_host(), this_process())


@linux
def test_a_process_is_identified_by_pid_and_start_time() -> None:
    assert re.fullmatch(rf"{os.getpid()}:\d+", this_process())


def test_a_process_is_gone_after_its_end_and_not_before(child: subprocess.Popen[str]) -> None:
    process = identity_of(child.pid)
    assert not is_gone(this_host(), process)

    child.kill()
    child.wait()

    assert is_gone(this_host(), process)


@linux
def test_a_zombie_is_gone(child: subprocess.Popen[str]) -> None:
    process = identity_of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is a zombie

    assert os.path.exists(f"/proc/{child.pid}")
    assert is_gone(this_host(), process)


@linux
def test_another_process_with_the_same_pid_is_not_the_same_process() -> None:
    pid, _, began = this_process().partition(":")

    assert is_gone(this_host(), f"{pid}:{int(began) - 1}")


def test_a_process_of_another_host_is_never_gone() -> None:
    assert not is_gone("elsewhere", "1:1")
    assert not is_gone("elsewhere", "written by some later retinue")


def test_a_process_of_an_earlier_boot_is_gone() -> None:
    node, _, rest = this_host().partition("/")
    _, _, space = rest.partition("/")

    assert is_gone(f"{node}/an-earlier-start/{space}", this_process()) == bool(rest)
    assert not is_gone(f"another{node}/an-earlier-start/{space}", this_process())


def test_a_process_of_another_user_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_yours(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_yours)

    assert not is_gone(this_host(), this_process())


def test_an_unknown_identity_format_is_not_gone() -> None:
    assert not is_gone(this_host(), "written by some later retinue")


async def test_all_processes_of_a_host_have_the_same_host_name() -> None:
    script = "from retinue.engine.driver_table import this_host; print(this_host())"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    told, _ = await process.communicate()

    assert told.decode().strip() == this_host()
    assert this_host()
