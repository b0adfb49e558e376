"""Run programs without a sandbox, if the user allows it: with resource limits, and with all rights of this process."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Program, Talk
from retinue.local.programs import find_program
from retinue.sandbox.guardian import GUARDIAN
from retinue.sandbox.rlimits import prlimit_command
from retinue.sandbox.subprocess import end_group, finish, start

DRAIN_SECONDS = 1.0
"""Seconds to wait for the output pipes of a program that has ended."""


class NoSandbox:
    """A `Sandbox` without isolation.

    Folders, hidden paths, network and the size of /tmp are ignored. Variables, wall time and the limit on output apply;
    so do CPU time, file size and memory of each process where `prlimit` is installed. The program's process group is
    killed with it, and if this process is killed; a process that left the group lives on.
    """

    def __init__(self, agents_write: Sequence[str] = ()) -> None:
        self._prlimit = find_program("prlimit", agents_write=(os.getcwd(), *agents_write)).path

    async def run(self, program: Program) -> Ended:
        return await self._run(program, None)

    async def converse(self, program: Program, talk: Talk) -> Ended:
        return await self._run(replace(program, stdin=b""), talk)

    async def _run(self, program: Program, talk: Talk | None) -> Ended:
        with _home_of(program) as environment:
            process = self._start(replace(program, environment=environment))
            GUARDIAN.add(-process.pid)
            try:
                kill = partial(end_group, process)
                return await finish(process, program, kill, drain_seconds=DRAIN_SECONDS, talk=talk)
            finally:
                GUARDIAN.remove(-process.pid)

    def _start(self, program: Program) -> subprocess.Popen[bytes]:
        # The number of processes is not limited: the kernel would count all processes of the user.
        limits = prlimit_command(program, prlimit=self._prlimit, processes=None) if self._prlimit else ()
        try:
            return start([*limits, *program.argv], env=program.environment, cwd=program.folder)
        except (OSError, ValueError) as error:
            raise ToolError(f"{program.argv[0]} could not be started: {error}") from error


@contextmanager
def _home_of(program: Program) -> Generator[Mapping[str, str]]:
    """The variables of a program; a HOME in which all users may write is replaced by a new folder for its time.

    In such a folder, as /tmp, another user can leave a `.gitconfig` or `.npmrc` that programs obey.
    """
    home = program.environment.get("HOME", "")
    try:
        is_shared = bool(home) and bool(os.stat(home).st_mode & stat.S_IWOTH)
    except OSError:
        is_shared = True  # another user may create it
    if not is_shared:
        yield program.environment
        return
    own = tempfile.mkdtemp(prefix="retinue-home-")
    try:
        yield {**program.environment, "HOME": own}
    finally:
        shutil.rmtree(own, ignore_errors=True)
