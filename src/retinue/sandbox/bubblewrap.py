"""Programs fenced in by bubblewrap: namespaces of their own, a view of granted folders, limits, a system call filter.

One chain of execs and no Python in between: `prlimit`, `bwrap`, the program. Everything about the view goes to bwrap by
a descriptor and not on its command line, where other users of the machine could read it. bwrap itself starts with an
empty environment: the program's variables (`LD_PRELOAD`, say) must not work on what fences it in.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Program
from retinue.sandbox.memory_watch import look_into, outgrown
from retinue.sandbox.mounts import Root, covered, for_root_alone, links, roots_of, system, within
from retinue.sandbox.rlimits import limit_processes, limited
from retinue.sandbox.seccomp import Machine, filter_for
from retinue.sandbox.subprocess import end_group, finish, gone
from retinue.sandbox.uid import CAPABILITIES, Users, map_ids

HOSTNAME = "sandbox"
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
ANY_REPOSITORY = b"[safe]\n\tdirectory = *\n"
"""Git distrusts folders of other owners; the unused user owns none, and everything it sees was granted to it."""
ITSELF = {
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n".encode(),
    "/etc/nsswitch.conf": b"hosts: files\n",
}
"""Without a network a program still finds itself: what tests a server asks for localhost."""
FIRST_SIGNAL, LAST_SIGNAL = 128 + 1, 128 + 64
NOT_FOUND = 127


class Bubblewrap:
    """A `Sandbox` that starts `bwrap`.

    Nothing outlives a program's end, its timeout, a cancellation, or the death of this process: all its processes live
    in a process namespace whose first process dies with bwrap, and bwrap dies with us. Without a grant there is no
    network but an empty one with its own loopback.
    """

    def __init__(self, *, bwrap: str, prlimit: str, machine: Machine, by_descriptor: bool) -> None:
        """`by_descriptor` says that this bwrap takes folders as open descriptors.

        Then a folder that is exchanged for a link between the check and the start makes the start fail.
        """
        self._bwrap = bwrap
        self._prlimit = prlimit
        self._filter = filter_for(machine)
        self._by_descriptor = by_descriptor
        self._users = Users()

    async def run(self, program: Program) -> Ended:
        """Start the program, wait, and say how it ended; see `Sandbox`."""
        with self._users.one() as user, ExitStack() as resources:
            start = _Start(resources, user)
            words = self._words(program, start)
            # The dropped user's processes are this program's, and bwrap's own two; other users have more.
            processes = program.processes + 2 if user is not None else None
            limits = limited(program, prlimit=self._prlimit, processes=processes, reserved=program.reserved)
            process = start.process([*limits, self._bwrap], words, program)
            ended = await start.watched(process, program)
        return _understood(ended)

    def _words(self, program: Program, start: _Start) -> list[str]:
        roots = roots_of(program)
        words = [*NAMESPACES, *([] if program.network else ["--unshare-net"])]
        words += ["--hostname", HOSTNAME, "--die-with-parent", "--new-session"]
        if roots[0].path == "/":
            words += self._bound(roots[0], start)
        words += system(program, roots)
        for root in roots:
            words += self._bound(root, start) if root.path != "/" else []
        words += links(program, roots)
        words += _made_up(start, roots, network=program.network)
        words += for_root_alone() if start.user is not None else ()
        words += covered(program, roots)
        for name, value in program.environment.items():
            words += ["--setenv", name, value]
        words += ["--chdir", os.path.realpath(program.folder), "--seccomp", start.given(self._filter)]
        return words + start.identity()

    def _bound(self, root: Root, start: _Start) -> list[str]:
        kind = "--bind" if root.writable else "--ro-bind"
        if not self._by_descriptor:
            return [kind, root.path, root.path]
        return [f"{kind}-fd", start.opened(root.path), root.path]


def _made_up(start: _Start, roots: Iterable[Root], *, network: bool) -> list[str]:
    """Files of /etc that tell a program who it is, and nothing about who else there is."""
    granted = [root.path for root in roots]
    if any(within("/etc", path) for path in granted):
        return []
    user, group = (os.getuid(), os.getgid()) if start.user is None else (start.user, start.user)
    files = {
        "/etc/passwd": f"agent:x:{user}:{group}:agent:/tmp:/bin/sh\n".encode(),
        "/etc/group": f"agent:x:{group}:\n".encode(),
    }
    if start.user is not None:
        files["/etc/gitconfig"] = ANY_REPOSITORY
    if not network:
        files |= {path: text for path, text in ITSELF.items() if path not in granted}
    return [word for path, text in files.items() for word in ("--ro-bind-data", start.given(text), path)]


class _Start:
    """What one start hands to bwrap by descriptors, and the first words between the two."""

    def __init__(self, resources: ExitStack, user: int | None) -> None:
        self.user = user
        self._resources = resources
        self._passed: list[int] = []
        self._told, tells = os.pipe()
        self._own(self._told)
        self._tells = resources.enter_context(os.fdopen(tells, "wb", buffering=0))
        self._waits, self._go = (self._own(end) for end in os.pipe())
        # Both ends go along: should we be killed before bwrap ties its life to ours, it must wait for ever rather than
        # take the closed pipe for the word to go on. The program inherits them, and can speak to itself there.
        self._passed += [tells, self._waits, self._go]

    def given(self, content: bytes) -> str:
        """A descriptor, as a word, from which bwrap reads this."""
        descriptor = self._own(os.memfd_create("retinue"))
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self._passed.append(descriptor)
        return str(descriptor)

    def opened(self, path: str) -> str:
        """A descriptor, as a word, of exactly this folder: not of something that a link in the path leads to."""
        try:
            descriptor = self._own(os.open(path, os.O_PATH | os.O_NOFOLLOW))
        except OSError as error:
            raise ToolError(f"{path} cannot be granted to a program: {error.strerror}") from error
        replaced = os.readlink(f"/proc/self/fd/{descriptor}") != path
        if replaced or stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise ToolError(f"{path} cannot be granted to a program: it was replaced a moment ago")
        self._passed.append(descriptor)
        return str(descriptor)

    def identity(self) -> list[str]:
        """The words about who the program is, and how bwrap tells us its process."""
        words = ["--info-fd", str(self._tells.fileno())]
        if self.user is None:
            return [*words, "--block-fd", str(self._waits)]
        words += ["--userns-block-fd", str(self._waits), "--uid", str(self.user), "--gid", str(self.user)]
        return words + [word for capability in CAPABILITIES for word in ("--cap-add", capability)]

    def process(self, bwrap: list[str], words: list[str], program: Program) -> subprocess.Popen[bytes]:
        """bwrap, started."""
        if any("\0" in word for word in (*words, *program.argv)):
            raise ToolError("a program's words and variables cannot contain a zero byte")
        arguments = self.given(b"".join(os.fsencode(word) + b"\0" for word in words))
        try:
            return subprocess.Popen(
                [*bwrap, "--args", arguments, "--", *program.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=self._passed,
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else (),
            )
        except OSError as error:
            raise ToolError(f"the program could not be started: {error.strerror}") from error
        finally:
            # From now on the pipe ends when bwrap has said all, or has ended.
            self._tells.close()

    async def watched(self, process: subprocess.Popen[bytes], program: Program) -> Ended:
        """Bring the process to its end and see that nothing of it is left."""
        first: list[int] = []
        watching: list[asyncio.Task[str]] = []

        def kill() -> None:
            # bwrap and what it has not yet tied to its own life are one group; what has left it, is tied.
            end_group(process)
            for descriptor in first:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

        async def too_large(pid: int) -> str:
            try:
                return await outgrown(pid, program.memory, program.processes)
            finally:
                kill()

        async def begun() -> None:
            pid = await self._first_process()
            if pid is None:
                return
            try:
                first.append(self._own(os.pidfd_open(pid)))
                look_into(pid)
                if self.user is None:
                    limit_processes(pid, program.processes + 1)
                else:
                    map_ids(pid)
                watching.append(asyncio.ensure_future(too_large(pid)))
                os.write(self._go, b"x")
            except OSError as error:
                kill()
                # If it was gone already, it says itself why.
                if not isinstance(error, ProcessLookupError | FileNotFoundError):
                    raise ToolError(f"the sandbox could not be set up: {error}") from error

        beginning = asyncio.ensure_future(begun())
        try:
            ended = await finish(process, program, kill)
            await beginning
            if ended.code == -signal.SIGKILL and not ended.timed_out:
                ended = replace(ended, killed_for="".join(task.result() for task in watching if task.done()))
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            kill()
            # The first process of a process namespace takes all others with it before it is gone itself.
            for descriptor in first:
                await gone(descriptor)
                _bury(descriptor)
        return ended

    async def _first_process(self) -> int | None:
        loop = asyncio.get_running_loop()
        said = b""
        while not (found := re.search(rb'"child-pid": (\d+)', said)):
            ready = loop.create_future()
            loop.add_reader(self._told, ready.set_result, None)
            try:
                await ready
            finally:
                loop.remove_reader(self._told)
            more = os.read(self._told, 4096)
            if not more:
                return None
            said += more
        return int(found[1])

    def _own(self, descriptor: int) -> int:
        self._resources.callback(os.close, descriptor)
        return descriptor


def _bury(descriptor: int) -> None:
    """Wait for a process that outlived its parent for a moment: where orphans come to us, nobody else will."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)


def _understood(ended: Ended) -> Ended:
    """How the program ended, out of how bwrap did, which says 128 and the signal, as shells do."""
    complaint = ended.stderr.decode("utf-8", "replace").strip()
    if ended.code == 1 and complaint.startswith("bwrap: execvp "):
        return replace(ended, code=NOT_FOUND, stderr=ended.stderr.removeprefix(b"bwrap: execvp "))
    if ended.code == 1 and complaint.startswith("bwrap: "):
        raise ToolError(f"the sandbox could not be set up: {complaint.removeprefix('bwrap: ')}")
    return replace(ended, code=128 - ended.code) if FIRST_SIGNAL <= ended.code <= LAST_SIGNAL else ended
