"""The preset `coding`: programs of an agent find the tools of a project, in a real sandbox, and nothing else opens."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.core.messages import ToolCall, ToolMessage
from retinue.core.policy import Autonomy
from retinue.core.ports import CallContext, Hooks, Request
from retinue.providers.scripted import ScriptedReply, calls, says, together
from retinue.testing.harness import Harness
from retinue.tools.coding import HOME, POLICY, CodingPreset, find_toolchain, git_identity, git_settings
from retinue.tools.dependencies import ToolOptions

CODING = ToolOptions(preset="coding")
PYTHON = Path(sys.executable).resolve()


async def results(*lines: ScriptedReply, options: ToolOptions = CODING) -> list[str]:
    """The results that a model reads after making all these calls at once."""
    texts: list[str] = []

    def collect_results(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    free: Any = {"autonomy": Autonomy.FULL, "require_approval_for_medium_risk": False}
    policy = type(POLICY)(allowed_commands=(*POLICY.allowed_commands, "sh"), shell_timeout_secs=600, **free)
    async with Harness(dialects=(), tools=["shell"], policy=policy, tool_options=options) as r:
        r.script("main", together(*lines), collect_results)
        await r.run("go")
    return texts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the process works; the user has a git identity."""
    folder, user = tmp_path / "work", tmp_path / "user"
    folder.mkdir()
    user.mkdir()
    (user / ".gitconfig").write_text("[user]\n\tname = Ada L\n\temail = ada@example.org\n")
    for name in ("VIRTUAL_ENV", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.chdir(folder)
    return folder


def make_environment(folder: Path) -> None:
    """A virtual environment with pytest, without the network: the packages of this process are copied."""
    python = os.path.realpath(sys.executable)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        if (found := importlib.util.find_spec(name)) is not None and found.origin is not None:
            shutil.copytree(Path(found.origin).parent, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "py.py").write_text("import _pytest._py.error as error\nimport _pytest._py.path as path\n")
    script = folder / "bin" / "pytest"
    script.write_text(f"#!{folder}/bin/python\nimport sys, pytest\nsys.exit(pytest.console_main())\n")
    script.chmod(0o755)


def make_repository() -> None:
    subprocess.run(["git", "init", "-q", "."], check=True, timeout=60)


# ---- real programs ---------------------------------------------------------------------------------------------


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
async def test_the_tests_of_a_project_run_with_its_own_pytest(project: Path) -> None:
    make_environment(project / ".venv")
    (project / "shop.py").write_text("def total(prices):\n    return sum(prices)\n")
    (project / "test_shop.py").write_text(
        "import sys\nfrom shop import total\n\n"
        "def test_total():\n    assert total([1, 2]) == 3\n\n"
        f"def test_environment():\n    assert sys.prefix == {str(project / '.venv')!r}\n"
    )

    tested, python, home = await results(
        calls("shell", command="pytest -q"),
        calls("shell", command="which python && python -c 'import sys; print(sys.prefix)'"),
        calls("shell", command="sh -c 'echo $HOME && echo $VIRTUAL_ENV && ls -A $HOME'"),
    )

    assert "2 passed" in tested
    assert python == f"{project}/.venv/bin/python\n{project}/.venv"
    assert home == f"{HOME}\n{project}/.venv\n.gitconfig"


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
async def test_commits_have_the_identity_of_the_user_and_node_programs_are_found(project: Path) -> None:
    programs = project / "node_modules" / ".bin"
    programs.mkdir(parents=True)
    (programs / "eslint").write_text("#!/bin/sh\necho linted\n")
    (programs / "eslint").chmod(0o755)
    make_repository()

    committed, linted = await results(
        calls("shell", command="git commit -q --allow-empty -m one && git log --format='%an <%ae> %cn'"),
        calls("shell", command="eslint ."),
    )

    assert (committed, linted) == ("Ada L <ada@example.org> Ada L", "linted")


@pytest.mark.real_time
async def test_without_a_sandbox_programs_have_the_path_and_home_of_the_user(project: Path) -> None:
    (show,) = await results(calls("shell", command="sh -c 'echo $PATH $HOME'"), options=ToolOptions(sandbox="off"))
    (first,) = await results(
        calls("shell", command="sh -c 'echo $PATH $HOME'"), options=ToolOptions(sandbox="off", preset="coding")
    )

    assert show == f"{os.environ['PATH']} {project.parent}/user"
    assert first.startswith(f"{project}/node_modules/.bin:")
    assert first.endswith(show)


# ---- programs of the project that are named like harmless ones ---------------------------------------------------


def plant(folder: Path, name: str = "ls") -> None:
    """A program of the project that leaves a mark."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\ntouch ran\n")
    (folder / name).chmod(0o755)


async def supervised(command: str, options: ToolOptions = CODING) -> tuple[str, bool]:
    """The result of a command where calls that need an approval are refused, and whether it succeeded."""
    results: list[ToolMessage] = []

    def collect(request: Request) -> ScriptedReply:
        results.extend(message for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    async with Harness(dialects=(), tools=["shell"], policy=POLICY, tool_options=options) as r:
        r.script("main", calls("shell", command=command), collect)
        await r.run("go")
    (result,) = results
    return result.text, not result.failed


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("command", "program"), [("ls", "ls"), ("git status", "git"), ("cat x | sort", "sort"), ("A=1 ls", "ls")]
)
@pytest.mark.parametrize("place", ["node_modules/.bin", ".venv/bin"])
async def test_a_program_of_the_project_that_hides_a_harmless_one_needs_an_approval(
    project: Path, command: str, program: str, place: str
) -> None:
    make_repository()
    (project / "x").write_text("")
    link_environment(project, PYTHON)
    plant(project / place, program)

    text, succeeded = await supervised(command)

    assert (succeeded, (project / "ran").exists()) == (False, False), text
    assert "approval" in text


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
async def test_harmless_commands_of_a_project_need_no_approval(project: Path) -> None:
    make_repository()
    plant(project / "node_modules" / ".bin", "eslint")

    assert (await supervised("ls"), await supervised("git status --porcelain")) == (
        ("node_modules", True),
        ("?? node_modules/", True),
    )


@pytest.mark.real_time
@pytest.mark.parametrize("options", [ToolOptions(sandbox="off"), ToolOptions(sandbox="off", preset="coding")])
@pytest.mark.parametrize("listed", ["{project}/bin", "bin", "."])
async def test_a_harmless_command_without_a_sandbox_starts_nothing_from_the_workspace(
    project: Path, monkeypatch: pytest.MonkeyPatch, options: ToolOptions, listed: str
) -> None:
    plant(project / "bin")
    plant(project)
    monkeypatch.setenv("PATH", f"{listed.format(project=project)}{os.pathsep}{os.environ['PATH']}")

    text, succeeded = await supervised("ls", options)

    assert (succeeded, (project / "ran").exists()) == (False, False), text


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
async def test_a_program_that_is_planted_after_the_decision_is_not_started(project: Path) -> None:
    class Planting(Hooks):
        async def before_tool(self, call: ToolCall, context: CallContext) -> None:
            plant(project / "node_modules" / ".bin")

    texts: list[str] = []

    def collect(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    async with Harness(dialects=(), tools=["shell"], policy=POLICY, tool_options=CODING, hooks=[Planting()]) as r:
        r.script("main", calls("shell", command="ls"), collect)
        await r.run("go")

    assert (texts, (project / "ran").exists()) == (["node_modules"], False)


# ---- what is opened --------------------------------------------------------------------------------------------


def make_python(folder: Path) -> Path:
    """A folder that looks like an installation of Python."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.12").mkdir(parents=True)
    (folder / "lib" / "python3.12" / "os.py").write_text("")
    (folder / "bin" / "python3").write_text("#!/bin/sh\n")
    (folder / "bin" / "python3").chmod(0o755)
    return folder


def link_environment(project: Path, interpreter: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    (project / ".venv" / "bin" / "python").symlink_to(interpreter)


def test_the_interpreter_of_an_environment_may_be_read(project: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "python-3.12")
    link_environment(project, python / "bin" / "python3")

    found = find_toolchain(str(project), {}, (str(project),))

    assert found.environment == f"{project}/.venv"
    assert found.programs[:2] == (f"{project}/.venv/bin", f"{project}/node_modules/.bin")
    assert str(python) in found.installations


def test_a_link_of_the_environment_opens_no_folder_but_an_installation(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (secret / "bin").mkdir(parents=True)
    (secret / "bin" / "python3").write_text("")
    link_environment(project, secret / "bin" / "python3")

    found = find_toolchain(str(project), {}, (str(project),))

    assert not [folder for folder in found.installations if folder.startswith(str(tmp_path))]


def test_an_installation_that_an_agent_can_have_made_is_not_opened(project: Path, tmp_path: Path) -> None:
    shared = make_python(tmp_path / "shared" / "python")
    link_environment(project, shared / "bin" / "python3")

    found = find_toolchain(str(project), {}, (str(project), str(tmp_path / "shared")))

    assert str(shared) not in found.installations


def test_the_active_environment_of_the_user_is_used_where_the_project_has_none(project: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "python-3.12")
    link_environment(tmp_path / "elsewhere", python / "bin" / "python3")
    active = str(tmp_path / "elsewhere" / ".venv")

    found = find_toolchain(str(project), {"VIRTUAL_ENV": active}, (str(project),))

    assert (found.environment, found.programs[0]) == (active, f"{active}/bin")
    assert {active, str(python)} <= set(found.installations)


def test_an_environment_that_is_made_later_is_found(project: Path, tmp_path: Path) -> None:
    preset = CodingPreset()
    assert preset.toolchain(str(project)).environment == ""

    link_environment(project, make_python(tmp_path / "python") / "bin" / "python3")

    assert preset.toolchain(str(project)).environment == f"{project}/.venv"


def test_the_git_identity_is_that_of_the_user_and_not_of_the_repository(project: Path) -> None:
    make_repository()
    subprocess.run(["git", "config", "user.name", "Mallory"], check=True, timeout=60)
    git = shutil.which("git") or ""

    assert git_identity(git, {}) == ("Ada L", "ada@example.org")
    assert git_identity(git, {"GIT_AUTHOR_NAME": "Grace"}) == ("Grace", "ada@example.org")
    assert git_identity("", {}) == ("", "")


def test_a_name_with_line_breaks_and_quotes_stays_one_setting() -> None:
    written = git_settings(('a"\n[core]\n\teditor = x', "b\\c"))

    assert written == b'[user]\n\tname = "a\\" [core]  editor = x"\n\temail = "b\\\\c"\n'
