"""How tests are run: async ones on a loop whose time the test holds; no task and no database may be left open."""

import asyncio
import functools
import inspect
import os
import signal
import sqlite3
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

import hypothesis
import pytest

from retinue.core.ports import Sandbox
from retinue.sandbox.probe import sandbox_verdict
from retinue.testing.virtual_time import VirtualTimeLoop, describe_task
from retinue.tools.settings_trust import MemoryRecords
from tests.postgres import PostgresServer, running_server

# Here and not below tests/store: the contracts must not be imported before, and the tests of the pages import them.
pytest.register_assert_rewrite("retinue.testing.contracts")

STRESS: bool = os.environ.get("RETINUE_STRESS") == "1"
"""Whether `make stress` asked for full sizes."""

os.environ["RETINUE_CONFIG_HOME"] = "/nonexistent"  # the settings of the person who runs the tests do not count

hypothesis.settings.register_profile("daily", derandomize=True, deadline=None, max_examples=50, database=None)
hypothesis.settings.register_profile("stress", parent=hypothesis.settings.get_profile("daily"), max_examples=2000)
hypothesis.settings.load_profile("stress" if STRESS else "daily")

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append the numbers of passed and skipped tests to the file from which `make test` makes its last line."""
    file = os.environ.get("RETINUE_TEST_COUNTS")
    if file and not hasattr(terminalreporter.config, "workerinput"):  # the workers of xdist report to their controller
        passed, skipped = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "skipped"))
        with open(file, "a", encoding="utf-8") as counts:
            counts.write(f"{passed} {skipped}\n")


@pytest.fixture(autouse=True)
def forget_where_agents_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin as a new process does: it remembers where agents that have no state folder may write.

    A test before this one may have run agents in a folder whose files this one loads, which would be refused.
    """
    monkeypatch.setattr("retinue.tools.settings_trust._IN_MEMORY", MemoryRecords())


@pytest.fixture(scope="session")
def stress() -> bool:
    """Whether `make stress` asked for full sizes."""
    return STRESS


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """The sandbox that this machine has, or a skip that says why there is none."""
    found = asyncio.run(sandbox_verdict())
    if found.sandbox is None:
        pytest.skip(f"no sandbox on this machine: {found.text.partition(';')[0]}")
    return found.sandbox


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of this process, or a skip that says why there is none."""
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The address of an empty store: a schema of its own."""
    return postgres_server.url(f"t_{uuid.uuid4().hex}")


class TrackedConnection(sqlite3.Connection):
    """A connection that is listed in `open` until it is closed, unless its database is in memory.

    Python 3.13 warns of a connection that is deleted without being closed, at a random later moment; older versions do
    not warn at all. A database in memory holds no file: `SqliteMemory` closes it when it is deleted itself.
    """

    open: ClassVar[dict[int, tuple["TrackedConnection", str]]] = {}

    def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, *args, **kwargs)
        if database != ":memory:":
            self.open[id(self)] = (self, str(database))

    def close(self) -> None:
        """Close the connection and take it off the list."""
        super().close()
        self.open.pop(id(self), None)


sqlite3.connect = functools.partial(sqlite3.connect, factory=TrackedConnection)


@pytest.fixture(autouse=True)
def no_database_left_open() -> Iterator[None]:
    """Fail a test that leaves a database open; it is the first fixture to be made and the last to be torn down."""
    before = set(TrackedConnection.open)
    yield
    left = [path for key, (_, path) in TrackedConnection.open.items() if key not in before]
    if left:
        pytest.fail("\n  ".join(["the test left databases open:", *left]), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test, also below `@hypothesis.given`, where each example gets a fresh loop."""
    loop_factory = None if pyfuncitem.get_closest_marker("real_time") else VirtualTimeLoop
    test = pyfuncitem.obj
    examples = getattr(test, "hypothesis", None)
    if examples is not None and inspect.iscoroutinefunction(examples.inner_test):
        examples.inner_test = as_plain_function(examples.inner_test, loop_factory)
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters if name in pyfuncitem.funcargs
    }
    as_plain_function(test, loop_factory)(**arguments)
    return True


def as_plain_function(
    test: AsyncTest, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> Callable[..., None]:
    """`test` as pytest can call it: on a loop of its own, and failing if it leaves tasks or unseen errors behind."""

    @functools.wraps(test)
    def plain(*args: Any, **kwargs: Any) -> None:
        unseen: list[str] = []
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            loop = runner.get_loop()
            loop.set_exception_handler(lambda _, context: unseen.append(_in_words(context)))
            with _cancel_at_timeout(loop):
                runner.run(test(*args, **kwargs))
            pending = sorted(map(describe_task, asyncio.all_tasks(loop)))
        if pending:
            pytest.fail("\n  ".join(["the test left tasks behind:", *pending]), pytrace=False)
        if unseen:
            pytest.fail("\n  ".join(["errors that no code handled:", *unseen]), pytrace=False)

    return plain


@contextmanager
def _cancel_at_timeout(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Cancel all tasks when pytest-timeout fails the test: its exception is lost if it hits a background task."""
    fail = signal.getsignal(signal.SIGALRM)

    def cancel_and_fail(number: int, frame: FrameType | None) -> None:
        for task in asyncio.all_tasks(loop):
            loop.call_soon_threadsafe(task.cancel)
        if callable(fail):
            fail(number, frame)

    if not callable(fail):  # no timeout is set
        yield
        return
    signal.signal(signal.SIGALRM, cancel_and_fail)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, fail)


def _in_words(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
