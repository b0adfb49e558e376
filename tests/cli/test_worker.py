"""`retinue worker` and `retinue workers` as processes: detached runs, signals, tags, and keys of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from retinue.__main__ import main
from retinue.providers.scripted import Line, says
from retinue.store.postgres import parse_address
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.cli.stage import Command, retinue, serving

pytestmark = pytest.mark.real_time


@pytest.fixture
def vendor() -> Iterator[FakeChat]:
    def answer(request: ReceivedRequest) -> Line | FakeResponse:
        return says(f"answer to: {request.body['messages'][-1]['content']}")

    with serving(answer) as vendor:
        yield vendor


@pytest.fixture
def folder(tmp_path: Path, vendor: FakeChat, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings of a provider, and the store in a file."""
    settings = f'model = "house:fake-1"\n[providers.house]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\n'
    (tmp_path / "retinue.toml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RETINUE_STORE", f"sqlite:{tmp_path}/runs.db")
    return tmp_path


async def test_a_detached_run_is_driven_by_a_worker_that_stops_on_a_signal(folder: Path) -> None:
    worker = await Command.start("worker", "--tag", "gpu", "--lease", "2", cwd=folder)
    await worker.expect_stderr("up to 8 trees, tags: gpu")
    listed = await retinue("workers", "--json", cwd=folder)
    (found,) = listed.json
    assert set(found) == {"driver_id", "host", "process", "version", "tags", "runs", "last_beat", "lag_seconds"}
    assert (found["tags"], found["runs"]) == (["gpu"], [])
    heading, row = (await retinue("workers", cwd=folder)).stdout.splitlines()
    assert heading.split()[-1] == "lag"
    assert heading.split()[:5] == ["driver", "host", "process", "version", "tags"]
    assert row.split()[:5] == [found["driver_id"], found["host"], found["process"], found["version"], "gpu"]

    detached = await retinue("run", "--detach", "--tag", "gpu", "Say hello", cwd=folder)
    assert "left to the workers of the store" in detached.stderr
    run_id = detached.stdout.strip()
    waited = await retinue("runs", "wait", run_id, cwd=folder)
    assert waited.code == 0, waited.stderr
    worker.signal(signal.SIGTERM)
    ended = await worker.ended()
    assert ended.code == 0
    assert "worker: stopped" in ended.stderr
    shown = await retinue("runs", "show", run_id, "--json", cwd=folder)
    assert shown.json["text"] == "answer to: Say hello"


def test_a_tag_without_detach_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--tag", "gpu", "Say hello"]) == 2
    assert "--tag chooses among workers: give --detach, too" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--health", "9090"], ["--tag", "two words"]], ids=["address", "tag"])
def test_bad_flags_of_a_worker_are_bad_usage(
    folder: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", *flags]) == 2
    assert "expected" in capsys.readouterr().err


async def test_a_worker_without_the_key_of_a_provider_leaves_its_runs_alone(
    folder: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_STORE", postgres_url)
    settings = folder / "retinue.toml"
    settings.write_text(f'{settings.read_text()}api_key_env = "HOUSE_KEY"\n')
    detached = await retinue("run", "--detach", "Say hello", cwd=folder, env={"HOUSE_KEY": "a-secret-key"})
    assert "it waits for a worker, and none runs: start one with: retinue worker" in detached.stderr
    keyless = await retinue("worker", "--drain", cwd=folder)
    assert keyless.code == 0
    assert "no provider named 'house' here" in keyless.stderr
    assert "a-secret-key" not in keyless.stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_holds_no_key(
    kind: str, folder: Path, request: pytest.FixtureRequest, vendor: FakeChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:{folder}/runs.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("RETINUE_STORE", store)
    settings = folder / "retinue.toml"
    settings.write_text(f'{settings.read_text()}api_key_env = "HOUSE_KEY"\n')
    key = {"HOUSE_KEY": "a-secret-key"}
    detached = await retinue("run", "--detach", "Say hello", cwd=folder, env=key)
    worked = await retinue("worker", "--drain", cwd=folder, env=key)
    assert (detached.code, worked.code) == (0, 0), worked.stderr
    own = await retinue("run", "Say hello yourself", cwd=folder, env=key)
    assert own.code == 0, own.stderr

    assert {asked.headers["authorization"] for asked in vendor.requests} == {"Bearer a-secret-key"}
    stored = content_of(store)
    assert b"Say hello yourself" in stored, "the content can be read"
    assert b"a-secret-key" not in stored


def content_of(store: str) -> bytes:
    """Everything that a store holds, with the bytes of its texts as they are."""
    if store.startswith("sqlite:"):
        file = Path(store.removeprefix("sqlite:"))
        return b"".join(each.read_bytes() for each in file.parent.glob(f"{file.name}*"))
    address = parse_address(store)
    names = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
    with psycopg.connect(address.connection_string) as connection:
        tables = [name for (name,) in connection.execute(names, (address.schema,)).fetchall()]
        rows = [connection.execute(f"SELECT * FROM {address.schema}.{table}".encode()).fetchall() for table in tables]
    values = [value for found in rows for row in found for value in row]
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)
