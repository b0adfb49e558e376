"""Every test of the command line has a state folder, a working folder and an environment of its own."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from retinue.__main__ import main
from tests.cli.stage import VARIABLES, Ended

Cli: TypeAlias = Callable[..., Ended]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of this test."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of this test."""
    place = tmp_path / "folder"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command line in this process, which is much faster than a process of its own."""

    def call(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = main(list(arguments))
        output = capsys.readouterr()
        return Ended(code, output.out, output.err)

    yield call
    logger = logging.getLogger("retinue")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
