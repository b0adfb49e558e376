"""Flags, settings and a module of tools for several scenarios."""

from __future__ import annotations

from tests.compatibility.model_server import ModelServer

LOGGED = {"RETINUE_LOG": "info"}

TOOLS = '''\
"""Tools of the user."""

import asyncio
import os
import pathlib
import signal

import retinue


@retinue.tool(kind="pure")
def look(where: str, times: int = 1) -> str:
    """Look somewhere.

    Args:
        where: the place
        times: how often
    """
    return f"{where}: nothing\\n" * times


@retinue.tool(risk="medium", acts=True)
def deploy(version: int) -> dict[str, object]:
    """Bring out a version."""
    with pathlib.Path("deployed").open("a") as log:
        log.write(f"{version}\\n")
    return {"version": version, "out": True}


@retinue.tool
def refuse(reason: str) -> str:
    """Fail with an error for the model."""
    raise retinue.ToolError(f"cannot be done: {reason}")


@retinue.tool
def crash(reason: str) -> str:
    """Fail with an unexpected exception."""
    raise RuntimeError(reason)


@retinue.tool
def who(context: retinue.CallContext) -> str:
    """Describe the caller."""
    return f"{context.agent} at {context.path}, depth {context.depth}, turn {context.turn}"


@retinue.tool(timeout=0.05)
async def rest() -> str:
    """Exceed the timeout of this tool."""
    await asyncio.Event().wait()
    return "rested"


def _first(name: str) -> bool:
    """Whether this is the first call with that name, in any process."""
    path = pathlib.Path(name)
    if path.exists():
        return False
    path.write_text("1")
    return True


@retinue.tool
def die_once(word: str) -> str:
    """Kill the process at the first call."""
    if _first(f"died-{word}"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"alive: {word}"


@retinue.tool(kind="idempotent")
async def hang_once(word: str) -> str:
    """Hang at the first call."""
    if _first(f"hung-{word}"):
        await asyncio.Event().wait()
    return f"alive: {word}"


@retinue.tool(kind="pure")
async def interrupt() -> str:
    """Interrupt the process with SIGINT at the first call."""
    if _first("interrupted"):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    return "not interrupted"
'''

SETTINGS = '[tools]\nmodules = ["./mytools.py"]\n'


def at(server: ModelServer, *more: str, dialect: str = "none") -> tuple[str, ...]:
    """The arguments of `retinue run` with a model server."""
    return ("run", "--base-url", server.url, "--model", "m", "--dialect", dialect, *more)
