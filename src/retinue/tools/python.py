"""Python code that a model made up, run in the sandbox: it sees the workspace, changes nothing and reaches nobody."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Ended, Program, Tool
from retinue.core.text import cut
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool
from retinue.tools.sandbox_mounts import environment_of, mounts_of, run_in_sandbox
from retinue.tools.threads import in_thread

LONGEST = 10_000
TRUNCATED = "\n... (truncated)"
MOST_SECONDS = 300
MOST_MEMORY = 4 * 1024**3
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
    result = None if value is None else repr(value)[:{LONGEST + 1}]
if os.getpid() == first:
    os.write(2, (token + json.dumps(result)).encode())
"""
"""Runs the code; what its last expression came to is written after a token that nobody can guess.

It goes to stderr, which is rarely so long that its end is lost, and is followed by what threads say that outlive the
code. A process that the code forked comes to the same end, and has nothing to tell.
"""


class Execution(Struct, frozen=True):
    """What the code printed, and what its last expression came to."""

    stdout: str = ""
    stderr: str = ""
    result: str | None = None


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`python_execute`."""

    async def python_execute(code: str, context: CallContext, mem: str = "512m", timeout: int = 30) -> Execution:
        """Run Python code in a sandbox without network; the workspace can be read, only /tmp can be written.

        Args:
            code: The code; the value of its last expression is returned as the result.
            mem: How much memory it may use, such as 512m or 1g.
            timeout: Seconds after which it is killed.
        """
        if not code.strip():
            return Execution(stderr="No code provided")
        memory = bytes_in(mem)
        if memory is None:
            return Execution(stderr=f"Invalid memory limit: {mem!r}; write a number with k, m or g, up to 4g")
        seconds = max(1, min(timeout, MOST_SECONDS))
        token = secrets.token_hex(16)
        mounts = await in_thread(mounts_of, context, dependencies, writes=False)
        ended = await run_in_sandbox(
            Program(
                argv=(interpreter(), "-I", "-X", "utf8", "-c", RUNNER),
                folder=mounts.folder,
                readable=(*mounts.readable, sys.base_prefix),
                hidden=mounts.hidden,
                environment=environment_of(context),
                stdin=msgspec.json.encode([token, code]),
                seconds=float(seconds),
                memory=memory,
            ),
            dependencies,
        )
        return _execution(ended, token, seconds)

    seconds = MOST_SECONDS + 30.0
    if not dependencies.sandboxed:  # then code can do whatever we can: it is no longer something that only looks
        return [FunctionTool(python_execute, kind="once", risk=Risk.MEDIUM, acts=True, timeout=seconds)]
    return [FunctionTool(python_execute, kind="idempotent", risk=Risk.LOW, timeout=seconds)]


def interpreter() -> str:
    """The Python that runs the code: this one, without the packages of a virtual environment."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def bytes_in(size: str) -> int | None:
    """A size such as 512m in bytes; None when it is not one, or more than there may be.

    >>> bytes_in("512m"), bytes_in("1G"), bytes_in("lots")
    (536870912, 1073741824, None)
    """
    matched = re.fullmatch(r"\s*(\d{1,12})\s*([bkmg]?)b?\s*", size, re.IGNORECASE | re.ASCII)
    if matched is None:
        return None
    found = int(matched[1]) * UNITS[matched[2].lower()]
    return found if 0 < found <= MOST_MEMORY else None


def _execution(ended: Ended, token: str, seconds: int) -> Execution:
    before, found, told = ended.stderr.decode("utf-8", "replace").rpartition(token)
    result, after = _result(told) if found else (None, told)
    stderr = before + after
    if ended.cut and ended.code == 0 and not found:
        stderr = "More was printed than is kept, and the result is lost; print less\n" + stderr
    if ended.timed_out:
        stderr += f"Execution timed out after {seconds} seconds"
    elif ended.killed_for:
        stderr += ended.killed_for
    elif ended.code < 0:
        stderr += f"Killed by signal {-ended.code}: too much memory or time?"
    return Execution(_bounded(ended.stdout.decode("utf-8", "replace")), _bounded(stderr), result)


def _result(told: str) -> tuple[str | None, str]:
    """What the runner told, and what was printed after it."""
    try:
        value, end = json.JSONDecoder().raw_decode(told)
    except ValueError:
        return None, told
    # It may be halves of characters, which UTF-8 cannot carry.
    return value and _bounded(str(value).encode("utf-8", "replace").decode()), told[end:]


def _bounded(text: str) -> str:
    return cut(text, LONGEST, TRUNCATED).text
