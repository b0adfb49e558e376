"""The tool `python_execute`: runs a model's Python code in the sandbox, read-only and without a network."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Ended, PreparedCall, Program, Tool
from retinue.core.text import cut
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool
from retinue.tools.program_access import environment_of, memory_limits, mounts_of, run_in_sandbox
from retinue.tools.settings_guard import watch_settings
from retinue.tools.threads import in_thread

MAX_CHARS = 10_000
TRUNCATED = "\n... (truncated)"
MAX_SECONDS = 300
MAX_MEMORY = 4 * 1024**3
UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

RUNNER = f"""\
import ast, json, os, sys
token, code = json.loads(sys.stdin.read())
sys.stdin.close()
first = os.getpid()
names = {{"__name__": "__main__"}}
tree = ast.parse(code, "<code>")
last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
result = None
exec(compile(tree, "<code>", "exec"), names)
if last is not None:
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
    result = None if value is None else repr(value)[:{MAX_CHARS + 1}]
if os.getpid() == first:
    os.write(2, (token + json.dumps(result)).encode())
"""
"""Runs the code; the value of its last expression is printed after a random token, which the code cannot forge.

It goes to stderr, which is rarely so long that its end is lost; output of threads that outlive the code may follow. A
process that the code forked reaches the same end and prints nothing.
"""


class PythonResult(Struct, frozen=True):
    """Output of the code, and the value of its last expression."""

    stdout: str = ""
    stderr: str = ""
    result: str | None = None


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`python_execute`."""

    async def python_execute(code: str, context: CallContext, mem: str = "512m", timeout: int = 30) -> PythonResult:
        """Run Python code in a sandbox without network; the workspace can be read, only /tmp can be written.

        Args:
            code: The code; the value of its last expression is returned as the result.
            mem: How much memory it may use, such as 512m or 1g.
            timeout: Seconds after which it is killed.
        """
        if not code.strip():
            return PythonResult(stderr="No code provided")
        memory = parse_size(mem)
        if memory is None:
            return PythonResult(stderr=f"Invalid memory limit: {mem!r}; write a number with k, m or g, up to 4g")
        seconds = max(1, min(timeout, MAX_SECONDS))
        allowed, memory_of_all = memory_limits(dependencies)
        token = secrets.token_hex(16)
        mounts = await in_thread(mounts_of, context, dependencies, writes=False)
        # Without a sandbox the code can write to what it should only read.
        written = () if dependencies.sandboxed else mounts.readable
        with closing(mounts):
            program = Program(
                argv=(_interpreter(), "-I", "-X", "utf8", "-c", RUNNER),
                folder=mounts.folder,
                readable=(*mounts.readable, sys.base_prefix),
                hidden=mounts.hidden,
                descriptors=mounts.descriptors,
                environment=environment_of(context, dependencies),
                stdin=msgspec.json.encode([token, code]),
                seconds=float(seconds),
                memory=min(memory, allowed),
                memory_of_all=memory_of_all,
            )
            async with watch_settings(written, dependencies.settings, dependencies.home) as watch:
                ended = await run_in_sandbox(program, dependencies)
        return _execution(ended, token, seconds, watch.messages)

    seconds = MAX_SECONDS + 30.0
    if not dependencies.sandboxed:  # then the code has all rights of this process and may change anything
        return [UnfencedPython(python_execute, kind="once", risk=Risk.MEDIUM, acts=True, timeout=seconds)]
    return [FunctionTool(python_execute, kind="idempotent", risk=Risk.LOW, timeout=seconds)]


class UnfencedPython(FunctionTool[..., Any]):
    """`python_execute` without a sandbox: an approval for a whole run covers the same code alone."""

    def prepare(self, arguments: str) -> PreparedCall:
        return replace(super().prepare(arguments), group=arguments)


def _interpreter() -> str:
    """The Python that runs the code: the one of this process, without the packages of a virtual environment."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def parse_size(text: str) -> int | None:
    """A size such as 512m in bytes; None if it is invalid or above the maximum.

    >>> parse_size("512m"), parse_size("1G"), parse_size("lots")
    (536870912, 1073741824, None)
    """
    matched = re.fullmatch(r"\s*(\d{1,12})\s*([bkmg]?)b?\s*", text, re.IGNORECASE | re.ASCII)
    if matched is None:
        return None
    size = int(matched[1]) * UNITS[matched[2].lower()]
    return size if 0 < size <= MAX_MEMORY else None


def _execution(ended: Ended, token: str, seconds: int, messages: Sequence[str]) -> PythonResult:
    before, has_token, rest = ended.stderr.decode("utf-8", "replace").rpartition(token)
    result, after = _result(rest) if has_token else (None, rest)
    stderr = before + after
    if ended.cut and ended.code == 0 and not has_token:
        stderr = "More was printed than is kept, and the result is lost; print less\n" + stderr
    if ended.timed_out:
        stderr += f"Execution timed out after {seconds} seconds"
    elif ended.killed_for:
        stderr += ended.killed_for
    elif ended.code < 0:
        stderr += f"Killed by signal {-ended.code}: too much memory or time?"
    stderr = "\n".join((stderr, *(f"[{message}]" for message in messages))) if messages else stderr
    return PythonResult(_truncate(ended.stdout.decode("utf-8", "replace")), _truncate(stderr), result)


def _result(printed: str) -> tuple[str | None, str]:
    try:
        value, end = json.JSONDecoder().raw_decode(printed)
    except ValueError:
        return None, printed
    # It may have lone surrogates, which UTF-8 cannot carry.
    return value and _truncate(str(value).encode("utf-8", "replace").decode()), printed[end:]


def _truncate(text: str) -> str:
    return cut(text, MAX_CHARS, TRUNCATED).text
