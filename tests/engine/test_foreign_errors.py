"""Exceptions of tools, providers and callbacks: none repeats a call, hangs a run or ends the process."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest

import retinue
from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.events import CallReturned
from retinue.core.messages import Reply
from retinue.core.ports import CallContext, PreparedCall, Publish, Request, Tool, ToolResult
from retinue.core.run import Approval
from retinue.engine.foreign_errors import is_recordable, message_of, repr_of
from retinue.providers.scripted import calls, says
from retinue.testing.harness import Harness


class UnprintableError(Exception):
    """An error whose `__str__` and `__repr__` raise."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class StrSubclassError(Exception):
    """An error whose `__str__` returns a subclass of str."""

    class Text(str):
        __slots__ = ()

    def __str__(self) -> str:
        return self.Text("no such pool")


class NotAnException(BaseException):
    """A BaseException, like the outcomes of test runners."""


# ---- messages -------------------------------------------------------------------------------------------------------


def test_an_error_whose_str_fails_is_described_by_its_type() -> None:
    assert (message_of(UnprintableError()), repr_of(UnprintableError())) == ("", "UnprintableError")
    assert (message_of(KeyError("a")), repr_of(KeyError("a"))) == ("'a'", "KeyError('a')")


def test_the_message_of_an_error_is_a_plain_str() -> None:
    assert type(message_of(StrSubclassError())) is str


# ---- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnprintableError(), "broken failed: UnprintableError"),
        (StrSubclassError(), "broken failed: StrSubclassError: no such pool"),
        (KeyboardInterrupt(), "broken failed: KeyboardInterrupt"),
        (GeneratorExit("gone"), "broken failed: GeneratorExit: gone"),
        (NotAnException("for good"), "broken failed: NotAnException: for good"),
    ],
)
async def test_any_exception_of_a_tool_is_a_result_and_the_run_continues(error: BaseException, text: str) -> None:
    times = 0

    @retinue.tool
    async def broken() -> str:
        """Break."""
        nonlocal times
        times += 1
        if times > 1:
            return "called again"
        raise error

    async with Harness(dialects=(), tools=[broken]) as r:
        r.script("main", calls("broken"), says("done"))
        outcome = await r.run("go")

        (returned,) = [event for event in r.events(r.run_of("main")) if isinstance(event, CallReturned)]
        assert (returned.text, returned.failed, returned.crashed) == (text, True, True)
        assert (outcome.result, outcome.text) == ("completed", "done")


# ---- providers and callbacks ----------------------------------------------------------------------------------------


class FailingProvider:
    """A provider that raises the given error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Raise; a repeated call fails the test."""
        self.asked += 1
        raise self.error if self.asked == 1 else AssertionError("asked again")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnprintableError(), "UnprintableError"),
        (GeneratorExit("gone"), "GeneratorExit: gone"),
        (SystemExit(3), "SystemExit: 3"),
        (NotAnException("for good"), "NotAnException: for good"),
    ],
)
async def test_any_exception_of_a_provider_fails_the_run_without_a_retry(error: BaseException, text: str) -> None:
    model = FailingProvider(error)
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

    assert (outcome.result, outcome.reason, outcome.error, model.asked) == ("failed", "model_error", text, 1)


class TimingOutProvider:
    """A provider with a timeout of its own."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Give up."""
        raise TimeoutError("no answer within 5 s")


async def test_a_timeout_of_the_provider_itself_is_not_reported_as_the_limit() -> None:
    async with retinue.open(provider=TimingOutProvider(), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

    told = "TimeoutError: no answer within 5 s (4 attempts were made; try again later)"
    assert (outcome.result, outcome.reason, outcome.error) == ("failed", "model_error", told)


async def test_a_callback_that_raises_without_a_message_denies() -> None:
    @retinue.tool(risk="medium")
    async def write() -> str:
        """Write."""
        return "written"

    def absent(question: Approval) -> bool:
        raise UnprintableError

    async with Harness(dialects=(), tools=[write], approvals=absent) as r:
        r.script("main", calls("write"), says("done"))
        await r.run("go")

        assert r.results("main") == ["A person refused this call: the approval callback failed: UnprintableError"]


class UnpreparableTool(Tool):
    """A tool that fails to prepare a call, with an exception that has no text."""

    spec = ToolSpec("riddle")
    kind: ToolKind = "pure"

    def prepare(self, arguments: str) -> PreparedCall:
        raise UnprintableError

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        raise AssertionError("its risk is not known")


async def test_a_bug_without_a_message_ends_its_run() -> None:
    async with Harness(dialects=(), tools=[UnpreparableTool()]) as r:
        r.script("main", calls("riddle"))
        outcome = await r.run("go")

    assert (outcome.result, outcome.reason, outcome.error) == ("failed", "bug", "internal error: UnprintableError")


# ---- interrupts and discarded calls ---------------------------------------------------------------------------------


@contextmanager
def sigint_handler(handler: object) -> Generator[None]:
    """Install a SIGINT handler."""
    before = signal.signal(signal.SIGINT, handler)  # pyright: ignore[reportArgumentType] all kinds of them are tried
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupts(number: int, frame: FrameType | None) -> None:
    """A handler as programs install it."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [interrupts, signal.default_int_handler])
def test_a_real_ctrl_c_is_reraised(handler: object) -> None:
    with sigint_handler(handler), pytest.raises(KeyboardInterrupt) as pressed:
        signal.raise_signal(signal.SIGINT)

    with sigint_handler(handler):
        assert not is_recordable(pressed.value, ())


def test_a_keyboard_interrupt_not_raised_by_a_handler_is_recorded() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        raise KeyboardInterrupt

    with sigint_handler(interrupts):
        assert is_recordable(raised.value, ())


async def test_a_discarded_call_records_nothing() -> None:
    async def call() -> str:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            if not is_recordable(error, ()):
                raise
        return "its own doing"

    thrown_away = call()
    thrown_away.send(None)

    with pytest.raises(GeneratorExit):
        thrown_away.throw(GeneratorExit())
