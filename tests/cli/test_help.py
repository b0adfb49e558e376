"""Help, versions and completion: quick, complete, and without loading what they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.abc import MetaPathFinder

import pytest

from tests.cli.conftest import Cli

COMMANDS = [
    ("run",),
    ("chat",),
    ("runs",),
    *(("runs", name) for name in ("show", "tree", "resume", "cancel", "prune")),
    ("context",),
    *(("context", name) for name in ("list", "show", "create", "archive", "delete")),
    ("memory",),
    ("tools",),
    *(("memory", name) for name in ("list", "show", "forget")),
    ("cron",),
    *(("cron", name) for name in ("add", "list", "remove", "pause", "resume", "run-now", "log", "daemon")),
    ("init",),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", ["40", "100"])
def test_every_command_explains_itself_with_an_example(cli: Cli, command: tuple[str, ...], columns: str) -> None:
    told = cli(*command, "--help", env={"COLUMNS": columns})

    assert (told.code, told.stderr) == (0, "")
    assert "Example" in told.stdout
    assert f"retinue {' '.join(command)}" in " ".join(told.stdout.split())


@pytest.mark.parametrize("command", [(), ("context",), ("memory",), ("cron",)], ids=" ".join)
def test_a_command_without_its_own_command_shows_its_help_and_calls_that_no_error(
    cli: Cli, command: tuple[str, ...]
) -> None:
    told = cli(*command)

    assert (told.code, told.stdout) == (2, "")
    assert told.stderr.startswith(f"{' '.join(('Usage: retinue', *command))} [OPTIONS] COMMAND")
    assert "error" not in told.stderr


def test_the_flags_of_run_are_these(cli: Cli) -> None:
    told = cli("run", "--help").stdout

    for flag in (
        "--provider", "--base-url", "--api-key-env", "--model", "--dialect", "--agent", "--session", "--system",
        "--tools", "--max-turns", "--max-tokens", "--max-cost", "--timeout", "--config", "--detach", "--think",
        "--output-schema", "--output-json", "--sse", "--brief", "--json", "--quiet", "-v", "--approvals", "--yes",
    ):  # fmt: skip
        assert flag in told


def test_flags_are_not_cut_on_a_narrow_terminal(cli: Cli) -> None:
    told = cli("run", "--help", env={"COLUMNS": "40"}).stdout

    assert max(map(len, told.splitlines())) <= 40
    assert "--api-key-env NAME" in told


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command loads."""
    program = (
        "import sys; from retinue.__main__ import main; "
        f"code = main({list(arguments)!r}); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    # What measures coverage loads modules of its own.
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_version_is_told_without_loading_the_command_line() -> None:
    loaded = loaded_by("--version")

    assert not {"typer", "rich", "asyncio", "msgspec", "retinue.cli"} & loaded


def test_help_loads_neither_the_engine_nor_the_network() -> None:
    loaded = loaded_by("--help")

    assert "typer" in loaded
    assert not {"asyncio", "aiohttp", "sqlite3", "retinue.engine", "retinue.config", "retinue.app.open"} & loaded


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completions(shell: str) -> None:
    asked = {"COMP_WORDS": "retinue ru", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "retinue ru"}
    chosen = {"_RETINUE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}

    program = [sys.executable, "-m", "retinue"]
    done = subprocess.run(program, env=os.environ | asked | chosen, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "runs" in done.stdout


def test_ctrl_c_while_commands_are_loaded_is_quiet(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == "retinue.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "retinue.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])

    assert cli("runs") == (130, "", "")
