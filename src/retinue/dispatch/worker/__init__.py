"""The worker process behind `retinue call`: it reads one request and answers it with one run in memory."""

from retinue.dispatch.worker.answer import WorkerCall, read_call

__all__ = ["WorkerCall", "read_call"]
