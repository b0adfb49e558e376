"""The tools of `meerkat`, and its notices about sub-agents that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retinue.core.agent import Agent
from retinue.core.errors import BadInput
from retinue.core.events import RunAccepted
from retinue.core.ports import Tool
from retinue.core.run import Outcome
from retinue.dialects.base import Dialect
from retinue.dialects.context import DialectContext
from retinue.dialects.meerkat import NAME, comms, views
from retinue.dialects.meerkat.schema import CANCEL, FORK, LIST, SPAWN, STATUS
from retinue.dialects.meerkat.settings import DEFAULTS, MeerkatSettings, mistakes
from retinue.dialects.meerkat.spawn import ForkTool, SpawnTool
from retinue.dialects.meerkat.status import CancelTool, ListTool, StatusTool
from retinue.dialects.meerkat.views import KEPT, name_of

TASK_SHOWN = 200
"""Characters of a task that the news of its end repeats."""


class MeerkatDialect(Dialect):
    """The five tools, and the comms tools where parents and children may talk."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: MeerkatSettings = DEFAULTS) -> None:
        for key, complaint in mistakes(settings):
            raise BadInput(f"[sub_agents] {key}: {complaint}")
        dialect_context.supervisor.limit_remembered(NAME, KEPT)
        self._dialect_context = dialect_context
        self._settings = settings
        self._tools: dict[str, Tool] = {
            SPAWN: SpawnTool(dialect_context, settings),
            FORK: ForkTool(dialect_context, settings),
            STATUS: StatusTool(dialect_context, settings),
            CANCEL: CancelTool(dialect_context, settings),
            LIST: ListTool(dialect_context, settings),
        }
        self._tools |= comms.tools(dialect_context, settings)

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools, in the order of its document."""
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """How the tools are meant."""
        return comms.usage_of(offered, self._settings)

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """What a parent reads of a child that has ended: its task again, and its words, which are only information."""
        state = views.state_of(outcome, accepted.agent)
        name = name_of(accepted.run_id, accepted.agent)
        task = comms.without_block(accepted.task) if self._settings.enable_comms else accepted.task
        if state == "completed":
            words = views.output_of(outcome, self._last_words(accepted))
        else:
            words = views.error_of(outcome)
        return f"[sub-agent {name} {state}] Task: {task[:TASK_SHOWN]}\n{words}"

    def _last_words(self, accepted: RunAccepted) -> str:
        """What a run that stays has said before the exchange in which it ends."""
        live = self._dialect_context.supervisor.live(accepted.run_id)
        return live.run.exchanges[-1].text if live is not None and live.run.exchanges else ""
