"""Workers: processes that take runs without a driver from a shared store and drive them (`retinue worker`)."""

from retinue.dispatch.worker.schedules import Schedules
from retinue.dispatch.worker.table import LiveWorker, live_workers
from retinue.dispatch.worker.worker import WorkerOptions, serve

__all__ = ["LiveWorker", "Schedules", "WorkerOptions", "live_workers", "serve"]
