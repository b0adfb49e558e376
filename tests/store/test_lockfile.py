"""`LockFile`: one holder at a time, waiting with a timeout."""

import threading
from pathlib import Path

import pytest

from retinue.core.errors import StoreUnavailable
from retinue.store.sqlite.store import LockFile


def test_a_held_lock_is_waited_for(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    order: list[str] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        with other:
            order.append("other")

    thread = threading.Thread(target=wait)
    with one:
        thread.start()
        waits.wait()
        order.append("one")
    thread.join()

    assert order == ["one", "other"]
    one.close()
    other.close()


def test_a_timeout_raises_store_unavailable_with_the_path(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock", timeout=0.01)

    with one, pytest.raises(StoreUnavailable) as refused, other:
        pass

    assert refused.value.reason == f"another process has held {tmp_path / 'lock'} for 0.01 s; is it stopped?"
    with other:
        pass
    one.close()
    other.close()


def test_a_lock_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    LockFile(tmp_path / "lock").close()

    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
