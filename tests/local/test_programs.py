"""Programs are started only from where neither agents nor other users can have placed them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.local import programs
from retinue.local.programs import FoundProgram, find_program, why_untrusted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a program `tool`, and no folders of the system."""
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    made = tmp_path / ".local" / "bin"
    made.mkdir(parents=True)
    (made / "tool").write_text("#!/bin/sh\n")
    (made / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"relative:{made}")
    return made


def test_a_program_in_a_folder_of_the_user_is_found(folder: Path) -> None:
    assert find_program("tool", agents_write=("/elsewhere",)) == FoundProgram("tool", f"{folder}/tool")


def test_a_program_in_a_folder_of_agents_is_passed_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "project").symlink_to(tmp_path / ".local")

    for root in (tmp_path / ".local", tmp_path / "project"):
        reason = f"{folder}/tool is not used: agents may write in {tmp_path}/.local"
        assert find_program("tool", agents_write=(str(root),)) == FoundProgram("tool", "", (reason,))


def test_a_link_that_leads_through_a_folder_of_agents_is_passed_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "current").symlink_to(folder)
    (tmp_path / "tool").symlink_to(tmp_path / "project" / "current" / "tool")
    agents = (str(tmp_path / "project"),)

    assert why_untrusted(str(tmp_path / "tool"), agents_write=agents) == f"agents may write in {tmp_path}/project"
    assert why_untrusted(str(tmp_path / "tool"), agents_write=()) == ""


def test_a_program_that_others_can_replace_is_passed_over(folder: Path, tmp_path: Path) -> None:
    (folder / "tool").chmod(0o777)
    assert why_untrusted(f"{folder}/tool", agents_write=()) == f"others may write {folder}/tool"
    (folder / "tool").chmod(0o755)
    folder.parent.chmod(0o777)
    assert why_untrusted(f"{folder}/tool", agents_write=()) == f"others may write in {folder.parent}"
    folder.parent.chmod(0o1777)
    assert why_untrusted(f"{folder}/tool", agents_write=()) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_of_another_user_is_passed_over(folder: Path) -> None:
    os.chown(folder / "tool", 54321, 54321)

    assert why_untrusted(f"{folder}/tool", agents_write=()) == f"{folder}/tool belongs to another user"


def test_folders_of_the_system_come_before_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ("/usr/bin", "/bin"))
    (folder / "env").write_text("#!/bin/sh\n")
    (folder / "env").chmod(0o755)

    assert find_program("env", agents_write=()).path == "/usr/bin/env"


def test_an_agent_that_may_write_everywhere_does_not_stop_programs_of_the_system() -> None:
    assert why_untrusted("/usr/bin/env", agents_write=("/",)) == ""
