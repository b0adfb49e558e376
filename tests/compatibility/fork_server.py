"""A process that has loaded the command line and forks a process for every command: a fifth of the usual time.

`ForkServer` starts this module as a program. The program reads one JSON object per line and answers with the exit
status of the command. Every command has its own process, working folder, environment and files for its three streams.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

FAILED_TO_START = 70


class ForkServer:
    """The client of the program; the program runs inside a `with` block."""

    def __init__(self, env: Mapping[str, str]) -> None:
        program = f"import runpy; runpy.run_path({str(Path(__file__))!r}, run_name='__main__')"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], streams: Sequence[Path]) -> int:
        """Run a command and return its exit status; `streams` are the files for stdin, stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"argv": list(arguments), "cwd": str(cwd), "env": dict(env), "streams": [str(each) for each in streams]}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the fork server has ended")
        return int(answer)


def main() -> None:
    """Run commands until stdin is closed."""
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    stderr = os.dup(2)
    os.dup2(null, 2)
    _load()
    os.dup2(stderr, 2)
    for line in orders:
        print(_fork(json.loads(line)), file=answers, flush=True)


def _load() -> None:
    """Import the modules that commands need, by running some commands on a temporary state folder."""
    import aiohttp
    import typer.main

    from retinue.__main__ import main as command_line

    assert aiohttp.__version__
    # Half of the time of a read-only command is spent on the table of commands, which is the same every time.
    typer.main.get_command = cache(typer.main.get_command)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RETINUE_HOME"] = folder
        script = Path(folder, "script.json")
        script.write_text('[{"say": "Hi."}]')
        run = ["run", "--provider", "scripted", "--model", str(script), "--json", "--tools", "file_read", "Hi."]
        for words in (run, ["runs", "--all"], ["context", "list"], ["cron", "list"], ["replay", "--list"]):
            command_line(words)
    os.environ.clear()
    os.environ.update(before)
    sys.stdout.flush()
    if (count := threading.active_count()) > 1:
        raise AssertionError(f"a process with {count} threads cannot be forked safely")
    gc.collect()
    gc.freeze()


def _fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        code = FAILED_TO_START
        try:
            code = _run(order)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _run(order: dict[str, Any]) -> int:
    from retinue.__main__ import main as command_line

    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number, path in enumerate(order["streams"]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags, 0o600), number)
    return command_line(order["argv"])


if __name__ == "__main__":
    main()
