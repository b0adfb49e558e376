"""The workload that every side runs, and the measurement of its cost: prompts, tools, sizes and clock."""

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
WORKER = "You work on one part. Use the echo tool until you know enough, then answer with what you options."
TASK = "Look into the whole of it."
"""The task of the lead; the fake model distinguishes a lead from a worker by its system prompt."""

DELEGATE = ("delegate", "Let a worker look into one part.", "task", "What the worker has to do.")
ECHO = ("echo", "Say a text back.", "text", "The text.")


class Work(Struct, frozen=True, kw_only=True):
    """One lead starts `workers` in one turn; each makes `turns` tool turns and then streams `tokens`.

    >>> Work(workers=3, turns=1).model
    'n3-k1-t20-l0-g0'
    >>> Work.from_model(_) == Work(workers=3, turns=1)
    True
    """

    workers: int = 1
    turns: int = 3
    tokens: int = 20
    latency_ms: int = 0
    """Delay before each reply."""
    gap_ms: int = 0
    """Delay between the tokens of an answer; without it a reply is sent as one piece."""
    leads: int = 1
    """How many leads do this side by side, each with so many workers; a reply has a thousand calls at most."""

    @property
    def model_turns(self) -> int:
        """The number of model requests of this work."""
        return self.leads * (2 + self.workers * (self.turns + 1))

    @property
    def model(self) -> str:
        """The model name that makes the fake model serve this work."""
        return f"n{self.workers}-k{self.turns}-t{self.tokens}-l{self.latency_ms}-g{self.gap_ms}"

    @classmethod
    def from_model(cls, model: str) -> Work:
        """The work that a model name stands for."""
        match = re.fullmatch(r"n(\d+)-k(\d+)-t(\d+)-l(\d+)-g(\d+)", model)
        if match is None:
            raise ValueError(f"no work is named {model!r}; expected something like n1-k3-t20-l0-g0")
        workers, turns, tokens, latency_ms, gap_ms = map(int, match.groups())
        return cls(workers=workers, turns=turns, tokens=tokens, latency_ms=latency_ms, gap_ms=gap_ms)


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of some rounds of work in one process."""

    cpu: float
    wall: float
    model_turns: int
    answers: str
    """A digest of the answers of workers and lead, in order."""
    peak_kb: int

    @property
    def cpu_per_turn(self) -> float:
        """Seconds of CPU per model request."""
        return self.cpu / self.model_turns


class Job(Struct, frozen=True, kw_only=True):
    """The command line of a side."""

    url: str
    work: Work
    rounds: int
    warm_ups: int
    uvloop: bool
    home: str
    store: str
    tool_kind: str
    profile: str


def job_from_arguments(arguments: Sequence[str] | None = None) -> Job:
    """Parse the command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="the fake model's address")
    parser.add_argument("model", help="the work, as the name of the model that it is done with")
    parser.add_argument("--leads", type=int, default=1, help="how many leads work side by side")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds with one worker that are not counted")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--home", default=":memory:", help="the folder of retinue's store")
    parser.add_argument("--store", default="", help="the address of retinue's store, instead of a folder")
    parser.add_argument("--tool-kind", default="pure", help="the kind of retinue's echo tool")
    parser.add_argument("--profile", default="", help="write a cProfile of the counted rounds to this file")
    options = parser.parse_args(arguments)
    return Job(
        url=options.url,
        work=msgspec.structs.replace(Work.from_model(options.model), leads=options.leads),
        rounds=options.rounds,
        warm_ups=options.warm_ups,
        uvloop=options.uvloop,
        home=options.home,
        store=options.store,
        tool_kind=options.tool_kind,
        profile=options.profile,
    )


DoWork = Callable[[Work], Awaitable[list[str]]]
"""Does the work once; returns the answers of the workers, in the order of the calls, then the lead's."""


async def measure(job: Job, do: DoWork) -> Cost:
    """The cost of a side's rounds, after warm-ups for imports, caches and the first connection."""
    small = msgspec.structs.replace(job.work, workers=1, latency_ms=0, leads=1)
    for _ in range(job.warm_ups):
        await do(small)
    gc.collect()
    end_profile = _begin_profile(job.profile)
    wall, cpu = time.perf_counter(), time.process_time()
    answers: list[list[str]] = []
    for _ in range(job.rounds):
        answers += await asyncio.gather(*(do(job.work) for _ in range(job.work.leads)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    end_profile()
    return Cost(
        cpu=cpu,
        wall=wall,
        model_turns=job.work.model_turns * job.rounds,
        answers=hashlib.sha256(msgspec.json.encode(answers)).hexdigest(),
        peak_kb=_peak_kb(),
    )


def run_side(job: Job, side: Callable[[], Awaitable[Cost]]) -> None:
    """Run a side on the chosen event loop, and print its cost as JSON for the parent process."""

    async def main() -> Cost:
        return await side()

    with asyncio.Runner(loop_factory=_uvloop() if job.uvloop else None) as runner:
        cost = runner.run(main())
    sys.stdout.write(msgspec.json.encode(cost).decode() + "\n")


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    from importlib import import_module

    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def _begin_profile(file: str) -> Callable[[], None]:
    """Begin to profile, if a file was named; the returned function ends it and writes the file."""
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
