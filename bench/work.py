"""The work that every side does, and how its cost is taken: the same words, tools, sizes and clock for all of them."""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import re
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

LEAD = "You lead. Split the task into independent parts, delegate each of them, and answer from what comes back."
WORKER = "You work on one part. Use the echo tool until you know enough, then answer with what you found."
TASK = "Look into the whole of it."
"""What the lead is asked; the fake model tells it from a worker by its prompt."""

DELEGATE = ("delegate", "Let a worker look into one part.", "task", "What the worker has to do.")
ECHO = ("echo", "Say a text back.", "text", "The text.")


class Work(Struct, frozen=True, kw_only=True):
    """One lead asks for so many workers in one turn; each makes its tool turns and then streams its answer.

    >>> Work(workers=3, turns=1).model
    'n3-k1-t20-l0-g0'
    >>> Work.named(_) == Work(workers=3, turns=1)
    True
    """

    workers: int = 1
    turns: int = 3
    tokens: int = 20
    latency_ms: int = 0
    """Before each reply begins."""
    gap_ms: int = 0
    """Between the tokens of an answer; without it a reply is sent as one piece."""

    @property
    def model_turns(self) -> int:
        """How many requests this takes."""
        return 2 + self.workers * (self.turns + 1)

    @property
    def model(self) -> str:
        """The name under which the fake model plays its part in this work."""
        return f"n{self.workers}-k{self.turns}-t{self.tokens}-l{self.latency_ms}-g{self.gap_ms}"

    @classmethod
    def named(cls, model: str) -> Work:
        """The work that a model of that name is for."""
        found = re.fullmatch(r"n(\d+)-k(\d+)-t(\d+)-l(\d+)-g(\d+)", model)
        if found is None:
            raise ValueError(f"no work is named {model!r}; expected something like n1-k3-t20-l0-g0")
        workers, turns, tokens, latency_ms, gap_ms = map(int, found.groups())
        return cls(workers=workers, turns=turns, tokens=tokens, latency_ms=latency_ms, gap_ms=gap_ms)


class Cost(Struct, frozen=True, kw_only=True):
    """What some rounds of work cost the process that did them."""

    cpu: float
    wall: float
    model_turns: int
    answers: str
    """A digest of all that the workers and the lead answered, in order."""
    peak_kb: int

    @property
    def cpu_per_turn(self) -> float:
        """Seconds of CPU for one request and all that belongs to it."""
        return self.cpu / self.model_turns


class Job(Struct, frozen=True, kw_only=True):
    """What a side is told on its command line."""

    url: str
    work: Work
    rounds: int
    warm_ups: int
    uvloop: bool
    home: str
    tool_kind: str
    profile: str


def job_from_arguments(words: Sequence[str] | None = None) -> Job:
    """Read the command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="the fake model's address")
    parser.add_argument("model", help="the work, as the name of the model that it is done with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds with one worker that are not counted")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--home", default=":memory:", help="the folder of retinue's store")
    parser.add_argument("--tool-kind", default="pure", help="the kind of retinue's echo tool")
    parser.add_argument("--profile", default="", help="write what cProfile sees of the counted rounds to this file")
    found = parser.parse_args(words)
    return Job(
        url=found.url,
        work=Work.named(found.model),
        rounds=found.rounds,
        warm_ups=found.warm_ups,
        uvloop=found.uvloop,
        home=found.home,
        tool_kind=found.tool_kind,
        profile=found.profile,
    )


Doing = Callable[[Work], Awaitable[list[str]]]
"""Does the work once, and gives the answers of the workers in the order in which they were asked for, then the lead's.
"""


async def measured(job: Job, do: Doing) -> Cost:
    """The cost of a side's rounds, after warm-ups that pay for imports, caches and the first connection."""
    small = msgspec.structs.replace(job.work, workers=1, latency_ms=0)
    for _ in range(job.warm_ups):
        await do(small)
    gc.collect()
    profile = _profile_into(job.profile)
    wall, cpu = time.perf_counter(), time.process_time()
    answers: list[list[str]] = [await do(job.work) for _ in range(job.rounds)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    profile()
    return Cost(
        cpu=cpu,
        wall=wall,
        model_turns=job.work.model_turns * job.rounds,
        answers=hashlib.sha256(msgspec.json.encode(answers)).hexdigest(),
        peak_kb=_peak_kb(),
    )


def run_side(job: Job, side: Callable[[], Awaitable[Cost]]) -> None:
    """Run a side on the event loop it was told to use, and print its cost for whoever started it."""

    async def main() -> Cost:
        return await side()

    with asyncio.Runner(loop_factory=_uvloop() if job.uvloop else None) as runner:
        cost = runner.run(main())
    sys.stdout.write(msgspec.json.encode(cost).decode() + "\n")


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    from importlib import import_module

    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def _profile_into(file: str) -> Callable[[], None]:
    """Begin to profile, if a file was named; calling what comes back ends it."""
    if not file:
        return lambda: None
    import cProfile

    profile = cProfile.Profile()
    profile.enable()

    def end() -> None:
        profile.disable()
        profile.dump_stats(file)

    return end


def _peak_kb() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak
