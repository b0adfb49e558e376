"""Every example of the documentation runs, in the order of its page, and commands print what the page says.

A block that is `python` is executed; with a title it is written to that file, as a reader would do. A `console` block
is a session: what follows `$ ` is run. Where the page shows what is printed, that is compared: numbers, times and ids
may differ, and a line `...` stands for any lines. A block that shows an error expects one. `toml` and `yaml` have to be
valid settings, unless it is called `mistakes.toml`, or `cases.yaml`, which is an eval. What cannot run is `text`.
"""

import asyncio
import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import psycopg
import pytest

from retinue.__main__ import main
from retinue.app.settings_file import load_settings
from retinue.evals import read_suite
from retinue.providers.catalog import WIRES, api_key_variables
from tests.docs.pages import PAGES, Block, Page
from tests.docs.vendor import FakeVendors
from tests.postgres import PostgresServer

RUN = ("python", "console", "toml", "yaml", "json")
MISTAKES = "mistakes.toml"
EVAL = "cases.yaml"
SHELL = re.compile(r"[&|;<>$`]|\bpython\b|--detach|\bcron daemon\b")
"""Commands that need a process of their own; a daemon waits for its children, and a test process has others."""

COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)
FAILED = re.compile(r"^(error|failed|exhausted|timed_out)\b", re.MULTILINE)
HOME = "~/.local/share/retinue"
"""The state folder in pages."""

PROGRESS = re.compile(r"^.*: turn \d+, .*\n?", re.MULTILINE)
"""Lines whose number depends on the speed of the machine."""

ALIKE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b"), "ID"),
    (re.compile(r" t_\d+: started"), ": started"),  # a child may be seen before it has its name
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?"), "WHEN"),
    (re.compile(r"\b\d[\d.]*[kM]?\b"), "0"),
    (re.compile(r"[ \t]+"), " "),
)


class PageRunner:
    """Runs the examples of a page in a folder of its own, with a model at the page's address."""

    def __init__(self, page: Page, folder: Path, vendors: FakeVendors, mark: Path) -> None:
        self._page = page
        self._folder = folder
        self._vendors = vendors
        self._mark = mark
        # A module, because tools and dataclasses look theirs up by name.
        self._namespace = ModuleType("example")

    def follow(self, block: Block) -> None:
        """Run a block."""
        code = self._as_it_is_here(block.code)
        if block.title:
            (self._folder / block.title).write_text(code + "\n")
        match block.language:
            case "console":
                for command, printed in _session(block.code):
                    self._command(command, printed, f"{self._page.name}:{block.line}")
            case "toml" | "yaml" if block.title != MISTAKES:
                self._settings(code, block.title or f"untitled.{block.language}")
            case "python" if not block.title:
                sys.modules["example"] = self._namespace
                # Empty lines in front, so that a traceback names the line of the page.
                exec(compile("\n" * (block.line - 1) + code, self._page.path, "exec"), self._namespace.__dict__)
            case _:
                pass

    def _as_it_is_here(self, text: str) -> str:
        for page, here in self._vendors.addresses.items():
            text = text.replace(page, here)
        return text

    def _settings(self, code: str, title: str) -> None:
        path = self._folder / title
        path.write_text(code)
        if title == EVAL:
            read_suite(path)
            return
        load_settings(path)
        if not title:
            path.unlink()

    def _command(self, command: str, printed: str, where: str) -> None:
        asked = self._as_it_is_here(command)
        if re.search(r"\bID\b", asked):
            asked = re.sub(r"\bID\b", self._newest_run(), asked)
        if asked.startswith("export "):
            os.environ |= dict(os.path.expandvars(each).split("=", 1) for each in shlex.split(asked)[1:])
            return
        code, output = self._in_a_shell(asked) if SHELL.search(asked) else self._here(asked)
        output = self._vendors.as_the_page_has_it(output).replace(os.environ["RETINUE_HOME"], HOME)
        expects_error = FAILED.search(printed) is not None
        assert (code != 0) == expects_error, f"{where}: {command}: exit status {code}\n{output}"
        if printed and not re.fullmatch(_pattern(printed), _alike(output)):
            pytest.fail(f"{where}: {command}\n--- printed\n{output}\n--- the page says\n{printed}", pytrace=False)

    def _here(self, command: str) -> tuple[int, str]:
        """The command in this process, which is much faster than a process of its own."""
        words = shlex.split(command)
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            assert words[0] == "retinue", f"only retinue is run here: {command}"
            output = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(output))
            return main(words[1:]), output.getvalue()

    def _in_a_shell(self, command: str) -> tuple[int, str]:
        # "sleep" waits until the model is in the middle of an answer, however long that takes.
        until = f'[ -e "{self._mark}" ] || ! kill -0 $! 2> /dev/null'
        waits = f"sleep() {{ until {until}; do command sleep 0.02; done; }}\n"
        ended = subprocess.run(
            ["bash", "-c", waits + command],
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
        )
        return ended.returncode, ended.stdout

    def _newest_run(self) -> str:
        return msgspec.json.decode(self._here("retinue runs --json")[1])[0]["run_id"]

    def wait_for_the_background(self) -> None:
        """Wait for background processes."""
        until = time.monotonic() + 20
        while (Path(os.environ["RETINUE_HOME"]) / "retinue.db").exists():
            states = {row["state"] for row in msgspec.json.decode(self._here("retinue runs --all --json")[1])}
            if states <= {"ended", "interrupted"}:
                return
            assert time.monotonic() < until, f"{self._page.name} leaves runs at work: {states}"
            time.sleep(0.05)


def _session(text: str) -> Iterator[tuple[str, str]]:
    """Commands with their expected output."""
    _, *engine = COMMAND.split(text)
    for command, printed in zip(engine[::2], engine[1::2], strict=True):
        yield command, printed.strip("\n")


def _alike(text: str) -> str:
    """The text with the same word for all ids and numbers, and without blanks that only align it."""
    text = PROGRESS.sub("", text)
    for pattern, word in ALIKE:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _pattern(printed: str) -> str:
    return r"\n".join(r"[^\0]*" if line == "..." else re.escape(line) for line in _alike(printed).splitlines())


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVendors]:
    """Fake models in a thread of their own; the examples run in this one, and reach no other model."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    vendors = FakeVendors(tmp_path / "mark")
    try:
        asyncio.run_coroutine_threadsafe(vendors.open(), loop).result()
        for name, wire in vendors.wires().items():
            monkeypatch.setitem(WIRES, name, wire)
        yield vendors
        asyncio.run_coroutine_threadsafe(vendors.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; changes of an example to this process are undone."""
    here = tmp_path / "folder"
    here.mkdir()
    (tmp_path / "home").mkdir()
    before = dict(os.environ)
    modules, path = dict(sys.modules), list(sys.path)
    monkeypatch.chdir(here)
    for name in [name for name in os.environ if name.startswith("RETINUE_") or name in api_key_variables({})]:
        del os.environ[name]
    os.environ |= {"RETINUE_HOME": str(tmp_path / "home"), "COLUMNS": "120", "PWD": str(here)}
    yield here
    os.environ.clear()
    os.environ |= before
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        if name == "example" or name.startswith("retinue_tools_") or (here / f"{name}.py").exists():
            del sys.modules[name]
    logger = logging.getLogger("retinue")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


def database_of_the_page(server: PostgresServer) -> dict[str, str]:
    """Create the database `retinue`, and return the variables with which its address needs no host."""
    with psycopg.connect(f"postgresql://postgres@/postgres?host={server.folder}", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS retinue WITH (FORCE)")  # that of another page
        connection.execute("CREATE DATABASE retinue")
    return {"PGHOST": str(server.folder), "PGUSER": "postgres"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.of(*RUN)], ids=lambda page: page.name)
def test_every_example_of_the_page_runs(
    page: Page, folder: Path, vendors: FakeVendors, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if any("postgresql:///" in block.code for block in page.of("python", "console")):
        os.environ |= database_of_the_page(request.getfixturevalue("postgres_server"))
    runner = PageRunner(page, folder, vendors, tmp_path / "mark")
    for block in page.of(*RUN):
        runner.follow(block)
    runner.wait_for_the_background()
    if page.path.parent.name == "providers":
        assert page.path.stem in {request.path.split("/")[1] for request in vendors.requests}, (
            "another provider was called"
        )
