"""No escape from the sandbox: every attempt, as root and as an ordinary user, next to the same one without it.

The attempts are in `attempts.py`, their targets in `arena.py`. An attempt that fails without the sandbox proves
nothing, so each has to succeed there, except for the few in `NOT_APPLICABLE`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pytest
from msgspec import Struct

from retinue.sandbox.probe import sandbox_verdict
from tests.sandbox.arena import Report
from tests.sandbox.attempts import ATTEMPTS


class Failed(Struct, frozen=True, tag=True):
    """The output of the arena of one user when it failed."""

    stderr: str


User: TypeAlias = Literal["root", "user"]
Siege: TypeAlias = dict[User, Report | Failed]
USERS: tuple[User, ...] = ("root", "user") if os.geteuid() == 0 else ("user",)
NOT_ROOT = Report(skipped="only root can try what root would get")

NOT_APPLICABLE: dict[tuple[str, User], str] = {
    ("read_the_state_folder_by_a_file_handle", "user"): "without a sandbox, too, only root may open files by handle",
    ("leave_a_file_behind_that_only_root_can_make", "user"): "without a sandbox, too, only root can make them",
    ("change_the_kernel_by_proc", "user"): "without a sandbox, too, only root may write these files",
}
if os.geteuid() != 0:
    NOT_APPLICABLE["run_a_set_uid_program", "user"] = "only root can make a program that makes others root"
if platform.machine() != "x86_64":
    for user in ("root", "user"):
        NOT_APPLICABLE["call_the_kernel_as_a_32_bit_program", user] = "machine code for x86_64"
"""Attempts that do not work without the sandbox either, and why; they are made in it all the same."""


@pytest.fixture(scope="session")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Siege:
    """The results of all attempts, made once for all test processes."""
    found = asyncio.run(sandbox_verdict())
    if found.sandbox is None:
        pytest.skip(f"no sandbox to attack: {found.text.partition(';')[0]}")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    return msgspec.json.decode(_laid(shared), type=Siege)


def _laid(shared: Path) -> bytes:
    answers = shared / "siege.json"
    with open(shared / "siege.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            begun = {user: _begun(user) for user in USERS}
            ended = {user: _ended(process) for user, process in begun.items()}
            answers.write_bytes(msgspec.json.encode({"root": NOT_ROOT} | ended))
        return answers.read_bytes()


def _begun(user: User) -> subprocess.Popen[bytes]:
    # In a session of its own, so that errors in there do not affect the test process.
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sandbox.arena", user],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes]) -> Report | Failed:
    stdout, stderr = process.communicate()
    if process.returncode != 0:
        return Failed(stderr.decode("utf-8", "replace"))
    return msgspec.json.decode(stdout, type=Report)


@pytest.mark.parametrize("user", ["root", "user"])
def test_the_arena_makes_every_attempt(siege: Siege, user: User) -> None:
    match siege[user]:
        case Failed(stderr=stderr):
            pytest.fail(stderr, pytrace=False)
        case Report(skipped=reason, pairs=pairs):
            if reason:
                pytest.skip(reason)
            assert pairs.keys() == set(ATTEMPTS)


@pytest.mark.parametrize("name", ATTEMPTS)
@pytest.mark.parametrize("user", ["root", "user"])
def test_an_attempt_succeeds_outside_the_sandbox_and_fails_inside(siege: Siege, user: User, name: str) -> None:
    report = siege[user]
    if isinstance(report, Failed) or name not in report.pairs:
        pytest.skip("the attempt was not made: see test_the_arena_makes_every_attempt")

    pair = report.pairs[name]

    assert not pair.fenced.out, pair.fenced.seen
    assert pair.bare.out or (name, user) in NOT_APPLICABLE, f"without a sandbox: {pair.bare.seen}"


def test_few_of_many_escape_attempts_are_inconclusive() -> None:
    assert len(ATTEMPTS) >= 40
    assert len(NOT_APPLICABLE) <= 6
    assert {name for name, _ in NOT_APPLICABLE} <= set(ATTEMPTS)
