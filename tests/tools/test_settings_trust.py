"""Settings and modules that agents got into place by other ways than writing them while a program is watched."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from retinue.app.open import tool_dependencies
from retinue.app.settings_file import load_settings
from retinue.app.tool_modules import load_tools
from retinue.core.errors import ConfigError
from retinue.local import programs
from retinue.sandbox import probe
from retinue.tools import files, search
from retinue.tools.dependencies import NoKeyValue, ToolDependencies, ToolOptions
from retinue.tools.settings_trust import check_trusted
from retinue.tools.shell import shell_tool
from tests.tools.test_settings_guard import FREE_HAND, MODULE, SETTINGS, Project
from tests.tools.tool_calls import FixedClock, ToolCaller

pytestmark = pytest.mark.real_time


@pytest.fixture
def project(tmp_path: Path, sandbox: object) -> Project:
    return Project(tmp_path)


def refusal(project: Project, folder: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_tools(load_settings(cwd=project.workspace / folder, home=project.home).tool_modules, home=project.home)
    return str(raised.value)


async def write(project: Project, path: str, content: str) -> str:
    """Write with the file tool, and no program at all."""
    dependencies = ToolDependencies(
        sandbox=project.sandbox,
        key_value=NoKeyValue(),
        clock=FixedClock(),
        home=project.home,
        settings=project.settings,
    )
    caller = ToolCaller(files.tools(dependencies), project.workspace, FREE_HAND)
    return (await caller.result("file_write", path=path, content=content)).text


async def test_a_folder_with_settings_that_is_moved_is_not_obeyed(project: Project) -> None:
    prepared = project.workspace / "vendor" / "example"
    prepared.mkdir(parents=True)
    (prepared / "retinue.toml").write_text(SETTINGS)
    (prepared / "m.py").write_text(MODULE)
    await project.shell("python3 -c \"import os; os.rename('vendor/example', 'service')\"")

    assert (project.workspace / "service" / "retinue.toml").exists()
    assert not project.obeyed("service")


async def test_a_module_written_by_a_file_tool_for_other_settings_is_not_imported(project: Project) -> None:
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "retinue.toml").write_text(SETTINGS)

    assert "Written" in await write(project, "sub/m.py", MODULE)
    assert not project.obeyed("sub")


async def test_a_module_that_a_program_of_other_settings_edits_in_place_is_not_imported(project: Project) -> None:
    (project.workspace / "ops.toml").write_text(SETTINGS)
    module = project.workspace / "m.py"
    module.write_text("")
    project.settings = (project.workspace / "ops.toml", module)
    async with project.running("echo over"):
        project.settings = ()  # those of another configuration, whose program may write the module
        (project.workspace / "source.txt").write_text(MODULE)
        await project.shell("cat source.txt > m.py")
        project.settings = (project.workspace / "ops.toml", module)
        await project.shell("echo again")
    assert module.read_text() == MODULE

    with contextlib.suppress(ConfigError):
        settings = load_settings(project.workspace / "ops.toml", cwd=project.workspace, home=project.home)
        load_tools(settings.tool_modules, home=project.home)
    assert not (project.workspace / "code-of-the-agent-ran").exists()


@pytest.fixture
def in_memory(sandbox: object) -> Generator[Project]:
    """A project on tmpfs."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    os.chmod(folder, 0o755)
    try:
        yield Project(Path(folder))
    finally:
        shutil.rmtree(folder)


MAPPED = """
import mmap, os, sys
with open('sub/m.py', 'r+b') as file:
    view = mmap.mmap(file.fileno(), 0)
    view[:] = open('source.txt', 'rb').read().ljust(len(view))
    view.close()
"""


async def test_a_module_that_is_written_through_a_mapping_is_not_imported(in_memory: Project) -> None:
    project = in_memory
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "retinue.toml").write_text(SETTINGS)
    module = project.workspace / "sub" / "m.py"
    module.write_text("#" * 4096)
    module.chmod(0o666)
    (project.workspace / "source.txt").write_text(MODULE)
    (project.workspace / "map.py").write_text(MAPPED)
    await project.shell("python3 map.py")

    assert module.read_text().rstrip() == MODULE.rstrip()
    assert not project.obeyed("sub")


async def test_files_next_to_a_module_are_held_to_the_same_rule(project: Project) -> None:
    """A module, a package, a part of a package, and files that are compiled already."""
    sub = project.workspace / "sub"
    (sub / "pack").mkdir(parents=True)
    (sub / "retinue.toml").write_text(SETTINGS)
    (sub / "m.py").write_text("import near\nimport pack.part\n")
    (sub / "near.py").write_text("")
    (sub / "pack" / "__init__.py").write_text("")
    (sub / "pack" / "part.py").write_text("")
    project.settings = (sub / "retinue.toml", sub / "m.py")
    await project.shell("echo begun")
    assert "it defines no tools" in refusal(project, "sub")

    for name in ("near.py", "pack/__init__.py", "pack/part.py"):
        (sub / name).write_text(MODULE)
        for loaded in ("near", "pack", "pack.part"):
            sys.modules.pop(loaded, None)
        assert "agents may write in" in refusal(project, "sub"), name
        (sub / name).write_text("")
    assert not list(project.workspace.rglob("code-of-the-agent-ran"))


async def test_a_folder_of_modules_that_became_a_link_is_held_to_the_same_rule(project: Project) -> None:
    """A folder without a file of its own is a package, too, wherever a link in its place leads."""
    sub, other = project.workspace / "sub", project.workspace / "other"
    (sub / "parts").mkdir(parents=True)
    other.mkdir()
    (sub / "retinue.toml").write_text(SETTINGS)
    (sub / "m.py").write_text("import parts.first\n")
    (sub / "parts" / "first.py").write_text("")
    (other / "first.py").write_text(MODULE.replace("__file__", repr(str(sub / "m.py"))))
    project.settings = (sub / "retinue.toml", sub / "m.py")
    await project.shell("echo begun")
    (sub / "parts").rename(sub / "kept")
    (sub / "parts").symlink_to("../other")
    for loaded in ("parts", "parts.first"):
        sys.modules.pop(loaded, None)

    assert "agents may write in" in refusal(project, "sub")
    assert not list(project.workspace.rglob("code-of-the-agent-ran"))


async def test_a_compiled_file_next_to_a_module_is_not_used(project: Project) -> None:
    sub = project.workspace / "sub"
    sub.mkdir()
    (sub / "retinue.toml").write_text(SETTINGS)
    (sub / "m.py").write_text("import nearby\n")
    (sub / "nearby.py").write_text("")
    project.settings = (sub / "retinue.toml", sub / "m.py")
    await project.shell("echo begun")
    (sub / "evil.py").write_text(MODULE.replace("__file__", repr(str(sub / "m.py"))))
    cached = importlib.util.cache_from_source(str(sub / "nearby.py"))
    py_compile.compile(str(sub / "evil.py"), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)

    assert "it defines no tools" in refusal(project, "sub")
    assert not list(project.workspace.rglob("code-of-the-agent-ran"))


async def test_a_file_that_changes_between_reading_and_checking_is_held_to_what_was_read(project: Project) -> None:
    """A program that alternates two contents does not get one obeyed and the other one compared."""
    settings = project.workspace / "ops.toml"
    settings.write_text("[tools]\n")
    project.settings = (settings,)
    await project.shell("echo begun")

    with settings.open("rb") as file:
        check_trusted(settings, file.fileno(), b"[tools]\n", project.home)
        with pytest.raises(ConfigError, match="it is not as you accepted it"):
            check_trusted(settings, file.fileno(), SETTINGS.encode(), project.home)


async def test_a_folder_that_was_renamed_is_still_one_of_agents(project: Project, tmp_path: Path) -> None:
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "retinue.toml").write_text(SETTINGS)
    (project.workspace / "sub" / "m.py").write_text(MODULE)
    await project.shell("echo begun")
    project.workspace = project.workspace.rename(tmp_path / "renamed")

    assert not project.obeyed("sub")


async def test_a_link_to_a_folder_that_an_agent_made_does_not_choose_the_settings(
    project: Project, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "ops.toml").write_text("[tools]\nnetwork = true\n")
    await project.shell(f"python3 -c \"import os; os.symlink('{others}', 'etc')\"")

    with pytest.raises(ConfigError, match="you have not accepted it"):
        load_settings("etc/ops.toml", cwd=project.workspace, home=project.home)
    assert load_settings(others / "ops.toml", home=project.home).tool_options.network


async def test_settings_outside_the_folders_of_agents_need_no_acceptance(project: Project, tmp_path: Path) -> None:
    await project.shell("echo begun")
    settings = tmp_path / "ops.toml"
    for network in (True, False):
        settings.write_text(f"[tools]\nnetwork = {str(network).lower()}\n")
        assert load_settings(settings, home=project.home).tool_options.network is network


def test_reading_with_file_tools_records_no_folder(tmp_path: Path) -> None:
    access = files.FileAccess(FREE_HAND, str(tmp_path), home=tmp_path / "home")
    (tmp_path / "note").write_text("x")
    with access.file("note"):
        pass
    assert access.is_trusted_program("/usr/bin/env")

    assert not (tmp_path / "home").exists()
    with access.target("note", "write"):
        assert (tmp_path / "home" / "programs").is_dir()


@pytest.mark.parametrize("place", [".venv", "."])
async def test_the_environment_that_retinue_runs_in_is_read_only(project: Project, place: str) -> None:
    """A module in it is imported by the next process, whatever the settings say."""
    environment = project.workspace / place
    (environment / "lib" / "site-packages").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    for path in (environment, environment / "lib", environment / "lib" / "site-packages"):
        path.chmod(0o777)
    project.settings = (environment.resolve(),)
    written = f"{place}/lib/site-packages/sitecustomize.py"

    assert "Read-only file system" in await project.shell(f"echo > {written}")
    assert await project.shell("echo > note; echo written") == "written"
    refused = await write(project, written, MODULE)
    assert refused == (
        f"Security policy: cannot write {written}: it belongs to the Python environment that retinue runs in "
        "(retinue settings)"
    )
    assert "Written" in await write(project, "note", "x")


async def test_programs_are_not_taken_from_folders_of_agents_of_another_configuration(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = project.workspace / "bin"
    planted.mkdir()
    for name in ("bwrap", "prlimit", "rg"):
        (planted / name).write_text(f"#!/bin/sh\n: > {tmp_path}/code-of-the-agent-ran\n")
        (planted / name).chmod(0o755)
    await write(project, "note", "x")
    monkeypatch.setenv("PATH", str(planted))
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(probe, "_verdicts", [])
    monkeypatch.chdir(tmp_path)
    made = tool_dependencies(ToolOptions(), key_value=NoKeyValue(), home=project.home)
    context = Path(tempfile.mkdtemp(dir=tmp_path))

    caller = ToolCaller([*files.tools(made), *search.tools(made), *shell_tool.tools(made)], context, FREE_HAND)
    (context / "text").write_text("needle")
    assert "needle" in (await caller.result("grep", pattern="needle")).text
    assert "agents may write in" in (await caller.result("shell", command="echo hi")).text
    assert not (tmp_path / "code-of-the-agent-ran").exists()
