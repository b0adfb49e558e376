"""Health, readiness and metrics of a worker over HTTP, for service managers and Prometheus.

The server has no secrets and changes nothing; it listens only where `--health` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from retinue.app.retinue import Retinue
from retinue.core.commands import Phase, RunQuery
from retinue.core.errors import BadInput, StoreError
from retinue.engine import CommitTimes
from retinue.version import __version__

if TYPE_CHECKING:
    from types import TracebackType

PHASES: tuple[Phase, ...] = ("pending", "placed", "queued", "working", "parked", "idle")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthCounts(Protocol):
    """Numbers of a worker since its start."""

    @property
    def taken(self) -> int: ...
    @property
    def takeovers(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class HealthServer:
    """Serves `/healthz`, `/readyz` and `/metrics` at an address, if there is one, inside an `async with` block."""

    def __init__(self, address: tuple[str, int] | None, counts: HealthCounts) -> None:
        self._address = address
        self._counts = counts
        self._retinue: Retinue | None = None
        self._runner: web.AppRunner | None = None

    def watch(self, retinue: Retinue | None) -> None:
        """Report about this open retinue; None while there is none."""
        self._retinue = retinue

    async def __aenter__(self) -> HealthServer:
        if self._address is None:
            return self
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        host, port = self._address
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise BadInput(f"--health {host}:{port}: {error.strerror or error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def port(self) -> int | None:
        """The port on which it listens; None if it does not."""
        addresses = self._runner.addresses if self._runner is not None else []
        return addresses[0][1] if addresses else None

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(text="ready\n") if reason is None else web.Response(status=503, text=f"{reason}\n")

    def _not_ready(self) -> str | None:
        retinue = self._retinue
        if retinue is None or retinue.supervisor.is_fenced:
            return "not connected to the store"
        if retinue.driver.seconds_since_heartbeat >= retinue.driver.lease:
            return "the store has had no heartbeat for the length of the lease"
        return None

    async def _metrics(self, _: web.Request) -> web.Response:
        retinue = self._retinue
        lines = [
            *_metric("retinue_worker_info", "gauge", "The version of the worker.", {f'version="{__version__}"': 1}),
            *_metric("retinue_worker_ready", "gauge", "Whether runs are taken.", {"": int(self._not_ready() is None)}),
            *_metric("retinue_trees_taken_total", "counter", "Trees taken by this worker.", {"": self._counts.taken}),
            *_metric(
                "retinue_takeovers_total",
                "counter",
                "Trees taken over from other drivers.",
                {"": self._counts.takeovers},
            ),
            *_metric("retinue_trees_ended_total", "counter", "Trees that ended here.", {"": self._counts.finished}),
            *_metric(
                "retinue_queue_depth", "gauge", "Trees that wait for room in this worker.", {"": self._counts.waiting}
            ),
        ]
        if retinue is not None:
            lines += await _store_metrics(retinue)
            lines += _commit_metrics(retinue.driver.commit_times)
        return web.Response(text="\n".join((*lines, "")), headers={"Content-Type": METRICS_TYPE})


async def _store_metrics(retinue: Retinue) -> list[str]:
    stored = retinue.supervisor.stored
    try:
        phases = {f'state="{phase}"': await stored.count(RunQuery(phase=phase)) for phase in PHASES}
        undriven = await stored.count(RunQuery(unfinished_only=True, undriven_only=True))
    except StoreError:
        return []
    live = len(retinue.supervisor.live_runs())
    return [
        *_metric("retinue_runs", "gauge", "Unfinished runs of the store by their state.", phases),
        *_metric("retinue_runs_undriven", "gauge", "Unfinished runs of the store without a driver.", {"": undriven}),
        *_metric("retinue_runs_driven", "gauge", "Runs that this worker drives.", {"": live}),
    ]


def _commit_metrics(times: CommitTimes) -> list[str]:
    name = "retinue_commit_seconds"
    lines = [f"# HELP {name} Seconds of a commit to the store.", f"# TYPE {name} histogram"]
    total = 0
    for bound, count in zip((*times.BOUNDS, "+Inf"), times.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
    return [*lines, f"{name}_sum {times.seconds:.6f}", f"{name}_count {total}"]


def _metric(name: str, kind: str, about: str, values: dict[str, int]) -> list[str]:
    samples = [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values.items()]
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples]
