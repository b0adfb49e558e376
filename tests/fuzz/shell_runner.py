"""Run command lines in real shells, in a sandbox with nothing but stub programs, and report what they did.

Started as a program inside bubblewrap by `Shells`; it reads lines of JSON and answers each with one.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

STUBS = ("a", "b", "c", "ls", "cat")
WORK, BIN, LOG = Path("/tmp/work"), Path("/tmp/bin"), Path("/tmp/log")
UNUSED_USER = 54_321
SECONDS = 5.0


def serve() -> None:
    """Inside the sandbox: run each line in each shell."""
    BIN.mkdir()
    LOG.mkdir()
    for name in STUBS:
        stub = BIN / name
        stub.write_text(f"#!/bin/dash\nprintf '%s\\0' {name} \"$@\" > /tmp/log/$$\n")
        stub.chmod(0o755)
    for line in sys.stdin:
        command, shells = json.loads(line)
        print(json.dumps([_run(command, shell) for shell in shells]), flush=True)


def _run(command: str, shell: list[str]) -> dict[str, Any]:
    for folder in (WORK, LOG):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    argv = ["sh", *shell[1:], "-c", command]
    process = subprocess.Popen(
        argv,
        executable=shell[0],
        cwd=WORK,
        env={"PATH": str(BIN)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_limit,
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS)
        _wait_for_group(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    started = [file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1] for file in sorted(LOG.iterdir())]
    files = [str(file.relative_to(WORK)) for file in WORK.rglob("*")]
    return {"started": [words for words in started if words], "files": files}


def _wait_for_group(group: int) -> None:
    """Wait a moment for what the shell left in the background."""
    end = time.monotonic() + 1
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.002)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, 2),
        (resource.RLIMIT_NPROC, 100),
        (resource.RLIMIT_FSIZE, 65_536),
        (resource.RLIMIT_AS, 1 << 29),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


class Shells:
    """Real shells in a sandbox, or none where there is no bubblewrap that works."""

    def __init__(self) -> None:
        found = ((shutil.which("dash"), ()), (shutil.which("bash"), ()), (shutil.which("bash"), ("--posix",)))
        self._shells = [[path, *options] for path, options in found if path is not None]
        self._server = self._begin() if self._shells else None

    @property
    def work(self) -> bool:
        return self._server is not None

    def run(self, command: str) -> list[dict[str, Any]]:
        """What each shell started and which files it made; empty without a sandbox."""
        if self._server is None or self._server.stdin is None or self._server.stdout is None:
            return []
        self._server.stdin.write(json.dumps([command, self._shells]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            self._server = self._begin()
            return []
        return json.loads(answer)

    def _begin(self) -> subprocess.Popen[str] | None:
        bwrap, python, user = shutil.which("bwrap"), sys.executable, None
        if bwrap is None:
            return None
        if os.getuid() == 0:  # limits on processes do not bind root, and the environment may be root's alone
            python, user = shutil.which("python3", path="/usr/bin:/usr/local/bin") or python, UNUSED_USER
        argv = [bwrap, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        argv += ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--chdir", "/tmp", "--"]
        argv += [python, "-I", "-c", f"{Path(__file__).read_text()}\nserve()\n"]
        server = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(json.dumps(["a", self._shells]) + "\n")
            server.stdin.flush()
            ready = server.stdout.readline()
        except OSError:
            ready = ""
        if not ready or [each["started"] for each in json.loads(ready)] != [[["a"]]] * len(self._shells):
            server.kill()
            server.wait()
            return None
        return server
