"""What a dialect works with, for tests and tools that make a dialect without opening a retinue."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.app.open import open as open_retinue
from retinue.core.agent import Agent
from retinue.dialects.context import DialectContext
from retinue.providers.scripted import Script, ScriptedProvider
from retinue.store.memory import MemoryStore


def dialect_context(*, agents: Sequence[Agent] = (), tool_names: Sequence[str] = ()) -> DialectContext:
    """A context with an empty store in memory and no live run: enough to make a dialect and look at its tools.

    For a dialect at work, use `retinue.testing.Harness`.

    >>> dialect_context(tool_names=["search_logs"]).tool_names
    ['search_logs']
    """
    provider = ScriptedProvider(Script())
    supervisor = open_retinue(provider=provider, store=MemoryStore(), dialects=()).supervisor
    return DialectContext(
        supervisor=supervisor,
        key_value=supervisor.key_value,
        clock=supervisor.clock,
        agents=agents,
        tool_names=tool_names,
        resolve=lambda model, caller_spec: (caller_spec.provider, model or caller_spec.model),
    )
