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
    ("daemon",),
    *(("daemon", name) for name in ("status", "stop", "install")),
    ("store",),
    *(("store", name) for name in ("check", "backup", "restore", "repair", "compact")),
    ("init",),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", ["40", "100"])
def test_every_command_explains_itself_with_an_example(cli: Cli, command: tuple[str, ...], columns: str) -> None:
    result = cli(*command, "--help", env={"COLUMNS": columns})

    assert (result.code, result.stderr) == (0, "")
    assert "Example" in result.stdout
    assert f"retinue {' '.join(command)}" in " ".join(result.stdout.split())


@pytest.mark.parametrize("command", [(), ("context",), ("memory",), ("cron",)], ids=" ".join)
def test_a_group_without_a_command_prints_its_help(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command)

    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{' '.join(('Usage: retinue', *command))} [OPTIONS] COMMAND")
    assert "error" not in result.stderr


def test_run_has_these_flags(cli: Cli) -> None:
    result = cli("run", "--help").stdout

    for flag in (
        "--provider", "--base-url", "--api-key-env", "--model", "--dialect", "--agent", "--session", "--system",
        "--tools", "--max-turns", "--max-tokens", "--max-cost", "--timeout", "--config", "--detach", "--think",
        "--output-schema", "--output-json", "--sse", "--brief", "--json", "--quiet", "-v", "--approvals", "--yes",
    ):  # fmt: skip
        assert flag in result


def test_flags_are_not_cut_on_a_narrow_terminal(cli: Cli) -> None:
    result = cli("run", "--help", env={"COLUMNS": "40"}).stdout

    assert max(map(len, result.splitlines())) <= 40
    assert "--api-key-env NAME" in result


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command loads."""
    program = (
        "import sys; from retinue.__main__ import main; "
        f"code = main({list(arguments)!r}); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    # Coverage measurement loads modules of its own.
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_version_is_printed_without_loading_the_command_line() -> None:
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


def test_ctrl_c_during_startup_prints_nothing(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == "retinue.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "retinue.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])

    assert cli("runs") == (130, "", "")
