"""One call of a model in memory, for `retinue call` and `retinue buzz`: it answers one request with one run."""

from retinue.dispatch.worker.answer import PROVIDERS, WorkerCall, command_call, read_call

__all__ = ["PROVIDERS", "WorkerCall", "command_call", "read_call"]
