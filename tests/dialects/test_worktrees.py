"""`isolation: worktree`: a sub-agent works in a worktree of its own, and hands back a branch and a patch."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.policy import Autonomy, Policy
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, calls, says
from retinue.testing.harness import Harness
from tests.local.test_workspaces import files_in, git, repository

__all__ = ["repository"]

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

FREE = Policy(autonomy=Autonomy.FULL, block_high_risk_commands=False)
TASK = "Change the file."
START = {
    "native": calls("run_agent", task=TASK, isolation="worktree"),
    "claude": calls("Agent", description="Change", prompt=TASK, isolation="worktree"),
}
GENERAL = {"native": "general", "claude": "general-purpose"}


class Played(NamedTuple):
    answer: dict[str, Any]
    child: retinue.RunView


async def play(dialect: str, home: Path, *child: Line | LineFunction, tools: tuple[str, ...], **options: Any) -> Played:
    """The answer of the call that started the child, and the child."""
    script = Script().play("main", START[dialect], lambda ask: says(ask.messages[-1].text))
    script.play(GENERAL[dialect], *child)
    given: dict[str, Any] = {"policy": FREE} | options
    async with retinue.open(
        provider=ScriptedProvider(script), dialects=[dialect], tools=list(tools), home=home, **given
    ) as r:
        text = (await r.run("Lead.")).text
        (view,) = [view for view in await r.list(everyone=True) if view.depth]
    return Played(json.loads(text), view)


def tree_of(repository: Path) -> tuple[list[str], str]:
    """The files of a repository's tree, and its status."""
    files = [name for name in files_in(repository) if not name.startswith(".git/")]
    return files, git(repository, "status", "--porcelain")


@pytest.mark.promise("NA-WORKTREE", "CL-WORKTREE")
@pytest.mark.parametrize("dialect", ["native", "claude"])
async def test_a_child_hands_back_a_branch_and_a_patch(
    dialect: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    before = tree_of(repository)
    write = calls("file_write", path="changed.txt", content="after\n")
    played = await play(dialect, tmp_path / "home", write, says("Changed."), tools=("file_write",))

    outcome = played.child.outcome
    assert outcome is not None
    (artifact,) = outcome.artifacts
    branch = artifact.rpartition("@")[2]
    found = played.answer["worktree"] if dialect == "native" else played.answer
    assert found["branch" if dialect == "native" else "worktreeBranch"] == branch
    assert "-before\n+after\n" in found["patch"]
    assert tree_of(repository) == before
    assert git(repository, "show", f"{branch}:changed.txt") == "after\n"
    assert list((tmp_path / "home-workspaces").iterdir()) == []


@pytest.mark.promise("NA-WORKTREE-APART", "CL-WORKTREE-APART")
@pytest.mark.parametrize("dialect", ["native", "claude"])
async def test_a_child_reaches_nothing_of_its_callers_folder(
    dialect: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    before = tree_of(repository)
    results: list[str] = []

    def read(ask: retinue.ports.Request) -> Line:
        results.append(ask.messages[-1].text)
        return says("Tried.")

    attack = (
        f"echo x > {repository}/changed.txt; cat {repository}/kept.txt; echo x > {repository}/.git/hooks/update; "
        f"echo '[core]' >> {repository}/.git/config; mv .git moved; ln -s {repository}/.git .git; "
        f"ln -s {repository} inside; echo x > inside/kept.txt; ln {repository}/kept.txt hard; echo done"
    )
    await play(
        dialect,
        tmp_path / "home",
        calls("file_write", path=f"{repository}/changed.txt", content="x\n"),
        lambda ask: results.append(ask.messages[-1].text) or calls("shell", command=attack),
        read,
        tools=("file_write", "shell"),
        policy=Policy(
            autonomy=Autonomy.FULL,
            block_high_risk_commands=False,
            allowed_commands=("echo", "cat", "mv", "ln"),
            workspace_only=False,
            allowed_roots=(str(repository),),
        ),
    )

    refused, tried = results
    assert "changed.txt" in refused
    assert "sandbox" in tried or "done" in tried
    assert "kept\n" not in tried
    config = (repository / ".git" / "config").read_text()
    assert (tree_of(repository), config.count("[core]")) == (before, 1)
    assert not (repository / ".git" / "hooks" / "update").exists()


@pytest.mark.parametrize("dialect", ["native", "claude"])
@pytest.mark.parametrize("is_absolute", [True, False])
async def test_what_is_forbidden_in_the_callers_folder_is_forbidden_in_the_worktree(
    dialect: str, is_absolute: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of the settings are absolute, and the worktree has a copy of the file at another place."""
    (repository / "private").mkdir()
    (repository / "private" / "key.txt").write_text("HIDDEN\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "private")
    monkeypatch.chdir(repository)
    results: list[str] = []

    def read(ask: retinue.ports.Request) -> Line:
        results.append(ask.messages[-1].text)
        return says("Tried.")

    forbidden = str(repository / "private") if is_absolute else "private"
    await play(
        dialect,
        tmp_path / "home",
        calls("file_read", path="private/key.txt"),
        read,
        tools=("file_read",),
        policy=Policy(autonomy=Autonomy.FULL, forbidden_paths=(forbidden,)),
    )

    (result,) = results
    assert "HIDDEN" not in result
    assert "forbidden" in result


@pytest.mark.parametrize("dialect", ["native", "claude"])
async def test_names_and_texts_that_are_no_utf8_come_back_with_marks(
    dialect: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call failed with an error of Python, so that a child could hide from its caller what it had changed."""
    monkeypatch.chdir(repository)

    def work(ask: retinue.ports.Request) -> Line:
        (folder,) = (tmp_path / "home-workspaces").iterdir()
        (folder / "changed.txt").write_bytes(b"caf\xe9\n")
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("new\n")
        return says("Changed.")

    played = await play(dialect, tmp_path / "home", work, tools=("file_write",))

    found = played.answer["worktree"] if dialect == "native" else played.answer
    assert "+caf\ufffd\n" in found["patch"]


@pytest.mark.promise("NA-WORKTREE-REFUSED", "CL-WORKTREE-REFUSED")
@pytest.mark.parametrize("dialect", ["native", "claude"])
async def test_a_folder_without_a_repository_is_refused(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    harness = Harness(dialects=(dialect,))
    harness.script("main", START[dialect], lambda ask: says(ask.messages[-1].text))
    async with harness:
        text = (await harness.run("Lead.")).text

    assert "is not the top folder of a git repository with its own .git. Valid: no isolation." in text
    assert [row.path for row in harness.store.runs(RunQuery())] == ["root"]


@pytest.mark.promise("NA-WORKTREE-CRASH")
async def test_a_crash_after_any_write_hands_back_the_same(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    before = tree_of(repository)

    def story(home: Path) -> Harness:
        made = Harness(dialects=("native",), tools=["file_write"], policy=FREE, home=home)
        made.script("main", START["native"], says("Thanks."))
        write = calls("file_write", path="changed.txt", content="after\n")
        made.script("general", write, calls("file_write", path="new.txt", content="new\n"), says("Changed."))
        return made

    undisturbed = story(tmp_path / "undisturbed")
    async with undisturbed:
        await undisturbed.run("Lead.", key="root")
        writes = undisturbed.written
    wanted = outcome_of(undisturbed)

    for n in range(writes + 1):
        harness = story(tmp_path / str(n))
        with suppress(StoreError):
            await harness.open(killed_after=n)
            with suppress(StoreError):
                await harness.run("Lead.", key="root")
            await harness.kill()
        await harness.open(adopt=True)
        assert (n, (await harness.run("Lead.", key="root")).text) == (n, "Thanks.")
        await harness.close()

        branch = outcome_of(harness).artifacts[0].rpartition("@")[2]
        assert (n, outcome_of(harness).text) == (n, wanted.text)
        changes = git(repository, "diff", "--name-status", "main", branch).splitlines()
        assert (n, changes) == (n, ["M\tchanged.txt", "A\tnew.txt"])
        assert (n, os.listdir(tmp_path / f"{n}-workspaces")) == (n, [])
    assert tree_of(repository) == before


def outcome_of(harness: Harness) -> retinue.Outcome:
    """How the child ended."""
    (row,) = [row for row in harness.store.runs(RunQuery()) if row.depth]
    assert row.progress.outcome is not None
    return row.progress.outcome


@pytest.mark.promise("NA-WORKTREE-MESSAGE")
async def test_a_message_continues_the_work_in_the_same_worktree(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    script = Script().play(
        "main",
        START["native"],
        lambda ask: calls("message_agent", run=json.loads(ask.messages[-1].text)["run"], text="One more."),
        lambda ask: calls("wait_agents", runs=[json.loads(ask.messages[-1].text)["run"]]),
        lambda ask: says(ask.messages[-1].text),
    )
    script.play("general", calls("file_write", path="one.txt", content="1\n"), says("One."), task=TASK)
    more = (calls("file_read", path="one.txt"), calls("file_write", path="two.txt", content="2\n"), says("Two."))
    script.play("general", *more, task="One more.")
    async with retinue.open(
        provider=ScriptedProvider(script),
        dialects=["native"],
        tools=["file_write", "file_read"],
        home=tmp_path / "home",
        policy=FREE,
    ) as r:
        (row,) = json.loads((await r.run("Lead.")).text)["runs"]

    assert (row["answer"], row["worktree"]["files"]) == ("Two.", 2)
    assert git(repository, "show", f"{row['worktree']['branch']}:one.txt") == "1\n"
    assert git(repository, "show", f"{row['worktree']['branch']}:two.txt") == "2\n"


DIGGER = retinue.Agent(name="digger", description="Digs", tools=("file_write",), isolation="worktree")
BY_AGENT: dict[str, list[Line]] = {
    "spec": [
        calls("subagent", action="spawn", agent="digger", task=TASK),
        calls("subagent", action="wait", task_ids=["t_01"]),
    ],
    "codex": [
        calls("spawn_agent", task_name="dig", message=TASK, agent_type="digger", fork_turns="none"),
        calls("wait_agent"),
    ],
    "native": [calls("run_agent", task=TASK, agent="digger")],
}


@pytest.mark.parametrize("dialect", BY_AGENT)
async def test_an_agent_of_the_settings_can_always_work_apart(
    dialect: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    before = tree_of(repository)
    script = Script().play("main", *BY_AGENT[dialect], says("Thanks."))
    script.play("digger", calls("file_write", path="changed.txt", content="after\n"), says("Changed."))
    async with retinue.open(
        provider=ScriptedProvider(script),
        dialects=[dialect],
        agents=[DIGGER],
        tools=["file_write"],
        home=tmp_path / "home",
        policy=FREE,
    ) as r:
        await r.run("Lead.")
        (child,) = [view for view in await r.list(everyone=True) if view.depth]

    assert child.outcome is not None
    (artifact,) = child.outcome.artifacts
    assert git(repository, "show", f"{artifact.rpartition('@')[2]}:changed.txt") == "after\n"
    assert tree_of(repository) == before
