"""A small process that outlives this one by a moment, and kills the programs that this one can no longer kill.

A program in a sandbox dies with this process once the sandbox is complete. While it is set up, this process may be
killed with a part of it waiting for an answer that never comes. The guardian reads the ids of such processes from a
pipe. The pipe ends when this process does, however that happens; the guardian then kills what is on its list.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

SHELL = "/bin/sh"
SCRIPT = """
list=
while read -r line; do
  case $line in
    +*) list="$list ${line#+}" ;;
    *)
      left=
      for id in $list; do
        [ "$id" = "${line#=}" ] || left="$left $id"
      done
      list=$left
      ;;
  esac
done
for id in $list; do
  kill -s KILL -- "$id"
done
"""
"""Lines are `+ID` to add a process, or a group with a minus before its number, and `=ID` to remove it."""

GO = b"go\n"
WAIT_FOR_GO = (SHELL, "-c", 'read -r go && [ "$go" = go ] && exec "$@"', SHELL)
"""The beginning of a command that starts when it reads `GO`; if its input ends before, it does not start at all."""

SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables that a shell gives to the command."""


class Guardian:
    """The guardian of this process; it is started with the first process that it is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe = -1
        self._owner = 0
        self._ids: dict[int, None] = {}

    def add(self, process: int) -> None:
        """Kill this process, or the group with the number `-process`, if this process ends before `remove`."""
        with self._lock:
            if self._owner != os.getpid():  # a forked process has its own
                self._ids.clear()
                self._start()
            self._ids[process] = None
            self._write(f"+{process}\n")

    def remove(self, process: int) -> None:
        with self._lock:
            if self._ids.pop(process, 0) is None and self._owner == os.getpid():
                self._write(f"={process}\n")

    def _write(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode())
        except OSError:  # it was killed
            self._start()
            with contextlib.suppress(OSError):
                os.write(self._pipe, "".join(f"+{each}\n" for each in self._ids).encode())

    def _start(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        reading, self._pipe = os.pipe()
        self._owner = os.getpid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, number, place) for place, number in enumerate((reading, nowhere, nowhere))]
        command = [SHELL, "-c", SCRIPT]
        try:
            # Out of the group of the terminal: a Ctrl-C is not for the guardian.
            if sys.platform == "linux":
                os.posix_spawn(SHELL, command, {}, file_actions=actions, setsigmask=(), setsid=True)
            else:
                os.posix_spawn(SHELL, command, {}, file_actions=actions, setsigmask=(), setpgroup=0)
        finally:
            os.close(reading)
            os.close(nowhere)


GUARDIAN = Guardian()
