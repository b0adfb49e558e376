"""What a fuzz target is, where the targets and their corpora are, and the check of one input under a time limit."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One parser under test.

    `check` takes any bytes and returns if they are handled as they should be. An `AssertionError`, or any other
    exception, is a finding, and so is an input that takes more than `seconds` of CPU time.
    """

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...] = ()
    """Inputs to begin with, besides the files of the corpus."""
    words: tuple[bytes, ...] = ()
    """Tokens of the language, which mutations insert."""
    generate: Callable[[random.Random], bytes] | None = None
    """A new input of the target's own making; used for half of the inputs."""
    seconds: float = 5.0
    max_bytes: int = 16_384
    """The longest input that mutations make."""


class TooSlow(BaseException):
    """An input took more CPU time than its target allows; no `Exception`, so that the code under test lets it pass."""


def names() -> list[str]:
    """The names of all targets."""
    return sorted(file.stem for file in (HERE / "targets").glob("[!_]*.py"))


def load(name: str) -> Target:
    """The target of this name."""
    target = import_module(f"tests.fuzz.targets.{name}").TARGET
    assert isinstance(target, Target), f"tests/fuzz/targets/{name}.py has no TARGET"
    return target


def corpus_files(name: str) -> list[Path]:
    """The files of a target's corpus, in order of their names."""
    folder = CORPUS / name
    return sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []


@contextmanager
def cpu_limit(seconds: float) -> Generator[None]:
    """Raise `TooSlow` in the block after so many seconds of CPU time; a busy machine does not count. Main thread only.

    Code that swallows the exception does not get away with it: it is raised again at the end of the block.
    """
    is_late = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_late
        is_late = True
        raise TooSlow(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if is_late:
        raise TooSlow(f"more than {seconds:g} s of CPU time")


def problem_of(target: Target, data: bytes) -> BaseException | None:
    """What `target` finds in an input; None if nothing."""
    try:
        with cpu_limit(target.seconds):
            target.check(data)
    except (Exception, TooSlow) as error:
        return error
    return None
