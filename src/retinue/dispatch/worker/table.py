"""The workers of a store: what each says about itself, in a key-value namespace next to the rows of drivers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from retinue.core.commands import Decision, RunQuery
from retinue.core.ids import DriverId, RunId
from retinue.core.ports import KeyValue
from retinue.engine import Supervisor, is_gone

SPACE = "workers"


class WorkerFacts(Struct, frozen=True, kw_only=True):
    """What a worker says about itself when it starts."""

    version: str = ""
    tags: tuple[str, ...] = ()
    concurrency: int = 0


class LiveWorker(Struct, frozen=True, kw_only=True):
    """A worker that is not known to be dead, and the roots of the trees that it works on."""

    driver_id: DriverId
    host: str
    process: str
    version: str
    tags: tuple[str, ...]
    runs: tuple[RunId, ...]
    last_beat: float
    """When it wrote its last heartbeat, by its own clock."""
    lag: float
    """Seconds since then, by the clock of this process."""


async def add_worker(key_value: KeyValue, driver_id: DriverId, facts: WorkerFacts, living: frozenset[DriverId]) -> None:
    """Add this worker, and remove those that died without removing themselves."""

    def decide(content: Mapping[str, bytes]) -> Decision:
        gone = tuple(other for other in content if other not in living)
        return Decision(b"", puts={driver_id: msgspec.json.encode(facts)}, drops=gone)

    await key_value.change(SPACE, decide)


async def remove_worker(key_value: KeyValue, driver_id: DriverId) -> None:
    """Remove this worker."""
    await key_value.change(SPACE, lambda _: Decision(b"", drops=(driver_id,)))


async def live_workers(supervisor: Supervisor) -> list[LiveWorker]:
    """The living workers of a store, oldest first."""
    facts = await supervisor.key_value.look(SPACE)
    beats = await supervisor.drivers.last_beats()
    found: list[LiveWorker] = []
    for row in await supervisor.drivers.rows():
        if row.dead or row.driver_id not in facts or is_gone(row.host, row.process):
            continue
        beat, now = beats.get(row.driver_id, 0.0), supervisor.clock.now()
        about = msgspec.json.decode(facts[row.driver_id], type=WorkerFacts)
        driven = await supervisor.stored.runs(RunQuery(driver_id=row.driver_id, unfinished_only=True))
        found.append(
            LiveWorker(
                driver_id=row.driver_id,
                host=row.host.partition("/")[0],
                process=row.process.partition(":")[0],
                version=about.version,
                tags=about.tags,
                runs=tuple(dict.fromkeys(run.root_id for run in reversed(driven))),
                last_beat=beat,
                lag=max(0.0, now - beat),
            )
        )
    return found
