"""Settings files that programs leave behind, with a real sandbox: none of them is obeyed by the next retinue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.app.settings_file import load_settings
from retinue.app.tool_modules import load_tools
from retinue.app.trust import accept_files, unaccepted_files
from retinue.core.errors import ConfigError
from retinue.core.policy import Autonomy, Policy
from retinue.sandbox.probe import choose
from retinue.tools import python
from retinue.tools.dependencies import NoKeyValue, ToolDependencies
from retinue.tools.settings_guard import MADE
from retinue.tools.settings_trust import check_trusted
from retinue.tools.shell import shell_tool
from tests.tools.tool_calls import FixedClock, ToolCaller

pytestmark = pytest.mark.real_time

FREE_HAND = Policy(
    autonomy=Autonomy.FULL,
    require_approval_for_medium_risk=False,
    max_actions_per_hour=100,
    allowed_commands=("cat", "echo", "head", "python3"),
)
MODULE = "import pathlib\n\npathlib.Path(__file__).with_name('code-of-the-agent-ran').touch()\n"
SETTINGS = '[tools]\nmodules = ["m.py"]\n'


class Pipe:
    """A named pipe in the workspace through which a program and the test wait for each other."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def read(self) -> None:
        """Wait for a line."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._descriptor, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait_for(ready, 30)
        finally:
            loop.remove_reader(self._descriptor)
        os.read(self._descriptor, 4096)

    def write(self) -> None:
        os.write(self._descriptor, b"go\n")

    def close(self) -> None:
        os.close(self._descriptor)


class Project:
    """A workspace and a state folder; commands run in the workspace."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "work"
        self.home = folder / "home"
        self.workspace.mkdir(exist_ok=True)
        self.pipes: dict[str, Pipe] = {}
        self.sandbox = choose("required")
        self.settings: tuple[Path, ...] = ()

    def pipe(self, name: str) -> Pipe:
        return self.pipes.setdefault(name, Pipe(self.workspace / name))

    async def shell(self, command: str, *, workspace: str = "", home: Path | None = None) -> str:
        dependencies = ToolDependencies(
            sandbox=self.sandbox,
            key_value=NoKeyValue(),
            clock=FixedClock(),
            home=home or self.home,
            settings=self.settings,
        )
        caller = ToolCaller(shell_tool.tools(dependencies), self.workspace / workspace, FREE_HAND)
        return (await caller.result("shell", command=command)).text

    @contextlib.asynccontextmanager
    async def running(self, command: str, *, workspace: str = "") -> AsyncGenerator[asyncio.Task[str]]:
        """A command that has begun and waits for `end`; it is over at the end of the block."""
        name = f"{len(self.pipes)}"
        begun, end = self.pipe(f"begun{name}"), self.pipe(f"end{name}")
        up = "../" * len(Path(workspace).parts)
        line = f"echo > {up}begun{name}; head -n 1 {up}end{name}; {command}"
        task = asyncio.ensure_future(self.shell(line, workspace=workspace))
        try:
            await begun.read()
            yield task
        finally:
            end.write()
            await task

    def obeyed(self, folder: str = "") -> bool:
        """Whether a retinue that is started in the folder imports the module that the settings there name."""
        where = self.workspace / folder
        with contextlib.suppress(ConfigError):
            load_tools(load_settings(cwd=where, home=self.home).tool_modules, home=self.home)
        return (where / "code-of-the-agent-ran").exists()

    def trust(self, folder: str = "") -> list[str]:
        """Accept the settings of a folder with their modules, and return the names of the files that were refused."""
        files = unaccepted_files([], cwd=self.workspace / folder, home=self.home)
        accept_files(files, home=self.home)
        return [file.path.name for file in files]

    def asides(self) -> list[str]:
        return sorted(path.name for path in self.workspace.iterdir() if path.name.startswith("retinue."))


@pytest.fixture
def project(tmp_path: Path, sandbox: object) -> Project:
    return Project(tmp_path)


async def test_two_overlapping_programs_leave_no_settings(project: Project) -> None:
    (project.workspace / "m.py").write_text(MODULE)
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    begun, end = project.pipe("begun"), project.pipe("end")
    begun_2, end_2 = project.pipe("begun2"), project.pipe("end2")
    first = asyncio.ensure_future(project.shell("cat cfg.toml > retinue.toml; echo > begun; head -n 1 end"))
    await begun.read()
    second = asyncio.ensure_future(
        project.shell("echo > begun2; head -n 1 end2; cat cfg.toml > retinue.toml; echo made")
    )
    await begun_2.read()
    end.write()
    await first
    end_2.write()

    assert "made" in await second
    assert not project.obeyed()
    assert not (project.workspace / "retinue.toml").exists()
    assert len([name for name in project.asides() if name.startswith(f"retinue.toml{MADE}")]) == 2


async def test_settings_of_a_program_that_still_runs_are_not_obeyed(project: Project) -> None:
    (project.workspace / "m.py").write_text(MODULE)
    begun, end = project.pipe("begun"), project.pipe("end")
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    running = asyncio.ensure_future(project.shell("cat cfg.toml > retinue.yaml; echo > begun; head -n 1 end"))
    await begun.read()

    assert not project.obeyed()
    end.write()
    await running
    assert project.asides() == [f"retinue.yaml{MADE}"]


async def test_settings_below_the_workspace_are_refused_until_a_person_accepts_them(project: Project) -> None:
    made = project.workspace / "sub" / "retinue.toml"
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "m.py").write_text(MODULE)
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    await project.shell("cat cfg.toml > sub/retinue.toml")

    assert not project.obeyed("sub")
    with pytest.raises(ConfigError, match=f"agents may write in {project.workspace}, and you have not accepted it"):
        load_settings(cwd=made.parent, home=project.home)
    with pytest.raises(ConfigError, match="retinue trust"):
        load_settings(made, cwd=project.workspace, home=project.home)
    made.touch()
    assert not project.obeyed("sub")
    assert project.trust("sub") == ["retinue.toml", "m.py"]
    assert project.obeyed("sub")


async def test_a_link_to_settings_is_as_new_as_the_link(project: Project) -> None:
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "m.py").write_text(MODULE)
    (project.workspace / "sub" / "example.toml").write_text(SETTINGS)
    link = "import os; os.symlink('example.toml', 'sub/retinue.toml')"
    await project.shell(f'python3 -c "{link}"')

    assert (project.workspace / "sub" / "retinue.toml").is_symlink()
    assert not project.obeyed("sub")


async def test_an_agents_workspace_below_does_not_make_the_settings_known(project: Project) -> None:
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / "m.py").write_text(MODULE)
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    await project.shell("cat cfg.toml > sub/retinue.toml")

    assert await project.shell("echo done", workspace="sub") == "done"
    assert not project.obeyed("sub")


async def test_a_module_that_a_program_wrote_is_not_imported(project: Project) -> None:
    (project.workspace / "retinue.toml").write_text(SETTINGS)
    (project.workspace / "source.txt").write_text(MODULE)
    await project.shell("cat source.txt > m.py")

    assert not project.obeyed()
    assert project.trust() == ["m.py"]
    assert project.obeyed()


async def test_a_person_edits_settings_while_a_program_runs(project: Project) -> None:
    settings = project.workspace / "retinue.toml"
    settings.write_text("[tools]\nnetwork = true\n")
    async with project.running("echo over"):
        settings.write_text("[tools]\nnetwork = false\n")
        with pytest.raises(ConfigError, match=r"it is not as you accepted it: .* retinue trust"):
            load_settings(cwd=project.workspace, home=project.home)
        assert project.trust() == ["retinue.toml"]
        assert not load_settings(cwd=project.workspace, home=project.home).tool_options.network
    assert project.asides() == ["retinue.toml"]
    assert not load_settings(cwd=project.workspace, home=project.home).tool_options.network
    settings.write_text("[tools]\nnetwork = true\n")
    assert load_settings(cwd=project.workspace, home=project.home).tool_options.network, "accepted before"
    assert await project.shell("echo again") == "again"
    assert project.asides() == ["retinue.toml"]


async def test_settings_that_were_there_before_stay_after_many_programs(project: Project) -> None:
    settings = project.workspace / "retinue.yaml"
    settings.write_text("tools:\n  network: true\n")
    for _ in range(3):
        assert await project.shell("echo ran") == "ran"

    assert load_settings(cwd=project.workspace, home=project.home).tool_options.network
    settings.write_text("tools:\n  network: false\n")
    assert project.trust() == ["retinue.yaml"]
    assert not load_settings(cwd=project.workspace, home=project.home).tool_options.network
    assert await project.shell("echo ran") == "ran"
    assert project.asides() == ["retinue.yaml"]


HOLDER = """
import asyncio, sys
from pathlib import Path
from tests.tools.test_settings_guard import Project
asyncio.run(Project(Path(sys.argv[1])).shell("cat cfg.toml > retinue.toml; echo > begun; head -n 1 end"))
"""


async def test_settings_are_not_obeyed_after_the_process_of_the_program_was_killed(
    project: Project, tmp_path: Path
) -> None:
    (project.workspace / "m.py").write_text(MODULE)
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    begun, _ = project.pipe("begun"), project.pipe("end")
    root = Path(__file__).parents[2]
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(tmp_path), cwd=root)
    await begun.read()
    # Another process works in the same folder meanwhile.
    assert await project.shell("echo other") == "other"
    holder.kill()
    await holder.wait()

    listed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "retinue", "tools"),
        cwd=project.workspace,
        env=os.environ | {"RETINUE_HOME": str(project.home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await listed.communicate()

    assert (listed.returncode, complaint.decode()) == (
        2,
        f"error: {project.workspace}/retinue.toml: agents may write in {project.workspace}, and you have not accepted "
        f"it: read it, then accept it with: retinue trust {project.workspace}/retinue.toml\n",
    )
    assert not (project.workspace / "code-of-the-agent-ran").exists()


async def test_an_unwritable_state_folder_does_not_stop_programs(project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    made = await project.shell("echo x > retinue.toml; echo made", home=tmp_path / "file" / "home")

    assert made == f"made\n[retinue.toml was renamed to ...{MADE}: what agents may do is settled by people]"


WRITE_WHEN_POSSIBLE = """
import time
print('begun', file=open('begun', 'w'), flush=True)
while True:
    try:
        with open('retinue.toml', 'a') as file:
            file.write('# the agent was here')
    except OSError:
        pass
"""


async def test_a_program_is_killed_when_settings_are_replaced_and_a_person_checks_them(project: Project) -> None:
    settings, saved = project.workspace / "retinue.toml", project.workspace / "saved"
    settings.write_text("[tools]\n")
    (project.workspace / "write.py").write_text(WRITE_WHEN_POSSIBLE)
    begun = project.pipe("begun")
    running = asyncio.ensure_future(project.shell("python3 write.py"))
    await begun.read()
    saved.write_text("[tools]\nnetwork = true\n")
    saved.replace(settings)

    assert await running == (
        f"Killed: {settings} was replaced while this ran, and was not protected from it any more\n"
        "[retinue.toml was replaced while a program ran, which could write it from then on: it is not obeyed until a "
        "person has accepted it with: retinue trust]"
    )
    assert settings.read_text().startswith("[tools]\nnetwork = true\n")
    with pytest.raises(ConfigError, match="it is not as you accepted it"):
        load_settings(cwd=project.workspace, home=project.home)
    assert project.trust() == ["retinue.toml"]
    assert load_settings(cwd=project.workspace, home=project.home).tool_options.network


async def test_a_module_that_is_replaced_while_a_program_runs_is_not_imported(project: Project) -> None:
    module, saved = project.workspace / "m.py", project.workspace / "saved"
    module.write_text("")
    (project.workspace / "retinue.toml").write_text(SETTINGS)
    project.settings = (project.workspace / "retinue.toml", module)
    begun, _ = project.pipe("begun"), project.pipe("end")
    running = asyncio.ensure_future(project.shell("echo > begun; head -n 1 end"))
    await begun.read()
    saved.write_text(MODULE)
    saved.replace(module)

    assert await running == (f"Killed: {module} was replaced while this ran, and was not protected from it any more")
    assert not project.obeyed()
    assert project.asides() == ["retinue.toml"]


async def test_code_without_a_sandbox_leaves_no_settings(tmp_path: Path) -> None:
    dependencies = ToolDependencies(
        sandbox=choose("off"), key_value=NoKeyValue(), clock=FixedClock(), home=tmp_path / "home", sandboxed=False
    )
    workspace = tmp_path / "work"
    workspace.mkdir()
    call = ToolCaller(python.tools(dependencies), workspace, FREE_HAND)

    made = msgspec.json.decode(await call("python_execute", code="open('retinue.yml', 'w').close()"))

    assert made["stderr"] == f"\n[retinue.yml was renamed to ...{MADE}: what agents may do is settled by people]"
    assert [path.name for path in workspace.iterdir()] == [f"retinue.yml{MADE}"]


async def test_a_file_that_appears_after_the_mounts_were_made_is_protected_as_well(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = project.workspace / "retinue.toml"
    made = shell_tool.mounts_of

    def mounts_and_then_a_file(*args: Any, **kwargs: Any) -> Any:
        mounts = made(*args, **kwargs)
        if not settings.exists():
            settings.write_text("[tools]\n")
        return mounts

    monkeypatch.setattr(shell_tool, "mounts_of", mounts_and_then_a_file)
    text = await project.shell("echo sandbox >> retinue.toml; echo over")

    assert "Read-only file system" in text
    assert settings.read_text() == "[tools]\n"


async def test_a_state_folder_in_the_workspace_that_is_made_by_then_is_hidden(project: Project) -> None:
    text = await project.shell("cat state/programs/lock && echo seen", home=project.workspace / "state")

    assert "seen" not in text
    assert (project.workspace / "state" / "programs" / "lock").exists()


async def test_records_are_for_their_owner_alone_and_loading_settings_adds_none(project: Project) -> None:
    before = os.umask(0)
    try:
        await project.shell("echo ran")
    finally:
        os.umask(before)
    records = sorted((project.home / "programs").iterdir())
    load_settings(cwd=project.workspace, home=project.home)

    assert sorted((project.home / "programs").iterdir()) == records
    assert {stat.S_IMODE(path.stat().st_mode) for path in (project.home, project.home / "programs")} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in records} == {0o600}


async def test_a_pipe_in_a_folder_of_programs_is_no_settings_file(project: Project, tmp_path: Path) -> None:
    await project.shell("echo begun")
    inside, outside = project.workspace / "ops.toml", tmp_path / "ops.toml"
    for path in (inside, outside):
        os.mkfifo(path)

    def load(path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR)  # a writer, which ends after these words
        os.write(descriptor, b'sandbox = "off"\n')
        reader = os.open(path, os.O_RDONLY)
        os.close(descriptor)
        try:
            check_trusted(path, reader, b'sandbox = "off"\n', project.home)
        finally:
            os.close(reader)

    with pytest.raises(ConfigError, match="it is no file, and agents may write in"):
        load(inside)
    load(outside)


async def test_settings_above_are_found_although_an_agent_removed_the_repository(project: Project) -> None:
    root = project.workspace
    (root / ".git").mkdir()
    (root / "sub").mkdir()
    file = root / "retinue.toml"
    file.write_text("[tools]\nnetwork = false\n")
    await project.shell("echo hello")
    (root / ".git").rmdir()
    (root / "sub" / ".git").mkdir()

    assert load_settings(cwd=root / "sub", home=project.home).source == file


async def test_settings_that_a_program_made_above_the_current_folder_are_not_obeyed(project: Project) -> None:
    root = project.workspace
    (root / ".git").mkdir()
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "cfg.toml").write_text(SETTINGS)
    await project.shell("cat cfg.toml > sub/retinue.toml")

    found = None
    with contextlib.suppress(ConfigError):  # as root, the program has a user of its own, and the file is ignored
        found = load_settings(cwd=root / "sub" / "deep", home=project.home).source
    assert found is None


async def test_settings_of_the_user_are_not_obeyed_if_a_program_wrote_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_CONFIG_HOME", str(project.workspace / "config"))
    (project.workspace / "config").mkdir()
    (project.workspace / "cfg.toml").write_text(SETTINGS)
    await project.shell("cat cfg.toml > config/retinue.toml")

    with pytest.raises(ConfigError, match="agents may write in"):
        load_settings(cwd=project.workspace, home=project.home)
