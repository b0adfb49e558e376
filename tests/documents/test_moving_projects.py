"""Example projects of moves from other programs: each command of a README prints what the README shows."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.testing.fake_chat import FakeChat, read_script
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import open_in_a_thread
from tests.docs.pages import ROOT
from tests.documents.readme import Ended, Shell, Shown, commands, without_ids_and_times

EXAMPLES = ROOT / "examples"
NAMES = sorted(folder.name.removeprefix("moving-from-") for folder in EXAMPLES.glob("moving-from-*"))


class Server(NamedTuple):
    """The model server of a project, which plays `lines.json`: its address, and the files that name it."""

    port: int
    address: str
    files: tuple[str, ...]


SERVERS = {
    "buzzllm": Server(8000, "http://127.0.0.1:8000", ("env.sh", "order.json")),
    "xzatoma": Server(11434, "http://localhost:11434", ("config.yaml",)),
    "zeroclaw": Server(8000, "http://localhost:8000", ("config.toml",)),
}
"""Projects whose settings name a server; in the others the model is `scripted:FILE`."""

BEFORE = {"buzzllm": ". ./env.sh"}


@contextmanager
def project(name: str, folder: Path) -> Generator[tuple[Shell, list[ReceivedRequest]]]:
    """A copy of a project with its model server, and the requests that the server receives."""
    source = EXAMPLES / f"moving-from-{name}"
    # The modes are not copied: the checkout may be read-only.
    for path in (path for path in sorted(source.rglob("*")) if path.is_file() and "__pycache__" not in path.parts):
        target = folder / "project" / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shell = Shell(folder / "project", folder / "home", BEFORE.get(name, ""))
    if (server := SERVERS.get(name)) is None:
        yield shell, []
        return
    with open_in_a_thread(FakeChat(read_script((source / "lines.json").read_bytes()))) as vendor:
        for file in server.files:
            text = (shell.folder / file).read_text(encoding="utf-8")
            assert server.address in text
            (shell.folder / file).write_text(text.replace(server.address, vendor.url), encoding="utf-8")
        yield shell, vendor.requests


def check(shown: list[Shown], ended: list[Ended]) -> None:
    for each, result in zip(shown, ended, strict=True):
        assert result.code == 0, f"{each.command}: {result.output}"
        assert without_ids_and_times(result.output) == without_ids_and_times(each.output), each.command


def run_all(name: str, folder: Path) -> tuple[Shell, list[Ended], list[ReceivedRequest]]:
    """Run the commands of the README one after the other, and compare their output."""
    shown = commands(EXAMPLES / f"moving-from-{name}")
    with project(name, folder) as (shell, requests):
        ended = [shell.run(each.command) for each in shown]
    check(shown, ended)
    return shell, ended, requests


def test_the_commands_of_buzzllm(tmp_path: Path) -> None:
    _, ended, requests = run_all("buzzllm", tmp_path)

    assert len(ended) == 5
    assert {request.headers["authorization"] for request in requests} == {"Bearer not-a-real-key"}


def test_the_commands_of_meerkat(tmp_path: Path) -> None:
    _, ended, _ = run_all("meerkat", tmp_path)

    assert [each.warnings for each in ended] == [(), ()]


def test_the_commands_of_spec(tmp_path: Path) -> None:
    _, ended, _ = run_all("spec", tmp_path)

    assert len(ended) == 3


@pytest.mark.promise("XZ-CONFIG-FILE")
def test_the_commands_of_xzatoma(tmp_path: Path) -> None:
    _, ended, requests = run_all("xzatoma", tmp_path)

    text = (EXAMPLES / "moving-from-xzatoma" / "README.md").read_text(encoding="utf-8")
    warning = tuple(re.findall(r"^WARNING retinue\.config (.*)$", text, re.MULTILINE))
    assert [each.warnings for each in ended] == [warning, warning, ()]
    assert {request.body["model"] for request in requests} == {"llama3.2:3b"}


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_the_commands_of_zeroclaw(tmp_path: Path) -> None:
    shell, ended, requests = run_all("zeroclaw", tmp_path)

    text = (EXAMPLES / "moving-from-zeroclaw" / "README.md").read_text(encoding="utf-8")
    warning = tuple(re.findall(r"^WARNING retinue\.config (.*)$", text, re.MULTILINE))
    assert ended[0].warnings == warning, "what has no counterpart is named once"
    assert {request.body["model"] for request in requests} == {"qwen3"}
    (file,) = (shell.folder / "desk" / "delegate_results").iterdir()
    result = json.loads(file.read_text(encoding="utf-8"))
    assert (result["status"], result["output"].splitlines()[-1]) == ("Completed", "It is sound.")
    (day,) = (shell.folder / "desk" / "memory").iterdir()
    assert "Have the last change reviewed, please." in day.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVERS)
def test_the_readme_says_how_the_scripted_model_is_started(name: str) -> None:
    text = (EXAMPLES / f"moving-from-{name}" / "README.md").read_text(encoding="utf-8")

    assert f"`python -m retinue.testing.fake_chat --script lines.json --port {SERVERS[name].port}`" in text


def test_every_project_is_run() -> None:
    assert {f"test_the_commands_of_{name}" for name in NAMES} <= globals().keys()
