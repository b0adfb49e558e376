"""Mounts of programs: a path is resolved once, and a swap after the decision grants nothing else.

The interleaving is certain: `SwappingSandbox` makes the swap after the tool has decided and before the program starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import Ended, Program, Sandbox
from retinue.tools import path_walk, python
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.shell import shell_tool
from tests.tools.tool_calls import FixedClock, ToolCaller, UnusedKeyValue

pytestmark = pytest.mark.real_time

FREE_HAND = Policy(
    autonomy=Autonomy.FULL,
    require_approval_for_medium_risk=False,
    max_actions_per_hour=100,
    allowed_commands=("cat", "echo", "ls", "pwd", "cd", "rm", "ln", "mkdir", "mv"),
)


class SwappingSandbox:
    """The sandbox of the machine; before each program it calls `swap` once, as a concurrent program could."""

    def __init__(self, sandbox: Sandbox, swap: Callable[[], object] = lambda: None) -> None:
        self.sandbox = sandbox
        self.swap = swap
        self.programs: list[Program] = []

    async def run(self, program: Program) -> Ended:
        self.programs.append(program)
        self.swap()
        return await self.sandbox.run(program)


class Scene:
    """A workspace, a folder outside it with a secret, and the shell of an agent that works there."""

    def __init__(self, base: Path, sandbox: Sandbox) -> None:
        self.workspace = base / "project"
        self.outside = base / "outside"
        self.workspace.mkdir()
        self.outside.mkdir()
        (self.outside / "key").write_text("SECRET\n")
        self.sandbox = SwappingSandbox(sandbox)

    def shell(self, *, home: Path | None = None, **changes: Any) -> ToolCaller:
        dependencies = ToolDependencies(sandbox=self.sandbox, key_value=UnusedKeyValue(), clock=FixedClock(), home=home)
        policy = replace(FREE_HAND, **changes)
        tools = (*shell_tool.tools(dependencies), *python.tools(dependencies))
        return ToolCaller(tools, self.workspace, policy)

    def replace_by_link(self, name: str) -> None:
        """Replace a folder of the workspace by a link to the folder outside."""
        place = self.workspace / name
        with contextlib.suppress(FileNotFoundError):
            os.rename(place, self.workspace / f"{name}.old")
        place.symlink_to(self.outside)


@pytest.fixture
def scene(tmp_path: Path, sandbox: Sandbox) -> Scene:
    return Scene(tmp_path, sandbox)


async def test_a_settings_file_that_is_a_link_grants_nothing(scene: Scene) -> None:
    (scene.workspace / "inner").mkdir()
    (scene.workspace / "retinue.toml").symlink_to("inner")
    scene.sandbox.swap = lambda: scene.replace_by_link("inner")

    text = (await scene.shell().result("shell", command=f"cat {scene.outside}/key")).text

    assert "SECRET" not in text
    assert "No such file" in text


async def test_a_settings_file_that_is_a_link_to_a_folder_is_not_mounted(scene: Scene) -> None:
    (scene.workspace / "inner").mkdir()
    (scene.workspace / "retinue.toml").symlink_to("inner")

    await scene.shell()("shell", command="echo x > inner/made")

    assert (scene.workspace / "inner" / "made").read_text() == "x\n"


async def test_the_settings_behind_a_link_of_a_person_stay_read_only(scene: Scene) -> None:
    (scene.workspace / "conf").mkdir()
    (scene.workspace / "conf" / "real.toml").write_text("")
    (scene.workspace / "retinue.toml").symlink_to("conf/real.toml")

    failed = await scene.shell().error("shell", command="echo x > conf/real.toml")

    assert "Read-only file system" in failed or "cannot create" in failed
    assert (scene.workspace / "conf" / "real.toml").read_text() == ""


async def test_a_root_that_becomes_a_link_after_the_decision_is_not_followed(scene: Scene) -> None:
    (scene.workspace / "data").mkdir()
    scene.sandbox.swap = lambda: scene.replace_by_link("data")

    text = (
        await scene.shell(allowed_roots=(f"{scene.workspace}/data",)).result(
            "shell", command=f"cat {scene.outside}/key; echo OWNED > {scene.outside}/key"
        )
    ).text

    assert "SECRET" not in text
    assert (scene.outside / "key").read_text() == "SECRET\n"


async def test_a_missing_root_in_which_a_program_puts_a_link_is_not_granted(scene: Scene) -> None:
    shell = scene.shell(allowed_roots=(f"{scene.workspace}/data",))

    await shell("shell", command=f"ln -s {scene.outside} data")
    text = (await shell.result("shell", command=f"cat data/key; echo OWNED > {scene.outside}/key")).text

    assert "SECRET" not in text
    assert (scene.outside / "key").read_text() == "SECRET\n"


async def test_a_missing_root_that_becomes_a_link_after_the_decision_is_not_granted(scene: Scene) -> None:
    scene.sandbox.swap = lambda: scene.replace_by_link("data")

    text = (
        await scene.shell(allowed_roots=(f"{scene.workspace}/data",)).result(
            "shell", command=f"cat {scene.outside}/key; echo OWNED > {scene.outside}/key"
        )
    ).text

    assert "SECRET" not in text
    assert (scene.outside / "key").read_text() == "SECRET\n"


async def test_a_root_behind_two_links_whose_second_lies_in_the_workspace_is_not_granted(
    scene: Scene, tmp_path: Path
) -> None:
    (scene.workspace / "deep").symlink_to(scene.outside)
    (tmp_path / "s").symlink_to(scene.workspace / "deep")
    shell = scene.shell(allowed_roots=(f"{tmp_path}/s",))

    text = (await shell.result("shell", command=f"cat {scene.outside}/key")).text

    assert "SECRET" not in text


async def test_the_workspace_that_becomes_a_link_after_the_decision_is_not_followed(
    scene: Scene, tmp_path: Path
) -> None:
    def swap() -> None:
        os.rename(scene.workspace, tmp_path / "work.old")
        scene.workspace.symlink_to(scene.outside)

    scene.sandbox.swap = swap

    text = (await scene.shell().result("shell", command=f"cat key {scene.outside}/key; echo OWNED > key")).text

    assert "SECRET" not in text
    assert (scene.outside / "key").read_text() == "SECRET\n"


async def test_settings_behind_a_workspace_that_became_a_link_are_not_renamed(scene: Scene, tmp_path: Path) -> None:
    (scene.outside / "retinue.toml").write_text("")

    def swap() -> None:
        os.rename(scene.workspace, tmp_path / "work.old")
        scene.workspace.symlink_to(scene.outside)

    scene.sandbox.swap = swap
    await scene.shell(home=tmp_path / "home").result("shell", command="ls")

    assert sorted(os.listdir(scene.outside)) == ["key", "retinue.toml"]


async def test_a_working_folder_that_becomes_a_link_after_the_decision_is_not_followed(scene: Scene) -> None:
    (scene.workspace / "sub").mkdir()
    scene.sandbox.swap = lambda: scene.replace_by_link("sub")

    text = (await scene.shell().result("shell", command="cat key", working_dir="sub")).text

    assert "SECRET" not in text


async def test_python_code_reads_nothing_behind_a_root_that_was_swapped(scene: Scene) -> None:
    (scene.workspace / "data").mkdir()
    scene.sandbox.swap = lambda: scene.replace_by_link("data")
    code = f"print(open('{scene.outside}/key').read())"

    text = (
        await scene.shell(allowed_roots_read_only=(f"{scene.workspace}/data",)).result("python_execute", code=code)
    ).text

    assert "SECRET" not in text


async def test_every_path_of_a_program_has_a_descriptor_of_the_folder_that_was_decided_on(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    (scene.workspace / ".env").write_text("KEY=1\n")
    (scene.workspace / "retinue.toml").write_text("")
    seen: list[dict[str, tuple[int, int]]] = []

    def look() -> None:
        program = scene.sandbox.programs[-1]
        found = {path: os.fstat(number) for path, number in program.descriptors.items()}
        seen.append({path: (each.st_dev, each.st_ino) for path, each in found.items()})

    scene.sandbox.swap = look
    shell = scene.shell(allowed_roots_read_only=(f"{tmp_path}/notes",), forbidden_paths=(".env",))
    await shell("shell", command="pwd", working_dir=".")

    (program,) = scene.sandbox.programs
    assert {program.folder, *program.readable, *program.writable, *program.hidden} == set(program.descriptors)
    assert seen == [{path: (os.stat(path).st_dev, os.stat(path).st_ino) for path in program.descriptors}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(program.descriptors[str(tmp_path / "notes")])


async def test_a_root_that_becomes_a_link_during_the_walk_is_not_granted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.workspace / "data").mkdir()
    look = path_walk.Position.link
    swaps: list[str] = []

    def swap_after_the_look(position: path_walk.Position, name: str) -> str | None:
        target = look(position, name)
        if name == "data" and not swaps:
            swaps.append(name)
            scene.replace_by_link("data")
        return target

    monkeypatch.setattr(path_walk.Position, "link", swap_after_the_look)

    text = (
        await scene.shell(allowed_roots=(f"{scene.workspace}/data",)).result(
            "shell", command=f"cat {scene.outside}/key data/key"
        )
    ).text

    assert swaps == ["data"]
    assert "SECRET" not in text
    assert "No such file" in text


async def test_no_program_starts_while_a_hidden_path_cannot_be_resolved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.workspace / ".env").write_text("KEY=SECRET")
    open_file = os.open

    def too_many(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == ".env":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, *args, **kwargs)

    shell = scene.shell(forbidden_paths=(".env",))
    monkeypatch.setattr(os, "open", too_many)
    failed = await shell.error("shell", command="cat .env")

    assert failed == "the folders of the program cannot be opened: Too many open files"


async def test_a_state_folder_behind_a_link_stays_hidden_after_the_link_is_changed(scene: Scene) -> None:
    (scene.workspace / "real").mkdir()
    (scene.workspace / "real" / "retinue.db").write_text("SECRET")
    (scene.workspace / "state").symlink_to("real")
    shell = scene.shell(home=scene.workspace / "state")

    await shell("shell", command="mkdir other; rm state; ln -s other state")
    text = (await shell.result("shell", command="cat real/retinue.db state/retinue.db")).text

    assert "SECRET" not in text


class PathSandbox:
    """A sandbox of a user: it reads the path names of a program and nothing else."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    async def run(self, program: Program) -> Ended:
        self.programs.append(program)
        return Ended(code=0, stdout=b"ran\n")


async def test_a_sandbox_of_a_user_receives_path_names(tmp_path: Path) -> None:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    sandbox = PathSandbox()
    dependencies = ToolDependencies(sandbox=sandbox, key_value=UnusedKeyValue(), clock=FixedClock())
    policy = Policy(
        autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, allowed_roots_read_only=(f"{tmp_path}/notes",)
    )
    caller = ToolCaller(shell_tool.tools(dependencies), tmp_path / "project", policy)

    assert await caller("shell", command="ls", working_dir="sub") == "ran"

    (program,) = sandbox.programs
    assert (program.folder, program.writable, program.readable, program.hidden) == (
        f"{tmp_path}/project/sub",
        (f"{tmp_path}/project",),
        (f"{tmp_path}/notes",),
        (),
    )


@pytest.mark.stress
async def test_no_command_reads_outside_while_settings_and_roots_are_swapped(scene: Scene) -> None:
    stop = threading.Event()
    (scene.workspace / "retinue.toml").symlink_to("inner")

    def swapper() -> None:
        while not stop.is_set():
            for name in ("inner", "data"):
                place = scene.workspace / name
                with contextlib.suppress(OSError):
                    place.mkdir()
                with contextlib.suppress(OSError):
                    place.rmdir()
                    place.symlink_to(scene.outside)
                with contextlib.suppress(OSError):
                    place.unlink()

    thread = threading.Thread(target=swapper)
    thread.start()
    try:
        shell = scene.shell(allowed_roots=(f"{scene.workspace}/data",), max_actions_per_hour=1000)
        for _ in range(100):
            text = (
                await shell.result("shell", command=f"cat {scene.outside}/key; echo OWNED > {scene.outside}/key")
            ).text
            assert "SECRET" not in text
    finally:
        stop.set()
        thread.join()
    assert (scene.outside / "key").read_text() == "SECRET\n"
