"""`retinue store`: check, backup, restore, repair and compact, on whole and on damaged stores."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from retinue.core.checksum import event_checksum
from retinue.providers.scripted import Script, ScriptedProvider, says
from retinue.store.sqlite.store import SqliteStore
from retinue.tools.memory.backend import Note
from retinue.tools.memory.sqlite import SqliteMemory
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run, retinue
from tests.store.damage import answers, fill

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def store(home: Path) -> Path:
    """A filled store with a memory."""
    path = home / "retinue.db"
    fill(path)
    note = Note(agent="dig", key="style", content="Write short sentences.", at=5.0)
    SqliteMemory(home / "memory.db").store(note)
    return path


def change(path: Path, text: bytes) -> None:
    """Change one byte of a text in a file."""
    whole = bytearray(path.read_bytes())
    whole[whole.index(text) + 2] ^= 1
    path.write_bytes(whole)


def hashes(folder: Path) -> dict[str, str]:
    """A hash of each database in a folder and of its log."""
    files = [file for file in folder.iterdir() if file.name.endswith((".db", ".db-wal")) and file.stat().st_size > 0]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# ---- check ----------------------------------------------------------------------------------------------------------


def test_check_finds_no_damage_in_a_whole_store(cli: Cli, store: Path) -> None:
    ended = cli("store", "check")
    quick = cli("store", "check", "--quick", "--json")

    assert (ended.code, ended.stdout, ended.stderr) == (
        0,
        f"{store}: no damage found: 12 runs, 130 rows\n{store.parent / 'memory.db'}: no damage found: 0 runs, 1 rows\n",
        "",
    )
    assert (quick.code, quick.json["ok"], quick.json["quick"]) == (0, True, True)
    assert [file["damage"] for file in quick.json["files"]] == [[], []]


def test_check_without_a_store_has_nothing_to_do_and_creates_nothing(cli: Cli, home: Path) -> None:
    ended = cli("store", "check")

    assert (ended.code, ended.stderr) == (0, "there is no store yet: nothing to check\n")
    assert not home.exists()


async def test_a_run_of_the_engine_passes_the_check(cli: Cli, home: Path) -> None:
    await finished_run(home, ScriptedProvider(Script().play("main", says("Done."))))

    checked = await retinue("store", "check", "--json")

    assert (checked.code, checked.json["files"][0]["runs_folded"]) == (0, 1)


def test_a_changed_event_is_an_error_that_names_the_check_and_the_repair(cli: Cli, store: Path) -> None:
    change(store, b"answer 5 answer")

    shown = cli("runs", "show", "root-5")
    checked = cli("store", "check", "--json")

    assert (shown.code, shown.stdout) == (1, "")
    assert shown.stderr == (
        "error: a row of the table events is damaged (run root-5, event 2): its checksum does not match\n"
        "look at the whole store with: retinue store check; save what can be saved with: retinue store repair\n"
    )
    assert checked.code == 3
    assert checked.json["files"][0]["damage"] == [
        {"table": "events", "run_id": "root-5", "what": "seq 2: the checksum does not match"}
    ]


def test_a_changed_memory_is_an_error_and_is_repaired_away(cli: Cli, store: Path) -> None:
    change(store.parent / "memory.db", b"Write short")

    shown = cli("memory", "show", "dig", "style")
    checked = cli("store", "check")
    repaired = cli("store", "repair", "--json")

    assert (shown.code, shown.stdout) == (1, "")
    assert "is damaged: see retinue store check, and retinue store repair" in shown.stderr
    assert checked.code == 3
    (report,) = repaired.json["files"]
    assert [lost["what"] for lost in report["lost"]] == ["agent dig, key style"]
    assert cli("store", "check").code == 0
    assert cli("memory", "list").stderr == "no memories\n"


READING = (
    ("runs",),
    ("runs", "show", "root-5"),
    ("runs", "tree", "root-5"),
    ("runs", "resume", "root-5"),
    ("approvals",),
    ("context", "list"),
    ("cron", "list"),
    ("daemon",),
    ("chat",),
    ("run", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--dialect", "none", "hello"),
)


@pytest.mark.parametrize("kind", ["truncated", "emptied", "log without database", "another program", "noise", "header"])
def test_no_command_answers_from_a_broken_file_or_fails_with_a_traceback(cli: Cli, store: Path, kind: str) -> None:
    whole = store.read_bytes()
    match kind:
        case "truncated":
            store.write_bytes(whole[: len(whole) // 2])
        case "emptied":
            store.write_bytes(b"")
        case "log without database":
            store.rename(f"{store}-wal")
        case "another program":
            store.unlink()
            with closing(sqlite3.connect(store)) as connection:
                connection.execute("CREATE TABLE recipes (name TEXT)")
        case "noise":
            store.write_bytes(os.urandom(len(whole)))
        case _:
            store.write_bytes(b"SQLite format 4" + whole[15:])
    before = hashes(store.parent)

    for command in READING:
        ended = cli(*command)
        assert ended.code in (1, 2), command
        assert ended.stdout == "", command
        assert "error: " in ended.stderr, command
        assert "bug in retinue" not in ended.stderr, command
        assert "Traceback" not in ended.stderr, command
    checked = cli("store", "check")

    assert checked.code == 3
    assert hashes(store.parent) == before


def test_a_lost_write_ahead_log_leaves_the_state_of_the_last_checkpoint(cli: Cli, store: Path) -> None:
    code = "import sys; from tests.store.worker import write_for_ever, prepare; from pathlib import Path\n"
    code += "from retinue.store.sqlite.store import SqliteStore\n"
    code += "import os; s = SqliteStore(sys.argv[1]); prepare(s, 'w'); print('ready', flush=True); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(store)], check=False, cwd=Path(__file__).parents[2])
    assert Path(f"{store}-wal").stat().st_size > 0

    Path(f"{store}-wal").unlink()
    Path(f"{store}-shm").unlink(missing_ok=True)
    listed = cli("runs", "--json")

    assert (listed.code, len(listed.json)) == (0, 12)
    assert cli("store", "check").code == 0


# ---- backup and restore ---------------------------------------------------------------------------------------------


def test_a_backup_is_private_complete_and_does_not_overwrite(cli: Cli, store: Path, folder: Path) -> None:
    target = folder / "backup.db"

    written = cli("store", "backup", "backup.db")
    again = cli("store", "backup", "backup.db")
    forced = cli("store", "backup", "backup.db", "--force")

    assert (written.code, again.code, forced.code) == (0, 2, 0)
    assert again.stderr == f"error: {target} exists: choose another name, or replace it with --force\n"
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in folder.iterdir()) == ["backup.db"]
    assert answers(target) == answers(store)


def test_a_restored_backup_has_the_runs_and_memories_and_keeps_the_old_files(cli: Cli, store: Path) -> None:
    before = answers(store)
    cli("store", "backup", "backup.db")
    cli("runs", "prune", "--older-than", "1d")
    cli("memory", "forget", "dig", "style")

    restored = cli("store", "restore", "backup.db", "--json")

    assert restored.code == 0
    kept = {Path(file["file"]).name: Path(file["kept"]) for file in restored.json["files"]}
    assert sorted(kept) == ["memory.db", "retinue.db"]
    assert all(file.exists() for file in kept.values())
    assert answers(store) == before
    assert cli("memory", "show", "dig", "style").stdout == "Write short sentences.\n"
    assert cli("store", "check").code == 0


def test_a_damaged_backup_is_not_restored(cli: Cli, store: Path, folder: Path) -> None:
    cli("store", "backup", "backup.db")
    change(folder / "backup.db", b"answer 5 answer")
    before = store.read_bytes()

    restored = cli("store", "restore", "backup.db")
    other = cli("store", "restore", "missing.db")

    assert (restored.code, other.code) == (3, 2)
    assert "is damaged or no backup: nothing was changed" in restored.stderr
    assert store.read_bytes() == before


def test_a_damaged_store_is_not_backed_up(cli: Cli, store: Path, folder: Path) -> None:
    change(store, b"answer 5 answer")

    ended = cli("store", "backup", "backup.db")

    assert ended.code == 3
    assert f"error: {store} is damaged: no backup was written\n" in ended.stderr
    assert list(folder.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from tests.store.worker import SqliteStore, prepare, write_batch
store = SqliteStore(Path(sys.argv[1]))
prepare(store, "w")
n = 0
for line in sys.stdin:
    for _ in range(int(line)):
        n += 1
        write_batch(store, "w", n)
    print(n, flush=True)
"""


def start_writer(store: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", WRITER, str(store)]
    writer = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    write(writer, 20)
    return writer


def write(writer: subprocess.Popen[str], batches: int) -> None:
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(f"{batches}\n")
    writer.stdin.flush()
    writer.stdout.readline()


def test_a_process_that_uses_the_store_is_backed_up_and_prevents_restore_and_repair(cli: Cli, store: Path) -> None:
    writer = start_writer(store)
    try:
        written = cli("store", "backup", "backup.db", "--json")
        write(writer, 20)
        restored = cli("store", "restore", "backup.db")
        compacted = cli("store", "compact")
    finally:
        writer.communicate()

    assert (written.code, restored.code, compacted.code) == (0, 1, 1)
    assert written.json["rows"]["events"] == 41 + 2 + 20
    assert f"error: a process uses {store}: end it and try again" in restored.stderr
    assert cli("store", "restore", "backup.db").code == 0
    with closing(SqliteStore(store)) as opened:
        assert len(opened.events("w")) == 21


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of file sizes")
@pytest.mark.parametrize("command", [("backup", "backup.db"), ("restore", "whole.db"), ("repair",)])
def test_a_full_disk_changes_nothing(cli: Cli, store: Path, folder: Path, command: tuple[str, ...]) -> None:
    cli("store", "backup", "whole.db")
    if command == ("repair",):
        change(store, b"answer 5 answer")
    before = hashes(store.parent)
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "from retinue.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = [sys.executable, "-c", limited, "store", *command]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "cannot be written" in ended.stderr
    assert "nothing was changed" in ended.stderr
    assert hashes(store.parent) == before
    assert sorted(file.name for file in folder.iterdir()) == ["whole.db"]
    assert not [file.name for file in store.parent.iterdir() if file.name.startswith(".")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to a process group")
def test_ctrl_c_stops_a_check_without_a_traceback(store: Path, folder: Path) -> None:
    hold = "import retinue.store.sqlite.check as c, sys, time\nfrom retinue.__main__ import main\n"
    hold += "def wait(connection, add, work, *, quick):\n"
    hold += "    print('checking', file=sys.stderr, flush=True)\n"
    hold += "    while True: work.report('structure')\n"
    hold += "c.check_structure = wait; sys.exit(main(['store', 'check']))"
    process = subprocess.Popen([sys.executable, "-c", hold], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "checking\n"

    process.send_signal(signal.SIGINT)

    _, stderr = process.communicate()
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "interrupted; nothing was changed")


# ---- repair ---------------------------------------------------------------------------------------------------------


def test_repair_saves_all_but_the_damaged_and_keeps_the_original(cli: Cli, store: Path) -> None:
    change(store, b"answer 5 answer")
    damaged = hashlib.sha256(store.read_bytes()).digest()

    repaired = cli("store", "repair", "--json")

    (report,) = repaired.json["files"]
    assert repaired.code == 0
    assert {(lost["table"], lost["run_id"]) for lost in report["lost"]} == {("events", "root-5"), ("mail", "root-5")}
    assert hashlib.sha256(Path(report["kept"]).read_bytes()).digest() == damaged
    assert cli("store", "check").code == 0
    assert len(cli("runs", "--json").json) == 12
    assert cli("runs", "show", "root-4").code == 0
    assert cli("runs", "show", "root-5").stderr == "error: the messages of run root-5 were not kept\n"


def test_a_store_with_events_of_a_newer_version_is_whole_and_is_repaired_by_that_version_alone(
    cli: Cli, store: Path
) -> None:
    body = b'1{"type":"meditated","at":1.0}'
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        ((no, seq),) = connection.execute("SELECT no, seq FROM runs WHERE run_id = 'root-3'").fetchall()
        summed = (body, event_checksum("root-3", seq, body))
        connection.execute("UPDATE events SET body = ?, crc = ? WHERE run_no = ? AND seq = ?", (*summed, no, seq))
    assert cli("store", "check").code == 0
    assert len(cli("runs", "--json").json) == 12
    change(store, b"answer 5 answer")
    before = hashes(store.parent)

    refused = cli("store", "repair")

    assert (refused.code, refused.stderr.splitlines()[-1]) == (
        1,
        f"error: event {seq} of run root-3 has 'meditated' at $.type, which this retinue does not know: "
        "a newer version wrote it; upgrade retinue to drive it",
    )
    assert hashes(store.parent) == before
    change(store, b'"meditated"')
    assert cli("store", "repair").code == 0, "what is damaged is no event of a newer version"


def test_repair_makes_the_row_of_a_run_again_from_its_events(cli: Cli, store: Path) -> None:
    before = cli("runs", "show", "root-5", "--json").json
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET label = 'changed' WHERE run_id = 'root-5'")
    assert cli("runs").code == 1

    assert cli("store", "repair").code == 0

    assert cli("runs", "show", "root-5", "--json").json == before


def test_repair_saves_the_beginning_of_a_truncated_store(cli: Cli, store: Path) -> None:
    whole = store.read_bytes()
    store.write_bytes(whole[: len(whole) * 3 // 4])

    repaired = cli("store", "repair", "--json")

    assert repaired.code == 0
    assert repaired.json["files"][0]["saved"]["runs"] > 0
    assert repaired.json["files"][0]["lost"] != []
    assert cli("store", "check").code == 0


def test_repair_mends_a_damaged_header(cli: Cli, store: Path) -> None:
    before = answers(store)
    store.write_bytes(b"SQLite format 4" + store.read_bytes()[15:])

    repaired = cli("store", "repair", "--json")

    assert (repaired.code, repaired.json["files"][0]["lost"]) == (0, [])
    assert answers(store) == before


def test_repair_of_a_whole_store_changes_nothing(cli: Cli, store: Path) -> None:
    before = store.read_bytes()

    ended = cli("store", "repair")

    assert (ended.code, ended.stderr) == (0, "there is no damage: nothing to repair\n")
    assert store.read_bytes() == before


# ---- space ----------------------------------------------------------------------------------------------------------


def test_a_store_of_an_older_version_gives_its_space_back_after_compact(cli: Cli, home: Path) -> None:
    path = home / "retinue.db"
    fill(path, runs=120)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    size = path.stat().st_size

    pruned = cli("runs", "prune", "--older-than", "1d")
    after_prune = path.stat().st_size
    compacted = cli("store", "compact")

    assert after_prune == size
    assert "MB are free inside" in pruned.stderr
    assert "retinue store compact" in pruned.stderr
    assert compacted.code == 0
    assert path.stat().st_size < size / 5
    assert cli("store", "check").code == 0


def test_prune_gives_space_back_to_the_disk(cli: Cli, home: Path) -> None:
    path = home / "retinue.db"
    fill(path, runs=120)
    size = path.stat().st_size

    pruned = cli("runs", "prune", "--older-than", "1d")

    assert pruned.stderr == "removed 80 runs that ended more than 1d ago\n"
    assert path.stat().st_size < size / 5
    assert cli("store", "check").code == 0


def test_doctor_reports_damage(cli: Cli, store: Path) -> None:
    whole = store.read_bytes()
    store.write_bytes(whole[:8192] + b"\xa5" * 4096 + whole[12288:])

    ended = cli("doctor", "--json")

    broken = [finding["name"] for finding in ended.json["findings"] if not finding["ok"]]
    assert ended.code == 1
    assert set(broken) & {"state", "store"}


@pytest.mark.parametrize("name", ["check", "backup", "restore", "repair", "compact"])
def test_every_command_of_the_group_has_help_with_an_example(cli: Cli, name: str) -> None:
    ended = cli("store", name, "--help")

    assert ended.code == 0
    assert f"retinue store {name}" in ended.stdout.partition("Example")[2]


@pytest.mark.parametrize("seq", [2**41, 2**26])
def test_a_damaged_number_of_events_is_damage_and_takes_no_memory(cli: Cli, store: Path, seq: int) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE runs SET seq = ?", (seq,))

    checked = cli("store", "check")

    assert checked.code == 3
    assert "bug" not in checked.stderr


def plant(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


FOREIGN = (
    "CREATE TRIGGER planted AFTER INSERT ON events BEGIN UPDATE runs SET agent = 'evil'; END",
    "CREATE VIEW seen AS SELECT * FROM runs",
    "CREATE VIRTUAL TABLE words USING fts5(body)",
    "CREATE TABLE other (a, b GENERATED ALWAYS AS (a + 1))",
)


def objects(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}


def test_triggers_views_and_other_tables_of_a_backup_are_left_behind(cli: Cli, store: Path, folder: Path) -> None:
    before, names = answers(store), objects(store)
    cli("store", "backup", "backup.db")
    plant(folder / "backup.db", *FOREIGN)

    restored = cli("store", "restore", "backup.db")

    assert (restored.code, objects(store)) == (0, names)
    assert answers(store) == before
    assert cli("store", "check").code == 0


def test_a_backup_whose_tables_are_views_is_refused(cli: Cli, store: Path, folder: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    before = store.read_bytes()
    for table, name in (("memory_memories_backup", "memories"), ("shelves", "shelves")):
        (folder / "backup.db").unlink(missing_ok=True)
        cli("store", "backup", "backup.db")
        with closing(sqlite3.connect(folder / "backup.db")) as connection:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]
        plant(
            folder / "backup.db",
            f"DROP TABLE {table}",
            f"CREATE VIEW {table} AS {endless} SELECT {', '.join(f'i AS {column}' for column in columns)} FROM n",
        )
        restored = cli("store", "restore", "backup.db")

        assert (restored.code in (2, 3), "nothing was changed" in restored.stderr) == (True, True), name
        assert "Traceback" not in restored.stderr
    assert store.read_bytes() == before


def test_a_store_with_a_trigger_is_not_used_and_repaired(cli: Cli, store: Path) -> None:
    before, names = answers(store), objects(store)
    plant(store, *FOREIGN[:3])

    checked, listed = cli("store", "check"), cli("runs")
    assert (checked.code, listed.code) == (3, 1)
    assert "the trigger planted does not belong to a store" in checked.stdout + checked.stderr
    assert "the trigger planted does not belong to a store" in listed.stderr
    assert cli("store", "repair").code == 0
    assert objects(store) == names
    assert answers(store) == before


def test_a_lost_page_of_a_table_without_row_numbers_is_repaired(cli: Cli, store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'handles'").fetchall()
    content = bytearray(store.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(4096)
    store.write_bytes(content)

    repaired = cli("store", "repair", "--json")

    assert (repaired.code, cli("store", "check").code) == (0, 0)


def test_a_reference_to_a_blob_that_is_no_text_is_damage(cli: Cli, store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE events SET body = x'40ff87', crc = NULL WHERE id = 2")
        connection.commit()

    assert (cli("store", "check").code, cli("store", "repair").code, cli("store", "check").code) == (3, 0, 0)


@pytest.mark.parametrize("change", ["outcome = 7", "outcome = 'x'", "cost = NULL"])
def test_a_run_with_a_damaged_column_is_repaired(cli: Cli, store: Path, change: str) -> None:
    ended = "SELECT run_id FROM runs WHERE ended = 1 LIMIT 1"
    with closing(sqlite3.connect(store)) as connection:
        try:
            connection.execute(f"UPDATE runs SET {change}, progress_crc = NULL WHERE run_id = ({ended})")
        except sqlite3.IntegrityError:
            pytest.skip("the table does not take this value")
        connection.commit()

    assert (cli("store", "repair").code, cli("store", "check").code) == (0, 0)
