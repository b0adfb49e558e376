"""One call of a model in memory, for `retinue call` and `retinue buzz`: it answers one request with one run."""

from retinue.dispatch.one_call.answer import PROVIDERS, OneCall, command_call, read_call

__all__ = ["PROVIDERS", "OneCall", "command_call", "read_call"]
