"""What a dialect works with: the supervisor's verbs, the session's shelf, and what the application registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from retinue.core.agent import Agent, Brief
from retinue.core.errors import TreeCancelled
from retinue.core.ids import RunId
from retinue.core.policy import Policy, Risk, Verdict, verdict
from retinue.core.ports import CallContext, Clock, Shelf
from retinue.core.records import RunRow
from retinue.engine.supervisor import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Handed to every dialect when a retinue is opened.

    `agents` are those of the application, in the order of its settings; `registry` names every tool it has, delegation
    tools left out. `resolve` gives provider and model for a model's name as an asker with that brief means it,
    `temperature` what the settings say for a provider.
    """

    supervisor: Supervisor
    shelf: Shelf
    clock: Clock
    agents: Sequence[Agent]
    registry: Sequence[str]
    resolve: Callable[[str, Brief], tuple[str, str]]
    temperature: Callable[[str], float | None] = lambda provider: None

    def tools_within(self, policy: Policy) -> tuple[str, ...]:
        """The application's tools that a policy does not take away."""
        return tuple(
            name for name in self.registry if verdict(policy, tool=name, risk=Risk.LOW).verdict is not Verdict.REFUSE
        )

    def brief_for(
        self,
        asker: Brief,
        *,
        agent: str,
        system: str,
        offered: tuple[str, ...],
        model: str = "",
        fallback: tuple[str, ...] = (),
    ) -> Brief:
        """The brief of a child: on the asker's model, or on the one that `model` means to the asker.

        A fallback belongs to its model: a child without a model of its own has the asker's, unless it names another.
        """
        provider, name = self.resolve(model, asker)
        own = replace(asker, provider=provider, model=name)
        others = tuple(self.resolve(other, own) for other in fallback)
        temperature = asker.temperature if provider == asker.provider else self.temperature(provider)
        return replace(
            asker,
            agent=agent,
            system=system,
            offered=offered,
            provider=provider,
            model=name,
            fallback=others if model or fallback else asker.fallback,
            temperature=temperature,
            output=None,  # a child answers its caller in words, unless somebody says otherwise
            setup="",
        )

    async def begun(self, context: CallContext) -> RunRow | None:
        """The run that this call started before a crash, whatever today's settings would say about it."""
        if not context.again:
            return None
        parts = self.supervisor.parts
        return await parts.journal.read(parts.store.run_by_key, context.key)

    def brief_of(self, run_id: RunId) -> Brief:
        """What a live run shares with its siblings."""
        driven = self.supervisor.roster.live.get(run_id)
        if driven is None:
            raise TreeCancelled(run_id)
        return driven.run.brief
