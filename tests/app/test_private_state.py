"""The state folder is its owner's alone, whatever the umask; a folder of another user is refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.app.launch.resume import open_log
from retinue.config.store import StoreSettings
from retinue.core.errors import StoreNotOpened
from retinue.core.policy import Policy
from retinue.testing import Script, ScriptedProvider, says
from retinue.tools.files import FileAccess
from retinue.tools.files.atomic_write import replace


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with this umask."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    found = {path.name: path for path in folder.rglob("*")} | {".": folder}
    return {name: oct(stat.S_IMODE(path.stat().st_mode)) for name, path in found.items()}


def scripted() -> ScriptedProvider:
    return ScriptedProvider(Script().play("main", says("done")))


async def test_all_files_of_a_run_are_the_owners_alone_while_it_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "state"
    monkeypatch.setenv("RETINUE_HOME", str(home))
    async with retinue.open(provider=scripted(), tools=["memory_store"]) as r:
        await (await r.spawn("go")).wait()
        os.close(open_log("0190", StoreSettings()).file)
        found = modes(home)

    assert {"retinue.db", "retinue.db-wal", "retinue.db-shm", "retinue.db.lock", "0190.log"} <= set(found)
    assert (found.pop("."), found.pop("logs")) == ("0o700", "0o700")
    assert set(found.values()) == {"0o600"}


async def test_an_existing_folder_loses_the_rights_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, named = tmp_path / "state", tmp_path / "named"
    monkeypatch.setenv("RETINUE_HOME", str(home))
    for folder in (home, named):
        folder.mkdir()
        folder.chmod(0o777)
    async with retinue.open(provider=scripted()), retinue.open(provider=scripted(), home=named):
        assert modes(home)["."] == "0o700"
        assert modes(named)["."] == "0o755"  # it may be a project's folder: other users may read it, and not write


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4711)
    try:
        with pytest.raises(StoreNotOpened) as refused:
            retinue.open(provider=scripted(), home=tmp_path)
    finally:
        os.chown(tmp_path, 0, 0)
    assert str(refused.value) == (
        f"the store cannot be opened: the state folder {tmp_path} belongs to another user (uid 4711), "
        "who decides what is in it: take it over (chown), or choose another with RETINUE_HOME"
    )


def test_a_folder_that_is_shared_by_design_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreNotOpened, match="all users may write to the state folder"):
        retinue.open(provider=scripted(), home=tmp_path)


PLACED = [
    *("retinue.db", "retinue.db-wal", "memory.db", "memories", "programs", "logs", "workspaces"),
    *("chat_history", "approved_calls.json", "web_token", "daemon.lock"),
]


@pytest.mark.parametrize("name", PLACED)
def test_a_file_that_another_user_put_into_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    planted = tmp_path / name
    planted.touch()
    planted.chmod(0o666)
    with pytest.raises(StoreNotOpened) as refused:
        retinue.open(provider=scripted(), home=tmp_path)
    assert str(refused.value) == (
        f"the store cannot be opened: {planted} can be written by all users: look at it, then remove it or take it "
        "over (chown, chmod), or choose another state folder with RETINUE_HOME"
    )
    if os.geteuid() == 0:
        planted.chmod(0o600)
        os.chown(planted, 4711, 4711)
        with pytest.raises(StoreNotOpened, match=rf"{name} belongs to another user \(uid 4711\)"):
            retinue.open(provider=scripted(), home=tmp_path)
        planted.unlink()
        planted.symlink_to("/etc/passwd")
        os.chown(planted, 4711, 4711, follow_symlinks=False)
        with pytest.raises(StoreNotOpened, match="belongs to another user"):
            retinue.open(provider=scripted(), home=tmp_path)


async def test_other_files_in_a_folder_that_the_caller_named_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    (tmp_path / "notes").chmod(0o666)
    async with retinue.open(provider=scripted(), home=tmp_path):
        assert (tmp_path / "retinue.db").exists()


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, mode: int) -> None:
    (tmp_path / "secret").write_text("old")
    (tmp_path / "secret").chmod(mode)
    seen: list[int] = []

    def content() -> Iterator[bytes]:
        yield b"new "
        (temporary,) = tmp_path.glob(".*.retinue.tmp")
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
        yield b"secret"

    with FileAccess(Policy(), str(tmp_path)).target("secret", "write") as target:
        replace(target, content())

    assert seen == [0o600]
    assert modes(tmp_path)["secret"] == oct(mode)
    assert (tmp_path / "secret").read_text() == "new secret"
