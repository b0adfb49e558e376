"""The profiles of Seatbelt, as text: the sandbox itself was never tried on a real Mac."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.core.errors import ToolError
from retinue.core.ports import Program
from retinue.sandbox.seatbelt import DEVICES, FILES, SYSTEM, Seatbelt, attack, profile, quoted

PROGRAM = Program(
    argv=("/bin/sh", "-c", "true"),
    folder="/Volumes/disk/shop",
    readable=("/opt/python", "/Volumes/disk/shop/retinue.toml"),
    writable=("/Volumes/disk/shop",),
    hidden=("/Volumes/disk/shop/.env",),
)


def test_a_profile_denies_all_that_is_not_granted() -> None:
    system = " ".join(f'(subpath "{path}")' for path in (*SYSTEM, "/tmp/own"))
    files = " ".join(f'(literal "{path}")' for path in FILES)
    granted = " ".join(f'(subpath "{path}")' for path in (*PROGRAM.readable, *PROGRAM.writable))
    devices = " ".join(f'(literal "{path}")' for path in DEVICES)

    assert profile(PROGRAM, "/tmp/own").splitlines() == [
        "(version 1)",
        "(deny default)",
        "(allow process-exec process-fork)",
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        "(allow sysctl-read)",
        '(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))',
        "(allow file-read-metadata)",
        f'(allow file-read* (literal "/") {system} {files})',
        f"(allow file-read* file-write-data file-ioctl {devices})",
        f"(allow file-read* {granted})",
        '(allow file-write* (subpath "/Volumes/disk/shop") (subpath "/tmp/own"))',
        '(deny file-write* (subpath "/Volumes/disk/shop/retinue.toml"))',
        '(deny file-read* file-write* (subpath "/Volumes/disk/shop/.env"))',
    ]


def test_the_network_is_open_only_if_it_is_granted() -> None:
    closed = profile(PROGRAM, "/tmp/own")
    opened = profile(Program(argv=("true",), folder="/", network=True), "/tmp/own")

    assert "network" not in closed
    assert "(allow network*)" in opened.splitlines()


def test_the_folder_of_a_user_is_not_part_of_the_system() -> None:
    assert not [path for path in (*SYSTEM, *FILES) if path.startswith(("/home", "/private/tmp", "/var/folders"))]


@pytest.mark.parametrize("path", ['/a") (allow default', "/back\\slash"])
def test_a_path_cannot_end_its_string(path: str) -> None:
    body = quoted(path)[1:-1]

    assert body.replace("\\\\", "").replace('\\"', "").count('"') == 0


def test_a_path_with_control_characters_is_refused() -> None:
    with pytest.raises(ToolError, match="control characters"):
        quoted("/a\n(allow default)")


def is_there(path: str) -> bool:
    return os.path.lexists(path)


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """A program in place of sandbox-exec that protects nothing."""
    program = tmp_path / "sandbox-exec"
    program.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.real_time
async def test_a_program_that_protects_nothing_is_not_taken_for_a_sandbox(stand_in: str) -> None:
    error = await attack(Seatbelt(sandbox_exec=stand_in))

    assert error.startswith("a program could read files outside its folders, write outside its folders")


@pytest.mark.real_time
async def test_a_program_has_a_temporary_folder_and_home_of_its_own(tmp_path: Path, stand_in: str) -> None:
    program = Program(
        argv=("/bin/sh", "-c", 'echo "$HOME" && cat "$HOME/.gitconfig"'),
        folder=str(tmp_path),
        writable=(str(tmp_path),),
        files={"/tmp/home/.gitconfig": b"[user]"},
        environment={"HOME": "/tmp/home", "PATH": "/usr/bin:/bin"},
    )

    ended = await Seatbelt(sandbox_exec=stand_in).run(program)

    home, settings = ended.stdout.decode().split("\n")
    assert settings == "[user]"
    assert home.endswith("/home")
    assert not is_there(home)
