"""The fuzzing loop: make an input, check it, keep it if it reached something new, write it down if it is a finding."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.guidance import Guidance
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target, problem_of

MAX_CORPUS_BYTES = 200_000
"""How large the folder of one corpus may become by itself; findings are always written."""

SHRINK_SECONDS = 20.0


@dataclass(slots=True)
class Finding:
    """An input that a target does not handle."""

    data: bytes
    problem: BaseException
    file: Path


@dataclass(slots=True)
class Result:
    """What a session of fuzzing did."""

    inputs: int = 0
    lines: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    kept: list[bytes] = field(default_factory=list[bytes])
    """Inputs that reached something new, beyond the corpus."""


def fuzz(
    target: Target,
    corpus: Sequence[bytes],
    folder: Path,
    *,
    seed: int,
    seconds: float,
    inputs: int | None = None,
    log: Callable[[str], None] = print,
) -> Result:
    """Check inputs for so many seconds, or so many `inputs`; findings are written to `folder` and logged.

    A kind of problem (its type and place) is written once.
    """
    rng, guidance, result = random.Random(seed), Guidance(), Result()
    pool = [*corpus, *target.seeds] or [b""]
    known: set[str] = set()
    started = time.monotonic()
    todo = list(pool)
    while time.monotonic() - started < seconds and (inputs is None or result.inputs < inputs):
        is_new = not todo
        data = todo.pop() if todo else _next_input(rng, target, pool)
        before = guidance.lines
        with guidance.watch():
            problem = problem_of(target, data)
        result.inputs += 1
        if problem is not None:
            kind = _kind_of(problem)
            if kind not in known:
                known.add(kind)
                result.findings.append(_record(target, data, problem, folder, seed=seed, number=result.inputs, log=log))
        elif is_new and guidance.lines > before:
            pool.append(data)
            result.kept.append(data)
    result.lines = guidance.lines
    return result


def keep(result: Result, folder: Path) -> int:
    """Write the inputs that reached something new to the corpus, smallest first, as far as there is room."""
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(file.stat().st_size for file in folder.iterdir())
    written = 0
    for data in sorted(result.kept, key=len):
        if size + len(data) > MAX_CORPUS_BYTES:
            break
        (folder / f"kept-{_digest(data)}").write_bytes(data)
        size += len(data)
        written += 1
    return written


def _next_input(rng: random.Random, target: Target, pool: Sequence[bytes]) -> bytes:
    if target.generate is None:
        return mutate(rng, pool, target.words, max_bytes=target.max_bytes)
    if rng.random() < 0.25:
        return mutate(rng, pool, target.words, max_bytes=target.max_bytes)
    data = target.generate(rng)
    return data if rng.random() < 0.5 else mutate(rng, [data, *pool[-8:]], target.words, max_bytes=target.max_bytes)


def _kind_of(problem: BaseException) -> str:
    """The type of a problem and the place where it was raised."""
    trace, where = problem.__traceback__, ""
    while trace is not None:
        where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(problem).__name__} {where}"


def _record(
    target: Target,
    data: bytes,
    problem: BaseException,
    folder: Path,
    *,
    seed: int,
    number: int,
    log: Callable[[str], None],
) -> Finding:
    data = shrink(target, data, problem)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"finding-{seed}-{number}-{_digest(data)}"
    file.write_bytes(data)
    log(f"finding (seed {seed}, input {number}): {type(problem).__name__}: {problem}\n  {file}\n  {data[:300]!r}")
    return Finding(data, problem, file)


def shrink(target: Target, data: bytes, problem: BaseException) -> bytes:
    """A smaller input with the same kind of problem, as far as cutting out pieces finds one in some seconds."""
    kind, started = _kind_of(problem), time.monotonic()
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            if time.monotonic() - started > SHRINK_SECONDS:
                return data
            shorter = data[:at] + data[at + size :]
            found = problem_of(target, shorter)
            if found is not None and _kind_of(found) == kind:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
