"""Programs in bubblewrap: output, end, folders, limits and privileges."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Sandbox
from retinue.sandbox import bubblewrap
from retinue.sandbox.seccomp import MACHINES, Machine
from retinue.sandbox.uid import UNUSED
from tests.sandbox.conftest import Calls, Line

pytestmark = pytest.mark.real_time
HOLDS_THE_LINE = "exec 3>line; echo started >&3; setsid sleep 60 & sleep 60"


async def test_output_of_both_streams_and_exit_code_are_returned(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("sh", "-c", "echo out; echo err >&2; exit 3"))

    assert ended == Ended(code=3, stdout=b"out\n", stderr=b"err\n")


async def test_a_signal_is_a_negative_code(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("sh", "-c", "kill -TERM $$"))

    assert ended == Ended(code=-signal.SIGTERM)


async def test_an_unknown_program_ends_with_127_as_in_a_shell(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("no-such-program"))

    assert (ended.code, b"no-such-program" in ended.stderr) == (127, True)


async def test_a_program_whose_name_looks_like_an_option_is_a_program(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("--version"))

    assert (ended.code, ended.stdout) == (127, b"")


async def test_a_program_reads_its_stdin(sandbox: Sandbox, program: Calls) -> None:
    text = os.urandom(512 * 1024)

    ended = await sandbox.run(program("cat", stdin=text))

    assert ended == Ended(code=0, stdout=text)


async def test_a_program_need_not_read_its_stdin(sandbox: Sandbox, program: Calls) -> None:
    assert await sandbox.run(program("true", stdin=b"x" * 1_000_000)) == Ended(code=0)


async def test_a_program_has_only_the_granted_variables(sandbox: Sandbox, program: Calls, work: Path) -> None:
    ended = await sandbox.run(program("env", environment={"NAME": "value with = and\nlines", "LANG": "C"}))

    assert ended == Ended(code=0, stdout=f"NAME=value with = and\nlines\nLANG=C\nPWD={work}\n".encode())


async def test_the_beginning_of_long_output_is_kept_and_the_rest_discarded(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("sh", "-c", "head -c 3000000 /dev/zero; echo done >&2", max_output=1000))

    assert ended == Ended(code=0, stdout=b"\0" * 1000, stderr=b"done\n", cut=True)


async def test_output_of_exactly_the_limit_is_not_cut(sandbox: Sandbox, program: Calls) -> None:
    assert await sandbox.run(program("printf", "12345", max_output=5)) == Ended(code=0, stdout=b"12345")


# ---- end --------------------------------------------------------------------------------------------------------


async def test_a_timeout_kills_the_program_and_all_its_children(sandbox: Sandbox, program: Calls, line: Line) -> None:
    running = asyncio.create_task(sandbox.run(program("sh", "-c", HOLDS_THE_LINE, seconds=1.0)))

    assert await line.read() == b"started\n"
    assert await running == Ended(code=-signal.SIGKILL, timed_out=True)
    assert await line.read() == b""


async def test_background_processes_end_with_the_program(sandbox: Sandbox, program: Calls, line: Line) -> None:
    ended = await sandbox.run(program("sh", "-c", "exec 3>line; setsid sleep 60 & echo started >&3"))

    assert ended == Ended(code=0)
    assert (await line.read(), await line.read()) == (b"started\n", b"")


async def test_a_cancel_kills_the_program_and_all_its_children(sandbox: Sandbox, program: Calls, line: Line) -> None:
    running = asyncio.create_task(sandbox.run(program("sh", "-c", HOLDS_THE_LINE)))
    assert await line.read() == b"started\n"

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert await line.read() == b""


async def test_a_cancel_at_the_start_leaves_no_process(sandbox: Sandbox, program: Calls, work: Path) -> None:
    for turns in range(12):
        running = asyncio.create_task(sandbox.run(program("sh", "-c", f"sleep 30 && touch {work}/late")))
        # Loop iterations, not time: each cancel comes at another moment of the start.
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert processes_that_name(work) == []


def processes_that_name(folder: Path) -> list[str]:
    """The pids of all processes with this folder in their command line."""
    found: list[str] = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            found += [process] if os.fsencode(folder) in Path(f"/proc/{process}/cmdline").read_bytes() else []
    return found


def started(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv)


OURSELVES = """
import asyncio, sys
from retinue.core.ports import Program
from retinue.sandbox.probe import examine

async def main():
    sandbox = (await examine()).sandbox
    await sandbox.run(Program(argv=("sh", "-c", sys.argv[1]), folder=sys.argv[2], writable=(sys.argv[2],)))

asyncio.run(main())
"""


async def test_a_program_ends_when_retinue_is_killed(sandbox: Sandbox, work: Path, line: Line) -> None:
    with started(sys.executable, "-c", OURSELVES, HOLDS_THE_LINE, str(work)) as process:
        assert await line.read() == b"started\n"

        process.kill()

        assert await line.read() == b""


# ---- folders ----------------------------------------------------------------------------------------------------


async def test_a_program_starts_in_its_folder_and_what_it_writes_there_stays(
    sandbox: Sandbox, program: Calls, work: Path
) -> None:
    (work / "old").write_text("old")
    os.chmod(work, 0o700)

    ended = await sandbox.run(program("sh", "-c", "pwd; cat old; echo more >> old; chmod +x old; echo new > made"))

    assert ended == Ended(code=0, stdout=f"{work}\nold".encode())
    assert ((work / "old").read_text(), (work / "made").read_text()) == ("oldmore\n", "new\n")
    assert os.access(work / "old", os.X_OK)


async def test_a_read_only_folder_in_a_writable_one_and_the_other_way_round(
    sandbox: Sandbox, program: Calls, work: Path
) -> None:
    for name in ("closed/open", "open/closed"):
        (work / name).mkdir(parents=True)

    ended = await sandbox.run(
        program(
            *("sh", "-c", "for each in closed closed/open open open/closed; do touch $each/x && echo $each; done"),
            readable=(str(work), str(work / "closed"), str(work / "open" / "closed")),
            writable=(str(work / "closed" / "open"), str(work / "open")),
        )
    )

    assert ended.stdout == b"closed/open\nopen\n"


async def test_hidden_paths_override_grants(sandbox: Sandbox, program: Calls, work: Path) -> None:
    (work / "state").mkdir()
    (work / "state" / "key").write_text("secret")
    (work / "file").write_text("secret")
    (work / "link").symlink_to(work / "state")

    ended = await sandbox.run(
        program("sh", "-c", "ls state; cat file; touch state/x", hidden=(str(work / "link"), str(work / "file")))
    )

    assert ended.stdout == b""
    assert ended.stderr.count(b"\n") == 2
    assert sorted(each.name for each in (work / "state").iterdir()) == ["key"]


async def test_a_program_cannot_move_hidden_or_read_only_paths(sandbox: Sandbox, program: Calls, work: Path) -> None:
    for name in ("a/b/state/key", "c/d/closed/file"):
        (work / name).parent.mkdir(parents=True)
        (work / name).write_text(f"content of {name}")
    grants = {"hidden": (str(work / "a/b/state"),), "readable": (str(work / "c/d/closed"),)}
    moves = "mv a x; mv a/b x; mv a/b/state x; mv c y; mv c/d y; rm -rf a c; echo done"
    looks = "grep -r 'content of a' .; echo spoiled > c/d/closed/file; echo done"

    ended = [await sandbox.run(program("sh", "-c", script, **grants)) for script in (moves, looks)]

    assert [each.stdout for each in ended] == [b"done\n", b"done\n"]
    for name in ("a/b/state/key", "c/d/closed/file"):
        assert (work / name).read_text() == f"content of {name}"


async def test_a_folder_granted_through_a_link_has_that_name(
    sandbox: Sandbox, program: Calls, work: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(work)
    (work / "inner").mkdir()

    ended = await sandbox.run(
        program("sh", "-c", f"pwd; touch '{link}/made'", folder=str(link / "inner"), writable=(str(link),))
    )

    assert ended == Ended(code=0, stdout=f"{work}/inner\n".encode())
    assert (work / "made").exists()


async def test_the_whole_system_can_be_granted_read_only(sandbox: Sandbox, program: Calls, work: Path) -> None:
    look = "test -d /var/tmp && echo seen; touch /var/tmp/x /etc/x || echo closed; touch made; ls /tmp | wc -l"

    ended = await sandbox.run(program("sh", "-c", look, readable=("/",)))

    in_tmp = 1 if work.is_relative_to("/tmp") else 0  # nothing but the program's own folder
    assert (ended.stdout, (work / "made").exists()) == (b"seen\nclosed\n%d\n" % in_tmp, True)


@pytest.mark.parametrize(
    ("grants", "complaint"),
    [
        ({"readable": ("/no/such/folder",)}, "the folder /no/such/folder is not there"),
        ({"folder": "/usr"}, "a program cannot start in /usr, which is in none of its folders"),
        ({"folder": "/no/such/folder"}, "the folder /no/such/folder is not there"),
        ({"readable": ("/proc/1",)}, "/proc/1 belongs to the system and cannot be granted to a program"),
        ({"readable": ("/usr/bin",), "hidden": ("/usr",)}, "/usr/bin cannot be granted to a program: /usr is hidden"),
        ({"environment": {"A": "b\0c"}}, "a program's words and variables cannot contain a zero byte"),
    ],
)
async def test_an_invalid_grant_is_refused_with_a_reason(
    sandbox: Sandbox, program: Calls, grants: dict[str, object], complaint: str
) -> None:
    before = os.listdir("/proc/self/fd")

    with pytest.raises(ToolError) as refused:
        await sandbox.run(program("true", **grants))

    assert str(refused.value) == complaint
    assert os.listdir("/proc/self/fd") == before


def opened(folder: Path) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY)


def older_bubblewrap() -> bubblewrap.Bubblewrap:
    """A sandbox whose bwrap cannot mount descriptors."""
    bwrap, prlimit = shutil.which("bwrap"), shutil.which("prlimit")
    assert bwrap is not None
    assert prlimit is not None
    machine: Machine = next(each for each in MACHINES if each == platform.machine())
    return bubblewrap.Bubblewrap(bwrap=bwrap, prlimit=prlimit, machine=machine, by_descriptor=False)


@pytest.mark.parametrize("place", ["data", "data/inner"])
async def test_a_folder_that_is_replaced_by_a_link_after_it_was_opened_is_refused(
    sandbox: Sandbox, program: Calls, work: Path, place: str
) -> None:
    (work / "data" / "inner").mkdir(parents=True)
    (work / "secret" / "inner").mkdir(parents=True)
    descriptor = opened(work / place)
    (work / "data").rename(work / "moved")
    (work / "data").symlink_to(work / "secret")

    try:
        with pytest.raises(ToolError) as refused:
            await sandbox.run(
                program("true", readable=(f"{work}/{place}",), descriptors={f"{work}/{place}": descriptor})
            )
    finally:
        os.close(descriptor)

    assert str(refused.value) == f"{work}/{place} cannot be granted to a program: it was replaced a moment ago"


async def test_a_program_inherits_no_descriptor_of_a_folder(program: Calls, sandbox: Sandbox, work: Path) -> None:
    descriptor = opened(work)
    asked = program("sh", "-c", "readlink /proc/self/fd/*", descriptors={str(work): descriptor})
    try:
        both = [await sandbox.run(asked), await older_bubblewrap().run(asked)]
    finally:
        os.close(descriptor)

    for ended in both:
        assert str(work) not in ended.stdout.decode()


async def test_an_older_bubblewrap_gets_folders_by_path(program: Calls, sandbox: Sandbox, work: Path) -> None:
    older = older_bubblewrap()
    (work / "state").mkdir()

    ended = await older.run(program("sh", "-c", "touch made; ls", readable=("/usr",), hidden=(str(work / "state"),)))

    assert ended == Ended(code=0, stdout=b"made\nstate\n")


async def test_an_older_bubblewrap_that_mounts_another_folder_starts_no_program(
    program: Calls, sandbox: Sandbox, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "data").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("SECRET")
    start = bubblewrap.start

    def swap_and_start(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        (work / "data").rename(work / "moved")
        (work / "data").symlink_to(tmp_path / "outside")
        return start(*args, **kwargs)

    monkeypatch.setattr(bubblewrap, "start", swap_and_start)
    command = f"cat {work}/data/key {tmp_path}/outside/key; echo OWNED > {work}/data/key"

    with pytest.raises(ToolError) as refused:
        await older_bubblewrap().run(
            program("sh", "-c", command, folder=f"{work}/data", writable=(f"{work}/data",), readable=())
        )

    assert str(refused.value) == f"{work}/data cannot be granted to a program: it was replaced a moment ago"
    assert (tmp_path / "outside" / "key").read_text() == "SECRET"


# ---- limits and privileges ------------------------------------------------------------------------------------------


async def test_the_number_of_processes_is_limited(sandbox: Sandbox, program: Calls) -> None:
    start = "i=1; while [ $i -lt $0 ]; do sleep 30 & i=$((i+1)); done; echo started"

    fits = await sandbox.run(program("sh", "-c", start, "8", processes=8))
    too_many = await sandbox.run(program("sh", "-c", start, "9", processes=8))

    assert (fits.stdout, too_many.stdout) == (b"started\n", b"")


async def test_concurrent_programs_have_separate_process_limits(sandbox: Sandbox, program: Calls) -> None:
    start = "i=1; while [ $i -lt 8 ]; do sleep 0.3 & i=$((i+1)); done; wait; echo started"

    ended = await asyncio.gather(*(sandbox.run(program("sh", "-c", start, processes=8)) for _ in range(6)))

    assert ended == [Ended(code=0, stdout=b"started\n")] * 6


TOGETHER = """
import os, signal, sys, time
count, kind = int(sys.argv[1]), sys.argv[2]
if kind == "shared":
    kept = b"1" * (40 << 20)
reading, writing = os.pipe()
for _ in range(count):
    if os.fork() == 0:
        if kind == "own":
            kept = b"1" * (40 << 20)
        os.write(writing, b"x")
        signal.pause()
while count:
    count -= len(os.read(reading, count))
time.sleep(0.6)
print("enough")
"""


PYTHON = os.path.realpath(sys.executable)
HOSTS = Path("/etc/hosts").read_bytes()


async def together(sandbox: Sandbox, program: Calls, *words: str) -> Ended:
    installed = str(Path(PYTHON).parent.parent)
    return await sandbox.run(program(PYTHON, "-I", "-S", "-c", *words, readable=(installed,), memory=160 * 1024 * 1024))


async def test_processes_over_the_total_memory_limit_are_killed_with_a_reason(sandbox: Sandbox, program: Calls) -> None:
    fits = await together(sandbox, program, TOGETHER, "2", "own")
    too_much = await together(sandbox, program, TOGETHER, "6", "own")

    assert fits == Ended(code=0, stdout=b"enough\n")
    assert too_much == Ended(code=-signal.SIGKILL, killed_for=too_much.killed_for)
    assert re.fullmatch(
        r"Killed: all its processes and what lies in /tmp used [\d.]+ MB of memory together, and may use 160 MB",
        too_much.killed_for,
    )


async def test_shared_memory_counts_once(sandbox: Sandbox, program: Calls) -> None:
    assert await together(sandbox, program, TOGETHER, "12", "shared") == Ended(code=0, stdout=b"enough\n")


async def test_a_vforked_child_does_not_count_its_parents_memory(sandbox: Sandbox, program: Calls) -> None:
    start = (
        "import subprocess, time; kept = b'1' * (90 << 20); end = time.time() + 0.6\n"
        "while time.time() < end: subprocess.run(['/bin/true'], close_fds=False)\n"
        "print('enough')"
    )

    assert await together(sandbox, program, start) == Ended(code=0, stdout=b"enough\n")


async def test_files_in_tmp_count_as_memory(sandbox: Sandbox, program: Calls) -> None:
    fill = "i=0; while [ $i -lt 9 ]; do head -c 10000000 /dev/zero > /tmp/$i; i=$((i+1)); done; sleep 20"

    ended = await sandbox.run(program("sh", "-c", fill, memory=64 * 1024 * 1024, scratch=128 * 1024 * 1024))

    assert (ended.code, ended.killed_for.endswith("and may use 64 MB")) == (-signal.SIGKILL, True)


async def test_without_memory_watching_nothing_is_started(
    sandbox: Sandbox, program: Calls, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: int) -> None:
        raise PermissionError("its memory cannot be watched")

    monkeypatch.setattr(bubblewrap, "check_readable", closed)

    with pytest.raises(ToolError) as refused:
        await sandbox.run(program("touch", "made"))

    assert str(refused.value) == "the sandbox could not be set up: its memory cannot be watched"
    assert not (work / "made").exists()


async def test_there_are_no_core_dumps_and_no_raised_priorities(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("sh", "-c", "grep -E 'core|nice|realtime priority' /proc/self/limits"))

    limits = [line.rsplit(None, 3 if b"bytes" in line else 2) for line in ended.stdout.splitlines()]
    assert [(name.strip(), hard) for name, _, hard, *_ in limits] == [
        (b"Max core file size", b"1"),
        (b"Max nice priority", b"0"),
        (b"Max realtime priority", b"0"),
    ]


async def test_files_can_be_copied_without_sendfile(sandbox: Sandbox, program: Calls, work: Path) -> None:
    (work / "file").write_bytes(b"content" * 100_000)

    copied = await together(sandbox, program, "import shutil; shutil.copyfile('file', 'by python')")
    piped = await sandbox.run(program("sh", "-c", "cp file 'by cp'; cat file | cat > 'by cat'"))

    assert (copied, piped) == (Ended(code=0), Ended(code=0))
    for name in ("by python", "by cp", "by cat"):
        assert (work / name).read_bytes() == b"content" * 100_000


async def test_address_space_may_exceed_the_memory_limit(sandbox: Sandbox, program: Calls) -> None:
    limit = "ulimit -v"

    used = await sandbox.run(program("sh", "-c", limit, memory=256 * 1024 * 1024))
    reserved = await sandbox.run(program("sh", "-c", limit, memory=256 * 1024 * 1024, reserved=1024 * 1024 * 1024))

    assert (used.stdout, reserved.stdout) == (b"262144\n", b"1048576\n")


async def test_without_a_network_only_localhost_is_resolved(sandbox: Sandbox, program: Calls) -> None:
    look = (
        "import socket\n"
        "for name in 'localhost', socket.gethostname(), 'example.com':\n"
        "    try: print({place[0] for *_, place in socket.getaddrinfo(name, 80)} <= {'127.0.0.1', '::1'})\n"
        "    except OSError: print('unknown')\n"
    )

    ended = await together(sandbox, program, look)

    assert ended == Ended(code=0, stdout=b"True\nTrue\nunknown\n")
    granted = await sandbox.run(program("cat", "/etc/hosts", readable=("/etc/hosts",)))
    assert granted == Ended(code=0, stdout=HOSTS)


async def test_dev_zero_can_be_read(sandbox: Sandbox, program: Calls) -> None:
    assert await sandbox.run(program("head", "-c", "5", "/dev/zero")) == Ended(code=0, stdout=b"\0" * 5)


async def test_there_is_no_network_unless_granted(sandbox: Sandbox, program: Calls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = ("bash", "-c", f"echo > /dev/tcp/127.0.0.1/{port}")

        codes = [(await sandbox.run(program(*connect, network=network))).code for network in (False, True)]

    assert codes == [1, 0]


async def test_a_program_sees_only_its_own_user(sandbox: Sandbox, program: Calls) -> None:
    ended = await sandbox.run(program("sh", "-c", "id -un; wc -l < /etc/passwd; hostname"))

    assert ended == Ended(code=0, stdout=b"agent\n1\nsandbox\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another user")
async def test_as_root_programs_have_unused_uids(sandbox: Sandbox, program: Calls, work: Path) -> None:
    ended = await asyncio.gather(*(sandbox.run(program("sh", "-c", "id -u; touch made; sleep 0.2")) for _ in range(3)))

    users = {int(each.stdout) for each in ended}
    assert len(users) == 3
    assert all(any(user in unused for unused in UNUSED) for user in users)
    assert (work / "made").stat().st_uid in users


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git_trusts_a_repository_in_a_granted_folder(sandbox: Sandbox, program: Calls, work: Path) -> None:
    assert started("git", "init", "-q", str(work)).wait() == 0

    assert await sandbox.run(program("git", "status", "--short")) == Ended(code=0)


def test_programs_run_on_other_event_loops_too(sandbox: Sandbox, program: Calls) -> None:
    uvloop = pytest.importorskip("uvloop")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(sandbox.run(program("cat", stdin=b"hello"))) == Ended(code=0, stdout=b"hello")


def save_by_renaming(file: Path) -> None:
    """Save as most editors do."""
    (file.parent / "saved").write_text("new")
    (file.parent / "saved").replace(file)


def save_with_a_backup(file: Path) -> None:
    """Save as editors do that keep the old file: its cover is renamed with it."""
    file.rename(f"{file}~")
    file.write_text("new")


@pytest.mark.parametrize("save", [save_by_renaming, save_with_a_backup])
async def test_a_program_is_killed_when_a_hidden_file_is_replaced(
    sandbox: Sandbox, program: Calls, work: Path, line: Line, save: Callable[[Path], None]
) -> None:
    (work / "my secret").write_text("old")
    running = asyncio.ensure_future(
        sandbox.run(program("sh", "-c", "echo > line; sleep 20", hidden=(str(work / "my secret"),)))
    )
    await line.read()
    save(work / "my secret")
    ended = await running

    assert ended.code == -signal.SIGKILL
    assert (
        ended.killed_for
        == f"Killed: {work}/my secret was replaced while this ran, and was not protected from it any more"
    )


async def test_a_program_outlives_changes_of_other_files(
    sandbox: Sandbox, program: Calls, work: Path, line: Line
) -> None:
    (work / "secret").write_text("old")
    (work / "other").write_text("old")
    os.mkfifo(work / "end")
    running = asyncio.ensure_future(
        sandbox.run(program("sh", "-c", "echo > line; cat end; echo over", hidden=(str(work / "secret"),)))
    )
    await line.read()
    (work / "saved").write_text("new")
    (work / "saved").replace(work / "other")
    (work / "secret").write_text("in place")
    (work / "end").write_text("")
    ended = await running

    assert (ended.code, ended.stdout, ended.killed_for) == (0, b"over\n", "")
