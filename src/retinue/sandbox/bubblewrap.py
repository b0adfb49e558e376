"""Run programs in bubblewrap: own namespaces, mounts of granted folders only, resource limits, a system call filter.

One chain of execs without Python in between: `prlimit`, `bwrap`, the program. bwrap reads its arguments from a
descriptor, because other users of the machine can read command lines. It starts with an empty environment, so that the
program's variables (such as `LD_PRELOAD`) do not affect the sandbox itself.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Iterable
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Program, Talk
from retinue.sandbox.guardian import GO, GUARDIAN, SHELL_VARIABLES, WAIT_FOR_GO
from retinue.sandbox.memory_watch import check_readable, wait_for_excess
from retinue.sandbox.mount_watch import inner_paths, mount_points, wait_for_lost_mount
from retinue.sandbox.mounts import (
    ProgramPaths,
    Root,
    covers,
    read_only_remounts,
    root_only_covers,
    symlinks,
    system_mounts,
    within,
)
from retinue.sandbox.rlimits import limit_processes, prlimit_command
from retinue.sandbox.seccomp import Machine, filter_for
from retinue.sandbox.subprocess import end_group, finish, start, wait_for_exit
from retinue.sandbox.uid import CAPABILITIES, Users, map_ids

HOSTNAME = "sandbox"
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
ANY_REPOSITORY = b"[safe]\n\tdirectory = *\n"
"""Git configuration: git distrusts folders of other owners, and the unused uid owns none of the granted ones."""
LOCALHOST_FILES = {
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n".encode(),
    "/etc/nsswitch.conf": b"hosts: files\n",
}
"""Files that resolve localhost without a network, as tests of servers need it."""
FIRST_SIGNAL, LAST_SIGNAL = 128 + 1, 128 + 64
NOT_FOUND = 127


class Bubblewrap:
    """A `Sandbox` that starts `bwrap`.

    No process outlives the program's end, its timeout, a cancellation, or the death of this process: all are in a
    process namespace whose first process dies with bwrap, and bwrap dies with this process. Without a grant the network
    is an empty one with its own loopback. With `by_descriptor`, bwrap mounts the folders that were opened. An older
    bwrap opens their paths again: what it has mounted is compared before the program begins.
    """

    def __init__(self, *, bwrap: str, prlimit: str, machine: Machine, by_descriptor: bool) -> None:
        self._bwrap = bwrap
        self._prlimit = prlimit
        self._filter = filter_for(machine)
        self._by_descriptor = by_descriptor
        self._users = Users()

    async def run(self, program: Program) -> Ended:
        return await self._run(program, None)

    async def converse(self, program: Program, talk: Talk) -> Ended:
        return await self._run(replace(program, stdin=b""), talk)

    async def _run(self, program: Program, talk: Talk | None) -> Ended:
        with self._users.one() as user, ExitStack() as resources:
            launch = _Launch(resources, user)
            args = self._args(program, launch)
            # An unused uid has the processes of this program and two of bwrap; other uids have more.
            processes = program.processes + 2 if user is not None else None
            limits = prlimit_command(program, prlimit=self._prlimit, processes=processes, reserved=program.reserved)
            process = launch.start([*limits, self._bwrap], args, program)
            ended = await launch.supervise(process, program, talk)
        return _program_result(ended)

    def _args(self, program: Program, launch: _Launch) -> list[str]:
        paths = ProgramPaths(program, launch.resources)
        roots = paths.roots
        args = [*NAMESPACES, *([] if program.network else ["--unshare-net"])]
        args += ["--hostname", HOSTNAME, "--die-with-parent", "--new-session"]
        if roots[0].path == "/":
            args += self._bind(roots[0], launch)
        args += system_mounts(program, roots)
        for root in roots:
            args += self._bind(root, launch) if root.path != "/" else []
        args += symlinks(paths)
        for path, content in program.files.items():
            args += ["--dir", os.path.dirname(path), "--ro-bind-data", launch.data_fd(content), path]
        args += _etc_files(launch, roots, network=program.network)
        args += root_only_covers() if launch.user is not None else ()
        covered = covers(paths)
        launch.protected = (*inner_paths([root.path for root in roots]), *mount_points(covered))
        args += covered
        if not self._by_descriptor:
            args += launch.wait_after_mounts(roots)
        args += read_only_remounts(roots)
        for name in SHELL_VARIABLES:
            args += ["--unsetenv", name]
        for name, value in program.environment.items():
            args += ["--setenv", name, value]
        args += ["--chdir", paths.folder.path, "--seccomp", launch.data_fd(self._filter)]
        return args + launch.identity_args()

    def _bind(self, root: Root, launch: _Launch) -> list[str]:
        kind = "--bind" if root.writable else "--ro-bind"
        if not self._by_descriptor:
            return [kind, root.path, root.path]
        return [f"{kind}-fd", launch.passed_fd(root.descriptor), root.path]


def _etc_files(launch: _Launch, roots: Iterable[Root], *, network: bool) -> list[str]:
    """Generated files of /etc that name the program's own user and no other."""
    granted = [root.path for root in roots]
    if any(within("/etc", path) for path in granted):
        return []
    user, group = (os.getuid(), os.getgid()) if launch.user is None else (launch.user, launch.user)
    files = {
        "/etc/passwd": f"agent:x:{user}:{group}:agent:/tmp:/bin/sh\n".encode(),
        "/etc/group": f"agent:x:{group}:\n".encode(),
    }
    if launch.user is not None:
        files["/etc/gitconfig"] = ANY_REPOSITORY
    if not network:
        files |= {path: text for path, text in LOCALHOST_FILES.items() if path not in granted}
    return [arg for path, text in files.items() for arg in ("--ro-bind-data", launch.data_fd(text), path)]


class _Launch:
    """One launch of bwrap: the descriptors passed to it, and the exchange with it before the program begins."""

    def __init__(self, resources: ExitStack, user: int | None) -> None:
        self.user = user
        self.resources = resources
        self._passed: list[int] = []
        self._info, info_end = os.pipe()
        self._own(self._info)
        self._info_end = resources.enter_context(os.fdopen(info_end, "wb", buffering=0))
        self._blocked, self._unblock = (self._own(end) for end in os.pipe())
        # Both ends are passed on: if this process is killed before bwrap has asked to die with it, bwrap must block for
        # ever and not take the closed pipe for the signal to go on. The program inherits them, which is harmless.
        self._passed += [info_end, self._blocked, self._unblock]
        self._compared: tuple[Root, ...] = ()
        self._compare_end: io.FileIO | None = None
        self.protected: tuple[str, ...] = ()
        """Mount points that keep the program from reading or writing a file."""

    def data_fd(self, content: bytes) -> str:
        """The number of a descriptor from which bwrap reads `content`."""
        descriptor = self._own(os.memfd_create("retinue"))
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self._passed.append(descriptor)
        return str(descriptor)

    def passed_fd(self, descriptor: int) -> str:
        """The number of a copy of a descriptor that is passed to bwrap, which closes it."""
        copy = self._own(os.dup(descriptor))
        self._passed.append(copy)
        return str(copy)

    def wait_after_mounts(self, roots: tuple[Root, ...]) -> list[str]:
        """Arguments with which bwrap waits after its mounts, until `_compare_mounts` has seen them.

        bwrap copies a pipe to a file of the program's own /dev, to its end. It has begun to do so when the full pipe
        can be written again.
        """
        reading, writing = os.pipe()
        self._passed.append(self._own(reading))
        self._compare_end = self.resources.enter_context(os.fdopen(writing, "wb", buffering=0))
        os.set_blocking(writing, False)
        while self._compare_end.write(bytes(4096)) is not None:
            pass
        self._compared = roots
        return ["--file", str(reading), "/dev/mounted"]

    async def _compare_mounts(self, pid: int) -> None:
        """Compare the mounts of bwrap with the folders that were opened, and let bwrap go on; raises `ToolError`."""
        if self._compare_end is None:
            return
        await _ready(self._compare_end.fileno(), writing=True)
        for root in self._compared:
            there = os.open(f"/proc/{pid}/root/newroot", os.O_PATH | os.O_DIRECTORY)
            try:
                for name in filter(None, root.path.split("/")):
                    inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=there)
                    os.close(there)
                    there = inner
                if not os.path.samestat(os.fstat(there), os.fstat(root.descriptor)):
                    raise ToolError(f"{root.path} cannot be granted to a program: it was replaced a moment ago")
            finally:
                os.close(there)
        self._compare_end.close()

    def identity_args(self) -> list[str]:
        """Arguments for the user of the program, and for the pipe on which bwrap reports its process."""
        args = ["--info-fd", str(self._info_end.fileno())]
        if self.user is None:
            return [*args, "--block-fd", str(self._blocked)]
        args += ["--userns-block-fd", str(self._blocked), "--uid", str(self.user), "--gid", str(self.user)]
        return args + [arg for capability in CAPABILITIES for arg in ("--cap-add", capability)]

    def start(self, bwrap: list[str], args: list[str], program: Program) -> subprocess.Popen[bytes]:
        if any("\0" in arg for arg in (*args, *program.argv)):
            raise ToolError("a program's words and variables cannot contain a zero byte")
        arguments = self.data_fd(b"".join(os.fsencode(arg) + b"\0" for arg in args))
        try:
            command = [*WAIT_FOR_GO, *bwrap, "--args", arguments, "--", *program.argv]
            process = start(command, env={}, cwd="/", pass_fds=self._passed, user=self.user)
            self._guard(-process.pid)
            return process
        except OSError as error:
            raise ToolError(f"the program could not be started: {error.strerror}") from error
        finally:
            self._info_end.close()  # from now on the pipe ends when bwrap has closed it, or has ended

    async def supervise(self, process: subprocess.Popen[bytes], program: Program, talk: Talk | None = None) -> Ended:
        """Let the program begin, wait for its end, and make sure that none of its processes is left."""
        first: list[int] = []
        watching: list[asyncio.Task[str]] = []

        def kill() -> None:
            # Processes outside the group of bwrap die with bwrap.
            end_group(process)
            for descriptor in first:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

        async def kill_after(reason: Awaitable[str]) -> str:
            try:
                return await reason
            finally:
                kill()

        async def begin() -> None:
            pid = await self._first_process()
            if pid is None:
                return
            try:
                first.append(self._own(os.pidfd_open(pid)))
                self._guard(pid)
                check_readable(pid)
                if self.user is None:
                    limit_processes(pid, program.processes + 1)
                else:
                    map_ids(pid)
                excess = wait_for_excess(pid, program)
                watching.append(asyncio.ensure_future(kill_after(excess)))
                if self.protected:
                    watching.append(asyncio.ensure_future(kill_after(wait_for_lost_mount(pid, self.protected))))
                os.write(self._unblock, b"x")
                await self._compare_mounts(pid)
            except ToolError:
                kill()
                raise
            except OSError as error:
                kill()
                # If it has ended already, its own error message says why.
                if not isinstance(error, ProcessLookupError | FileNotFoundError):
                    raise ToolError(f"the sandbox could not be set up: {error}") from error

        beginning = asyncio.ensure_future(begin())
        try:
            ended = await finish(process, replace(program, stdin=GO + program.stdin), kill, talk=talk)
            await beginning
            if ended.code == -signal.SIGKILL and not ended.timed_out:
                ended = replace(ended, killed_for=next((task.result() for task in watching if task.done()), ""))
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            kill()
            # The first process of a process namespace ends only after all others.
            for descriptor in first:
                await wait_for_exit(descriptor)
                _reap(descriptor)
        return ended

    async def _first_process(self) -> int | None:
        info = b""
        while not (match := re.search(rb'"child-pid": (\d+)', info)):
            await _ready(self._info)
            more = os.read(self._info, 4096)
            if not more:
                return None
            info += more
        return int(match[1])

    def _guard(self, process: int) -> None:
        """Let a process or group be killed if this process is, while bwrap itself does not see to that yet."""
        GUARDIAN.add(process)
        self.resources.callback(GUARDIAN.remove, process)

    def _own(self, descriptor: int) -> int:
        self.resources.callback(os.close, descriptor)
        return descriptor


async def _ready(descriptor: int, *, writing: bool = False) -> None:
    """Wait until a pipe can be read, or written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)


def _reap(descriptor: int) -> None:
    """Reap a process that outlived its parent, if this process is the reaper of orphans."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)


def _program_result(ended: Ended) -> Ended:
    """How the program ended, from how bwrap did: like a shell, bwrap reports a signal as 128 plus its number."""
    message = ended.stderr.decode("utf-8", "replace").strip()
    if ended.code == 1 and message.startswith("bwrap: execvp "):
        return replace(ended, code=NOT_FOUND, stderr=ended.stderr.removeprefix(b"bwrap: execvp "))
    if ended.code == 1 and message.startswith("bwrap: "):
        raise ToolError(f"the sandbox could not be set up: {message.removeprefix('bwrap: ')}")
    return replace(ended, code=128 - ended.code) if FIRST_SIGNAL <= ended.code <= LAST_SIGNAL else ended
