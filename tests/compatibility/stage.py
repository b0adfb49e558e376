"""The environment of one scenario: a temporary folder, pinned variables, commands, model servers and their recording.

A recording has three parts. `contract` is what programs and models rely on: exit statuses, stdout, log lines, requests
to models, files and the store. `prose` is text for people on stderr, and on the stdout of a few commands. `help` has
help texts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from tests.compatibility.fork_server import ForkServer
from tests.compatibility.model_server import PATIENCE, Conversation, Line, ModelServer, Played, Request
from tests.compatibility.normalise import Names
from tests.compatibility.store_dump import STORE, dump_database, dump_home

Part: TypeAlias = Literal["contract", "prose", "help"]
PARTS: tuple[Part, ...] = ("contract", "prose", "help")

PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
PINNED = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "100", "TERM": "dumb", "NO_PROXY": "*"}

_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) retinue\b")
_LOG_SENTENCE = re.compile(r"(\d{4}-\d\d-\d\dT\S+Z (?:\w+ retinue\.(?:app|config|engine)|WARNING retinue\.cron)) ")
"""The loggers that write sentences for people; the others write fields for programs."""

_TURN_LINE = re.compile(r"[^:]*: turn \d+, ")
"""Progress about single turns. It is printed at intervals, so its lines depend on the speed of the machine."""


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Document:
    """A titled piece of a recording, before placeholders."""

    part: Part
    title: str
    lines: Sequence[str]
    ordered: bool = True


@dataclass
class Recording:
    """The result of a scenario: the text of each part, and copies of the state folder by name."""

    texts: dict[Part, str] = field(default_factory=dict[Part, str])
    homes: dict[str, Path] = field(default_factory=dict[str, Path])


def environment() -> dict[str, str]:
    """The variables of every command."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | PINNED


class Command:
    """A running command in its own process group."""

    def __init__(self, stage: Stage, arguments: Sequence[str], env: Mapping[str, str], stdin: str) -> None:
        self.arguments = arguments
        self._streams = stage.streams(stdin)
        source, out, err = self._streams
        with source.open("rb") as stdin_file, out.open("wb") as stdout_file, err.open("wb") as stderr_file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "retinue", *arguments],
                stdin=stdin_file,
                stdout=stdout_file,
                stderr=stderr_file,
                env=dict(env),
                cwd=stage.work,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group."""
        os.killpg(self.process.pid, number)

    @property
    def stderr(self) -> str:
        """The text on stderr so far."""
        return read(self._streams[2])

    def ended(self) -> Ended:
        """Wait for the end of the process."""
        code = self.process.wait(timeout=PATIENCE)
        return Ended(code, read(self._streams[1]), self.stderr)

    def stop(self) -> None:
        """Kill the process, if it still runs."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


class Stage:
    """The environment of a scenario; it exists inside a `with` block."""

    def __init__(self, forks: ForkServer) -> None:
        self._forks = forks
        self._open = ExitStack()
        self._documents: list[Document] = []
        self._servers: list[ModelServer] = []
        self._commands: list[Command] = []
        self._written: dict[str, str] = {}
        self._numbers = iter(range(10_000))
        self._homes: dict[str, Path] = {}
        self.names = Names()

    def __enter__(self) -> Stage:
        self.top = Path(tempfile.mkdtemp(prefix="retinue-")).resolve()
        self.work, self.home = self.top / "folder", self.top / "home"
        for folder in (self.work, self.top / "streams", self.top / "user"):
            folder.mkdir()
        self.env = environment() | {"RETINUE_HOME": str(self.home), "HOME": str(self.top / "user")}
        self.names.fix(str(self.work), "folder")
        self.names.fix(str(self.home), "home")
        self.names.fix(str(self.top), "top")
        self.names.fix(sys.executable, "python")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for command in self._commands:
            command.stop()
        self._open.close()
        shutil.rmtree(self.top, ignore_errors=True)

    # ---- preparation ------------------------------------------------------------------------------------------------

    def write(self, name: str, content: str | object) -> Path:
        """Write a file in the working folder; content other than a string is written as JSON."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        path.write_text(text)
        self._written[name] = text
        return path

    def server(self) -> ModelServer:
        """Start a model server."""
        server = self._open.enter_context(ModelServer())
        self._servers.append(server)
        self.names.fix(f"127.0.0.1:{server.port}", f"server-{len(self._servers)}")
        return server

    # ---- commands ---------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None, **note: Any) -> Ended:
        """Start a command, wait for its end and record its result; `note` are options of `note`."""
        command = self.start(*arguments, stdin=stdin, env=env)
        return self.note(arguments, command.ended(), **note)

    def forked(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None, **note: Any) -> Ended:
        """The same as `run`, in a process of the fork server."""
        return self.note(arguments, self.query(*arguments, stdin=stdin, env=env), **note)

    def query(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Ended:
        """Run a command in a process of the fork server, without recording it."""
        streams = self.streams(stdin)
        code = self._forks.run(arguments, cwd=self.work, env=self._with(env), streams=streams)
        return Ended(code, read(streams[1]), read(streams[2]))

    def start(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Command:
        """Start a command that runs in parallel with the scenario; `note` records its result."""
        command = Command(self, arguments, self._with(env), stdin)
        self._commands.append(command)
        return command

    def note(
        self,
        arguments: Sequence[str],
        ended: Ended,
        *,
        stdout: Part = "contract",
        stderr: Part | None = "prose",
        ordered: bool = True,
        title: str = "",
    ) -> Ended:
        """Record the result of a command; lines on stderr are sorted unless `ordered`, and left out without a part."""
        command = title or " ".join(["retinue", *(_quoted(each) for each in arguments)])
        logs, sentences, others = _split(ended.stderr)
        self._add("contract", f"$ {command}", [f"exit status {ended.code}"])
        self._add(stdout, f"stdout of {command}", lines_of(ended.stdout))
        self._add("contract", f"log of {command}", logs, ordered=ordered)
        if stderr is not None:
            self._add(stderr, f"log of {command}", sentences, ordered=ordered)
            self._add(stderr, f"stderr of {command}", others, ordered=ordered)
        return ended

    def show(self, title: str, text: str, part: Part = "contract") -> None:
        """Record a text."""
        self._add(part, title, lines_of(text))

    def streams(self, stdin: str) -> tuple[Path, Path, Path]:
        """New files for the streams of a command."""
        number = next(self._numbers)
        source, out, err = (self.top / "streams" / f"{number}.{name}" for name in ("in", "out", "err"))
        source.write_text(stdin)
        return source, out, err

    def _with(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return self.env | dict(env or {})

    def _add(self, part: Part, title: str, lines: Sequence[str], *, ordered: bool = True) -> None:
        if lines:
            self._documents.append(Document(part, title, lines, ordered))

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def when(self, question: str, line: Played) -> Callable[[Conversation], Line]:
        """A line of a model; its answer waits until an SQL query on the store returns a number other than 0."""

        def played(conversation: Conversation) -> Line:
            self.wait_for_store(question)
            return line if isinstance(line, Line) else line(conversation)

        return played

    def wait_for_store(self, question: str) -> None:
        """Wait until an SQL query on the store returns a number other than 0."""

        def answered() -> bool:
            try:
                with closing(sqlite3.connect(f"file:{self.home / STORE}?mode=ro", uri=True)) as store:
                    return bool(store.execute(question).fetchone()[0])
            except sqlite3.OperationalError:
                return False  # the file or the table does not exist yet, or another process writes

        self.wait_for(answered, f"the store never fulfilled: {question}")

    def wait_for(self, condition: Callable[[], bool], complaint: str) -> None:
        """Wait until a condition is true."""
        give_up = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > give_up:
                raise AssertionError(complaint)
            time.sleep(0.005)

    # ---- the recording ----------------------------------------------------------------------------------------------

    def keep_home(self, name: str) -> None:
        """Copy the state folder in its present state into the recording."""
        copy = self.top / "homes" / name
        shutil.copytree(self.home, copy)
        self._homes[name] = copy

    def show_requests(self, *, whole: bool = False) -> None:
        """Record the last request of each conversation, which contains the others; with `whole` record all requests."""
        for number, server in enumerate(self._servers, 1):
            for request in _ordered(server.requests) if whole else _last_of_each(server.requests):
                heads = [f"{name}: {value}" for name, value in sorted(request.headers.items())] if whole else []
                title = f"request to server {number}, part {request.part!r}, after {request.replies} replies"
                self._add("contract", title, [request.path, *heads, *lines_of(request.body)])

    def recording(self) -> Recording:
        """The recording of the scenario; the present state folder is copied as `final`."""
        home = "no state folder\n"
        if self.home.exists():
            self.keep_home("final")
            home = dump_home(self.home, self.names)
        texts: dict[Part, list[str]] = {part: [] for part in PARTS}
        for part in PARTS:
            for document in self._documents:
                if document.part == part:
                    lines = self.names.normal_lines(document.lines, ordered=document.ordered)
                    texts[part] += [f"--- {self.names.normal(document.title)}", *lines, ""]
            if part == "contract":
                for title, lines in self._files():
                    texts[part] += [f"--- {title}", *lines, ""]
                texts[part] += ["--- state folder", home]
        joined: dict[Part, str] = {part: "\n".join(lines) + "\n" for part, lines in texts.items() if lines}
        return Recording(joined, self._homes)

    def _files(self) -> Iterator[tuple[str, list[str]]]:
        """The files in the working folder that were not written by the scenario."""
        for path in sorted(self.work.rglob("*")):
            name = str(path.relative_to(self.work))
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            if path.suffix == ".db":
                yield self.names.normal(f"file {name}"), list(dump_database(path, self.names))
                continue
            text = read(path)
            if self._written.get(name) != text:
                yield self.names.normal(f"file {name}"), [self.names.normal(line) for line in lines_of(text)]


def read(path: Path) -> str:
    """The text of a file, without translation of line ends."""
    return path.read_bytes().decode("utf-8", "backslashreplace")


def lines_of(text: str) -> list[str]:
    """The lines of a text; a missing newline at the end is a line of its own."""
    *lines, last = text.split("\n")
    return [*lines, last, "\\ no newline at the end"] if last else lines


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=,@%+-]+", word) else json.dumps(word, ensure_ascii=False)


def _split(stderr: str) -> tuple[list[str], list[str], list[str]]:
    """Log lines, log lines with sentences for people, and the other lines without progress about single turns.

    A log line with a sentence is also among the log lines, without the sentence.
    """
    logs: list[str] = []
    sentences: list[str] = []
    others: list[str] = []
    for line in lines_of(stderr):
        if sentence := _LOG_SENTENCE.match(line):
            logs.append(f"{sentence[1]} ...")
            sentences.append(line)
        elif _LOG_LINE.match(line):
            logs.append(line)
        elif not _TURN_LINE.match(line):
            others.append(line)
    return logs, sentences, others


def _ordered(requests: Sequence[Request]) -> list[Request]:
    """Requests by conversation: requests of concurrent conversations arrive in any order."""
    return sorted(requests, key=lambda each: (each.part, each.system, each.replies))


def _last_of_each(requests: Sequence[Request]) -> list[Request]:
    return list({(each.part, each.system): each for each in _ordered(requests)}.values())
