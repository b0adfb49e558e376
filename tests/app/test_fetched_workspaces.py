"""Runs whose workspace is fetched: their tools work in the folder, children too, and the changes are handed back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.errors import BadInput
from retinue.core.policy import Autonomy, Policy
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from tests.local.test_workspaces import git, needs_git, repository

pytestmark = pytest.mark.real_time

__all__ = ["repository"]

FREE = Policy(autonomy=Autonomy.FULL)


@needs_git
async def test_a_tree_works_in_a_git_repository_and_leaves_a_branch(repository: Path, tmp_path: Path) -> None:
    script = Script().play(
        "main",
        calls("file_read", path="changed.txt"),
        calls("file_write", path="lead.txt", content="by the lead\n"),
        calls("run_agent", task="Write.", agent="worker"),
        says("Done."),
    )
    script.play("worker", calls("file_write", path="child.txt", content="by the child\n"), says("Written."))
    worker = retinue.Agent(name="worker", system_prompt="You write.", tools=("file_write",))
    async with retinue.open(
        provider=ScriptedProvider(script),
        home=tmp_path / "home",
        agents=[worker],
        tools=["file_read", "file_write"],
        dialects=["native"],
        policy=FREE,
    ) as r:
        run = await r.spawn("Work.", workspace=f"git+file://{repository}@main")
        outcome = await run.wait()

    branch = f"retinue/{run.run_id}"
    assert (outcome.text, outcome.artifacts) == ("Done.", (f"git+file://{repository}@{branch}",))
    assert git(repository, "diff", "--name-only", "main", branch).split() == ["child.txt", "lead.txt"]
    assert git(repository, "show", f"{branch}:child.txt") == "by the child\n"
    assert list((tmp_path / "home-workspaces").iterdir()) == []


@needs_git
async def test_a_run_goes_on_in_another_process_with_what_was_handed_back(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    store = f"sqlite:{tmp_path}/runs.db"
    blocked = retinue.Agent(name="main", tools=("file_write", "file_read", "hold"))

    @retinue.tool(kind="pure")
    async def hold() -> str:
        """Wait for ever."""
        started.set_result(None)
        await asyncio.Event().wait()
        return ""

    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = Script().play(
        "main",
        calls("file_write", path="first.txt", content="1\n"),
        calls("hold"),
        calls("file_read", path="first.txt"),
    )
    first.play("main", says("Done."))
    provider = ScriptedProvider(first)
    options: dict[str, Any]
    options = {
        "provider": provider,
        "agents": [blocked],
        "dialects": (),
        "policy": FREE,
        "store": store,
    }
    async with retinue.open(tools=["file_write", "file_read", hold], **options) as r:
        run = await r.spawn("Work.", agent="main", workspace=address)
        await started

    @retinue.tool(kind="pure", name="hold")
    async def go_on() -> str:
        """Go on."""
        return "went on"

    allowed = retinue.ToolOptions(workspaces=(f"git+file://{tmp_path}/*",))
    async with retinue.open(tools=["file_write", "file_read", go_on], tool_options=allowed, **options) as r:
        await r.resume(run.run_id)
        outcome = await r.handle(run.run_id).wait()

    assert outcome.text == "Done."
    assert git(repository, "show", f"retinue/{run.run_id}:first.txt") == "1\n"


async def test_a_workspace_that_cannot_be_fetched_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async with retinue.open(
        provider=ScriptedProvider(Script()), home=tmp_path / "home", dialects=(), tools=["file_read"]
    ) as r:
        outcome = await r.run("Work.", workspace="shared:///nowhere/at/all")

    assert (outcome.result, outcome.reason) == ("failed", "tool_error")
    assert outcome.error == "the shared folder /nowhere/at/all does not exist on this machine"


@pytest.mark.parametrize("workspace", ["/srv/site", "git+ext://x/y", "s3+x://bucket"])
async def test_a_workspace_that_is_no_address_is_refused(workspace: str) -> None:
    async with retinue.open(provider=ScriptedProvider(Script()), home=retinue.MEMORY, dialects=()) as r:
        with pytest.raises(BadInput, match="workspace"):
            await r.run("Work.", workspace=workspace)
