"""What a dialect works with: the supervisor's verbs, the session's shelf, and what the application registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from retinue.core.agent import Agent, RunSpec
from retinue.core.budget import Window
from retinue.core.commands import RunRow
from retinue.core.errors import TreeCancelled
from retinue.core.ids import RunId
from retinue.core.policy import Policy, Risk, Verdict, intersect, verdict
from retinue.core.ports import CallContext, Clock, KeyValue, Meter, NoMeter
from retinue.core.profiles import windows_of
from retinue.engine import Supervisor


class ProviderFamilies(Protocol):
    """The providers of the process, as far as it matters whose models they have."""

    def names(self) -> Sequence[str]:
        """Every provider that can be named here."""
        ...

    def family(self, provider: str) -> str | None:
        """Whose way of talking a provider speaks: `anthropic`, `openai`, `gemini` or nobody's."""
        ...

    def called(self, name: str) -> str | None:
        """The family that a model means by a name, in any case; None for a name that means none."""
        ...

    def member(self, family: str) -> str:
        """A provider of that family: one of the settings, or the vendor itself."""
        ...

    def complaint(self, provider: str) -> str:
        """Why a provider cannot be asked; empty when it can, as far as one can tell without asking."""
        ...

    def is_local(self, provider: str) -> bool:
        """Whether it is a server of the user's own."""
        ...

    def in_process(self, provider: str) -> str | None:
        """The provider that asks the same models from a process of its own; None where no process could."""
        ...

    def wire(self, provider: str) -> str:
        """The name of the wire that a provider speaks; its own name if it is an object that was handed in."""
        ...

    def secrets(self) -> Sequence[str]:
        """The keys that providers are asked with: what must never be written down."""
        ...


class NoProviderFamilies:
    """Where nobody knows any."""

    def names(self) -> Sequence[str]:
        """None."""
        return ()

    def family(self, provider: str) -> str | None:
        """Nobody's."""
        return None

    def called(self, name: str) -> str | None:
        """None."""
        return None

    def member(self, family: str) -> str:
        """Its own name."""
        return family

    def complaint(self, provider: str) -> str:
        """None."""
        return ""

    def is_local(self, provider: str) -> bool:
        """It may be."""
        return True

    def in_process(self, provider: str) -> str | None:
        """None."""
        return None

    def wire(self, provider: str) -> str:
        """Its own name."""
        return provider

    def secrets(self) -> Sequence[str]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectContext:
    """Handed to every dialect when a retinue is opened.

    `agents` are those of the application, in the order of its settings. `tool_names` are all tools of the application,
    without delegation tools. `resolve` gives provider and model for the name of a model in the context of the caller's
    run spec, `temperature` the temperature that the settings give a provider.
    """

    supervisor: Supervisor
    key_value: KeyValue
    clock: Clock
    agents: Sequence[Agent]
    tool_names: Sequence[str]
    resolve: Callable[[str, RunSpec], tuple[str, str]]
    temperature: Callable[[str], float | None] = lambda provider: None
    families: ProviderFamilies = field(default_factory=NoProviderFamilies)
    meter: Meter = field(default_factory=NoMeter)

    def tools_within(self, policy: Policy) -> tuple[str, ...]:
        """The application's tools that a policy does not take away."""
        return tuple(
            name for name in self.tool_names if verdict(policy, tool=name, risk=Risk.LOW).verdict is not Verdict.REFUSE
        )

    def run_spec_for(
        self,
        caller_spec: RunSpec,
        *,
        agent: str,
        system: str,
        offered: tuple[str, ...],
        model: str = "",
        fallback: tuple[str, ...] = (),
    ) -> RunSpec:
        """The brief of a child: on the asker's model, or on the one that `model` means to the asker.

        An agent of the application works under its own name, in its own workspace if it has one. Any other works for
        the asker: with the asker's memory and in the asker's workspace.

        A fallback belongs to its model: a child without a model of its own has the asker's, unless it names another.
        """
        provider, name = self.resolve(model, caller_spec)
        own = replace(caller_spec, provider=provider, model=name)
        others = tuple(self.resolve(other, own) for other in fallback)
        temperature = caller_spec.temperature if provider == caller_spec.provider else self.temperature(provider)
        known = self.known(agent)
        if known is not None and agent != caller_spec.identity:
            caller_spec = replace(
                caller_spec,
                identity=agent,
                memory_from=known.memory_from,
                workspace=known.workspace or caller_spec.workspace,
                think=caller_spec.think or known.think,
            )
        return replace(
            caller_spec,
            agent=agent,
            system=system,
            offered=offered,
            provider=provider,
            model=name,
            fallback=others if model or fallback else caller_spec.fallback,
            temperature=temperature,
            output=None,  # a child answers its caller in words, unless somebody says otherwise
            launch_config="",
        )

    def known(self, agent: str) -> Agent | None:
        """The application's agent of that name; one that a model has defined is none of them."""
        return next((each for each in self.agents if each.name == agent), None)

    def grant(self, agent: str, caller: Policy) -> tuple[Policy | None, tuple[Window, ...]]:
        """What a child of that name asks for under its caller's policy, and the windows that it draws on besides.

        None and none where nobody wrote a policy for it: then it has the caller's.
        """
        known = self.known(agent)
        if known is None or known.policy is None:
            return None, ()
        policy = intersect(caller, known.policy)
        return policy, windows_of(agent, policy)

    async def take_action(self, context: CallContext) -> bool:
        """Charge one action of the calling run; False if its windows have none left."""
        return await self.supervisor.take_action(context.run_id)

    async def begun(self, context: CallContext) -> RunRow | None:
        """The run that this call started before a crash, whatever today's settings would say about it."""
        if not context.again:
            return None
        return await self.supervisor.stored.run_by_key(context.key)

    def run_spec_of(self, run_id: RunId) -> RunSpec:
        """What a live run shares with its siblings."""
        live = self.supervisor.live(run_id)
        if live is None:
            raise TreeCancelled(run_id)
        return live.run.run_spec
