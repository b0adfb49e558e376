"""The watch of mounts that protect files."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from retinue.sandbox import mount_watch
from retinue.sandbox.mount_watch import wait_for_lost_mount

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="mounts are read from /proc")


def is_set_up(first: int) -> bool:
    return True


@pytest.fixture
def ended() -> Iterator[int]:
    """The id of a process that has ended and is not reaped."""
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


async def test_a_program_that_has_ended_before_the_watch_began_is_not_killed(
    ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_watch, "_is_set_up", is_set_up)
    watch = asyncio.ensure_future(wait_for_lost_mount(ended, {"/hidden"}))
    for _ in range(3):
        await asyncio.sleep(0)
    was_done = watch.done()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)

    assert not was_done


async def test_a_program_without_an_expected_mount_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_watch, "_is_set_up", is_set_up)
    living = await asyncio.create_subprocess_exec("/bin/cat", stdin=asyncio.subprocess.PIPE)
    try:
        message = await wait_for_lost_mount(living.pid, {"/proc", "/no/such/mount"})
    finally:
        living.send_signal(signal.SIGKILL)
        await living.wait()

    assert message == "Killed: /no/such/mount was replaced while this ran, and was not protected from it any more"
