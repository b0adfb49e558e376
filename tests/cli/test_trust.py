"""`retinue trust`: what is refused is shown, and obeyed once it is accepted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.tools.settings_trust import record_roots

pytestmark = pytest.mark.real_time


class Place:
    """A folder in which agents may write, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "work", folder / "home"
        self.folder.mkdir()

    def agents_write(self) -> None:
        record_roots([str(self.folder)], [], self.home)

    def retinue(self, *arguments: str) -> tuple[int, str, str]:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "retinue", *arguments],
            cwd=self.folder,
            env=os.environ | {"RETINUE_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def test_settings_and_modules_are_shown_and_accepted(place: Place) -> None:
    place.agents_write()
    (place.folder / "retinue.toml").write_text('[tools]\nmodules = ["m.py"]\n')
    (place.folder / "m.py").write_text("import near\n\x1b[2J-- forged\n")
    (place.folder / "near.py").write_text("x = 1\n")

    code, _, refused = place.retinue("tools")
    assert (code, "retinue trust" in refused) == (2, True)
    shown = (
        f'-- {place.folder}/retinue.toml: new\n  [tools]\n  modules = ["m.py"]\n'
        f"-- {place.folder}/m.py: new\n  import near\n  ␛[2J-- forged\n"
        f"-- {place.folder}/near.py: new\n  x = 1\n"
    )
    asked = "error: there is no terminal to ask on: read the files, then use --yes\n"
    assert place.retinue("trust") == (2, shown, asked)
    assert place.retinue("trust", "--yes") == (0, shown, "accepted 3 files\n")
    assert place.retinue("trust") == (0, "", "nothing to accept: these files are obeyed as they are\n")


def test_a_file_of_mcp_servers_is_obeyed_as_it_was_accepted(place: Place, tmp_path: Path) -> None:
    place.agents_write()
    file, ran = place.folder / ".mcp.json", tmp_path / "ran"
    server = {"command": "/bin/sh", "args": ["-c", f"touch {ran}"]}
    file.write_text(json.dumps({"mcpServers": {"planted": server}}))
    lines = place.folder / "lines.json"
    lines.write_text(json.dumps({"main": [{"say": "Done."}] * 2}))
    run = ("run", "--model", "scripted:lines.json", "--mcp-config", ".mcp.json", "Go on.")

    for command in (run, ("mcp-servers", "--mcp-config", ".mcp.json")):
        code, _, refused = place.retinue(*command)
        assert (code, "retinue trust " in refused) == (2, True), refused
    assert not ran.exists()
    assert place.retinue("trust", ".mcp.json", "--yes")[0] == 0
    assert place.retinue(*run)[0] == 0
    assert ran.exists()


def test_a_change_is_shown_as_a_difference(place: Place) -> None:
    settings = place.folder / "retinue.toml"
    settings.write_text("[tools]\nnetwork = false\n")
    place.agents_write()
    settings.write_text("[tools]\nnetwork = true\n")

    shown = (
        f"-- {settings}: changed\n  --- accepted\n  +++ now\n  @@ -1,2 +1,2 @@\n"
        "   [tools]\n  -network = false\n  +network = true\n"
    )
    assert place.retinue("trust", "--yes", "retinue.toml") == (0, shown, "accepted 1 file\n")
    code, _, said = place.retinue("tools")
    assert (code, said) == (0, "")


def test_a_module_is_not_accepted_whose_code_is_not_what_is_shown(place: Place) -> None:
    """In UTF-7 a line break can stand in a comment."""
    place.agents_write()
    (place.folder / "retinue.toml").write_text('[tools]\nmodules = ["m.py"]\n')
    (place.folder / "m.py").write_text("# coding: utf-7\n# Harmless. +AAo-open('ran', 'w')\n")

    refused = (
        f"error: {place.folder}/m.py is in utf-7: what is shown would not be what Python reads; accepted are files in "
        "UTF-8\n"
    )
    assert place.retinue("trust", "--yes") == (2, "", refused)
    assert place.retinue("tools")[0] == 2
    assert not (place.folder / "ran").exists()


def test_what_init_writes_is_accepted(place: Place) -> None:
    place.agents_write()

    assert place.retinue("init") == (0, "", "wrote retinue.toml; remove the # of a line to use it\n")
    code, _, said = place.retinue("tools")
    assert (code, said) == (0, "")


@pytest.mark.timeout(120)
def test_a_pipe_in_place_of_a_module_is_not_waited_for(place: Place) -> None:
    place.agents_write()
    (place.folder / "m.py").touch()
    os.mkfifo(place.folder / "near.py")

    code, _, said = place.retinue("trust", "m.py")

    assert (code, said) == (2, f"error: {place.folder}/near.py cannot be read: it is no file\n")


def test_a_path_that_is_not_there_is_an_error(place: Place) -> None:
    assert place.retinue("trust") == (
        2,
        "",
        f"error: there is no settings file in {place.folder}: name a file\n",
    )
    code, _, said = place.retinue("trust", "m.py")
    assert (code, said) == (2, f"error: {place.folder}/m.py cannot be read: No such file or directory\n")
