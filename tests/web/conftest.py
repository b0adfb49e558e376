"""Every test of the server has a state folder and a working folder of its own."""

from pathlib import Path

import pytest

from tests.cli.stage import VARIABLES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of this test."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    place = tmp_path / "folder"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
