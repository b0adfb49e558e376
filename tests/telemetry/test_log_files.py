"""Log files of background processes: private, bounded in size and number, and not deleted while in use."""

import os
import subprocess
import sys
from pathlib import Path

from retinue.telemetry.log_files import limit_in_environment, open_log_file, trim

TALKER = """
import logging, os, sys
from retinue.telemetry.logs import turn_on
turn_on("info", sys.stderr)
log = logging.getLogger("retinue.test")
for n in range(int(sys.argv[1])):
    log.info("line %d %s", n, "x" * 80)
"""


def test_a_log_file_is_private_and_a_large_one_is_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "r1.log"
    os.close(open_log_file(path, max_bytes=10))
    path.write_text("more than ten bytes")

    os.close(open_log_file(path, max_bytes=10))

    assert path.read_text() == ""
    assert Path(f"{path}.1").read_text() == "more than ten bytes"
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_talkative_process_keeps_its_log_file_below_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "r1.log"
    file = open_log_file(path, max_bytes=50_000)
    environment = os.environ | limit_in_environment(path, 50_000)

    subprocess.run([sys.executable, "-c", TALKER, "5000"], stderr=file, env=environment, check=True)
    os.close(file)

    older = Path(f"{path}.1")
    assert path.stat().st_size < 70_000
    assert 50_000 < older.stat().st_size < 70_000
    assert {path.stat().st_mode & 0o777, older.stat().st_mode & 0o777} == {0o600}
    assert "line 4999 " in (path.read_text() or older.read_text())


def test_another_file_than_the_named_one_is_never_emptied(tmp_path: Path) -> None:
    own = tmp_path / "own.log"
    environment = os.environ | limit_in_environment(tmp_path / "r1.log", 100)
    with own.open("w") as file:
        subprocess.run([sys.executable, "-c", TALKER, "500"], stderr=file, env=environment, check=True)

    assert len(own.read_text().splitlines()) == 500


def test_the_oldest_log_files_are_deleted_unless_a_process_uses_them(tmp_path: Path) -> None:
    for n in range(6):
        (tmp_path / f"r{n}.log").write_text(f"{n}")
        os.utime(tmp_path / f"r{n}.log", (n, n))
    (tmp_path / "r1.log.1").write_text("older")
    (tmp_path / "notes.txt").write_text("not a log")
    used = open_log_file(tmp_path / "r0.log", max_bytes=1000)

    deleted = trim(tmp_path, 3)

    os.close(used)
    assert deleted == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.txt", "r0.log", "r3.log", "r4.log", "r5.log"]
