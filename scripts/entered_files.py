"""Count the files of retinue in which a function is entered, in two walks that a reader of the source may follow.

`run` is `retinue run --dialect xzatoma` against a fake chat server: the lead delegates to one child, the child answers
and sums up, the lead answers. `spawn` is the action `spawn` of the dialect `spec`, from the tool call to its result.

Bodies of modules and classes do not count, and neither do functions that an import calls: they prepare what the walk
may use. Run it with `--list` to see the files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "retinue"

DELEGATE = {"name": "subagent", "arguments": {"label": "dig", "task_prompt": "Dig deep."}}
DEFINE = {
    "name": "subagent",
    "arguments": {"action": "define", "name": "digger", "description": "Digs.", "system_prompt": "Dig."},
}
SPAWN = {"name": "subagent", "arguments": {"action": "spawn", "agent": "digger", "task": "Dig deep."}}
SCRIPTS = {
    "run": {
        "Dig deep.": [{"say": "Dug."}, {"say": "In short: dug."}],
        "default": [{"calls": [DELEGATE]}, {"say": "Done."}],
    },
    "spawn": {
        "Dig deep.": [{"say": "Dug."}],
        "default": [{"calls": [DEFINE]}, {"calls": [SPAWN]}, {"say": "Done."}],
    },
}
DIALECTS = {"run": "xzatoma", "spawn": "spec"}


def entered_files(walk: str) -> list[str]:
    """The files of a walk, relative to the package; it runs in a fresh process."""
    with tempfile.TemporaryDirectory() as folder, _fake_chat(Path(folder), walk) as url:
        result = subprocess.run(
            [sys.executable, __file__, walk, "--traced", url],
            cwd=folder,
            env={**os.environ, "RETINUE_HOME": str(Path(folder, "home")), "HOME": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(result.stdout + result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


@contextmanager
def _fake_chat(folder: Path, walk: str) -> Generator[str]:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPTS[walk]))
    command = [sys.executable, "-m", "retinue.testing.fake_chat", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url, "the fake server did not start"
            yield url
        finally:
            server.terminate()


class Trace:
    """Notes the files of functions that are entered; with `within`, only while a call with that text is performed."""

    def __init__(self, within: str = "") -> None:
        self._within = within
        self.files: set[str] = set()
        self._prefix = f"{SOURCE}{os.sep}"

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & CO_OPTIMIZED or not code.co_filename.startswith(self._prefix):
            return
        callers = list(_callers(frame.f_back))
        is_import = any(_is_body(each.f_code) for each in callers)
        if not is_import and (not self._within or any(map(self._is_within, callers))):
            self.files.add(code.co_filename.removeprefix(self._prefix))

    def _is_within(self, frame: FrameType) -> bool:
        code = frame.f_code
        if code.co_name != "perform_call" or not code.co_filename.endswith("tool_calls.py"):
            return False
        return self._within in str(getattr(frame.f_locals.get("call"), "call", ""))


def _is_body(code: CodeType) -> bool:
    """Whether this is the body of a module or class, apart from this program."""
    return not code.co_flags & CO_OPTIMIZED and code.co_filename != __file__


def _callers(frame: FrameType | None) -> Generator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _run_traced(walk: str, url: str) -> None:
    from retinue.__main__ import main

    trace = Trace(within='"spawn"' if walk == "spawn" else "")
    arguments = ["run", "--dialect", DIALECTS[walk], "--base-url", url, "--model", "m", "Look."]
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        status = main(arguments)
    finally:
        sys.setprofile(None)
    sys.stdout.write("\n" + json.dumps(sorted(trace.files)) + "\n")
    sys.exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", choices=SCRIPTS)
    parser.add_argument("--list", action="store_true", help="print the files as well")
    parser.add_argument("--traced", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.traced:
        _run_traced(options.walk, options.traced)
    files = entered_files(options.walk)
    if options.list:
        print(*files, sep="\n")
    print(f"{options.walk}: {len(files)} files")


if __name__ == "__main__":
    main()
