"""Programs in the open, for users who said so: with their limits and their end, and with every right of ours."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Program
from retinue.sandbox.rlimits import limited
from retinue.sandbox.subprocess import end_group, finish

PATIENCE = 1.0
"""Seconds in which a program that has ended may still be heard."""


class NoSandbox:
    """A `Sandbox` that is none: only where the user allowed it.

    Folders, hidden paths, the network and the size of /tmp mean nothing here; variables, wall time, the bound on output
    and, where `prlimit` is installed, CPU time, file size and memory of each process do. A program's process group is
    killed with it; a process that left the group lives on.
    """

    def __init__(self) -> None:
        self._prlimit = shutil.which("prlimit")

    async def run(self, program: Program) -> Ended:
        """Start the program, wait, and say how it ended; see `Sandbox`."""
        process = self._started(program)
        return await finish(process, program, partial(end_group, process), patience=PATIENCE)

    def _started(self, program: Program) -> subprocess.Popen[bytes]:
        # The kernel would count all of the user's processes, so their number is left alone.
        limits = limited(program, prlimit=self._prlimit, processes=None) if self._prlimit else ()
        try:
            return subprocess.Popen(
                [*limits, *program.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(program.environment),
                cwd=program.folder,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"{program.argv[0]} could not be started: {error}") from error
