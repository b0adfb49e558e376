"""Processes that a test kills: `python -m tests.dialects.killed_program` forks one for each line on stdin.

A line is `HOME TREE NUMBER`. The process drives the tree of that name in the folder, with tools that start sandboxed
commands, and writes `asked-NUMBER`, `left` and `answer` there. The program reports `started PID` and `ended STATUS`.
Forking saves the time of the imports, which is longer than a process lives.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace as with_fields
from pathlib import Path

import msgspec
from msgspec.structs import replace

import retinue
from retinue.core.ports import Ended, Program, Sandbox, Tool
from retinue.dialects.buzzllm import process_provider
from retinue.providers.scripted import calls, together
from retinue.sandbox.probe import sandbox_verdict
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.mixed_scenario import LEAD, REVIEWER, TREES, WORKER, MixedHarness, Tree, stand_in

AGENTS = (LEAD, replace(REVIEWER, tools=(*REVIEWER.tools, "notify")), WORKER)


def killed_tree(name: str) -> Tree:
    """One of the trees, with a call that must not happen twice."""
    tree = TREES[name]()
    first, *rest = tree.lines["reviewer", "measure"]
    measure = (together(first, calls("notify", text="measured")), *rest)  # type: ignore[arg-type]  a reply with calls
    return with_fields(tree, lines={**tree.lines, ("reviewer", "measure"): measure})


def sandboxed_tools(sandbox: Sandbox, home: Path) -> tuple[Tool, ...]:
    """Tools whose work is done by commands in a sandbox; each names the folder, so that a test finds it."""

    async def command(text: str) -> Ended:
        return await sandbox.run(
            Program(
                argv=("/bin/sh", "-c", f"{text}; : {home}"),
                folder=str(home / "work"),
                readable=("/usr", "/bin", "/lib", "/lib64"),
                writable=(str(home / "work"),),
                environment={"PATH": "/usr/bin:/bin"},
            )
        )

    @retinue.tool(kind="pure")
    async def look(where: str = "") -> str:
        """Look somewhere."""
        ended = await command("echo seen")
        assert (ended.code, ended.stdout) == (0, b"seen\n"), ended
        return f"seen {where}"

    @retinue.tool(kind="idempotent", acts=True)
    async def act(what: str = "") -> str:
        """Do something that counts as an action."""
        ended = await command(f"echo done > '{what}'")
        assert ended.code == 0, ended
        return f"did {what}"

    @retinue.tool
    async def notify(text: str) -> str:
        """Send a notification."""
        ended = await command(f"echo '{text}' >> sent")
        assert ended.code == 0, ended
        return "sent"

    @retinue.tool
    async def deploy(version: int = 1) -> str:
        """Deploy; no policy here allows it."""
        return f"deployed {version}"

    return look, act, notify, deploy


async def drive(home: Path, name: str, number: str) -> None:
    """Drive the tree to its end."""
    sandbox = (await sandbox_verdict()).sandbox
    assert sandbox is not None
    process_provider.COMMAND = stand_in()
    (home / "work").mkdir(exist_ok=True)
    tree = killed_tree(name)
    store = SqliteStore(home / "retinue.db")
    harness = MixedHarness(tree, store, tools=sandboxed_tools(sandbox, home), agents=AGENTS)
    outcome = await harness.life(adopt=True)
    await harness.close()
    store.close()
    (home / f"asked-{number}").write_bytes(
        msgspec.json.encode([(each.path, each.turn) for each in harness.model.asked])
    )
    (home / "left").write_text(repr(harness.model.left))
    (home / "answer").write_text(outcome.text)


def main() -> None:
    """Fork a process for each line."""
    for line in sys.stdin:
        home, name, number = line.split()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(drive(Path(home), name, number))
                code = 0
            finally:
                os._exit(code)
        print(f"started {pid}", flush=True)
        _, status = os.waitpid(pid, 0)
        print(f"ended {status}", flush=True)


if __name__ == "__main__":
    main()
