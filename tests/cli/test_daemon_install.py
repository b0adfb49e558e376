"""`retinue daemon install` prints a unit that systemd accepts, and the daemon's commands check their flags."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def unquoted(line: str) -> list[str]:
    """The words of a line of a unit, as systemd reads them; its quotes and escapes are a shell's within these paths."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def test_install_prints_a_unit_with_absolute_paths_and_changes_nothing(
    cli: Cli, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = folder / 'a "b" 50% $c \\d'
    spaced.mkdir()
    monkeypatch.chdir(spaced)
    (spaced / "retinue.toml").write_text("[cron]\nmax_running = 2\n")
    monkeypatch.setenv("RETINUE_HOME", "state of mine")

    result = cli("daemon", "install")

    assert result.code == 0
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert unquoted(lines["ExecStart"]) == [
        *(sys.executable, "-P", "-m", "retinue", "daemon", "--config", str(spaced / "retinue.toml"))
    ]
    assert unquoted(lines["Environment"]) == [f"RETINUE_HOME={spaced / 'state of mine'}"]
    assert lines["KillMode"] == "mixed"
    assert "nothing was changed" in result.stderr
    assert sorted(path.name for path in spaced.iterdir()) == ["retinue.toml"]
    assert not home.exists()


def test_systemd_accepts_the_unit(cli: Cli, folder: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing")
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "s.toml").write_text("")
    unit = tmp_path / "retinue.service"
    unit.write_text(cli("daemon", "install", "--config", str(tmp_path / "a b" / "s.toml")).stdout)

    checked = subprocess.run([analyze, "--user", "verify", str(unit)], capture_output=True, text=True, check=False)

    complaints = [line for line in checked.stderr.splitlines() if "retinue.service" in line]
    assert complaints == [], checked.stderr


def test_flags_of_the_daemon_stand_after_its_commands(cli: Cli) -> None:
    result = cli("daemon", "--quiet", "status")

    assert result.code == 2
    assert "put flags after the command: retinue daemon status ..." in result.stderr
