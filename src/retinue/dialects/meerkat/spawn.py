"""How sub-agents of `meerkat` come into being: `agent_spawn` with nothing but a prompt, `agent_fork` with everything.

A call is checked in the order of the document: shape, limits, nesting, prompt, host mode, provider, model, client, and
the limits once more at the moment of birth.
"""

from __future__ import annotations

from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.errors import Refused
from retinue.core.ids import RunId
from retinue.core.ports import CallContext
from retinue.core.run import Lifecycle, Limits
from retinue.dialects.arguments import CallRefused
from retinue.dialects.meerkat import NAME, comms, schema
from retinue.dialects.meerkat.models import ResolvedModel, resolve_model
from retinue.dialects.meerkat.requests import (
    Budget,
    ForkRequest,
    SpawnArguments,
    StrictSpawnArguments,
    access_of,
    budget_of,
    failed,
    fixed_budget,
    invalid,
    parsed,
)
from retinue.dialects.meerkat.schema import AGENT_TOOLS
from retinue.dialects.meerkat.tool import AgentTool
from retinue.dialects.meerkat.views import FORK, HOST, SUB_AGENT, name_of, own_name
from retinue.engine import SpawnRequest


class BirthTool(AgentTool):
    """What spawning and forking have in common."""

    cannot = ""
    nested = ""
    unregistered = ""

    # Limits

    def _check_limits(self, context: CallContext) -> None:
        if context.depth >= self._settings.concurrency_limits.max_depth or self._excess(context):
            raise failed(f"{self.cannot}: concurrency or depth limit reached")
        if context.depth > 0 and not self._settings.allow_nested_spawn:
            raise failed(f"{self.nested} is not allowed at this depth")

    def _check_birth(self, context: CallContext) -> None:
        """The limits once more: others may have been born since the call was checked."""
        if excess := self._excess(context):
            raise failed(f"{self.unregistered}: {excess}")

    def _excess(self, context: CallContext) -> str:
        """Which count has no room for one more."""
        limits, crowd = self._settings.concurrency_limits, self._kin.crowd(context)
        if crowd.agents >= limits.max_concurrent_agents:
            return f"Sub-agent limit exceeded: max {limits.max_concurrent_agents} concurrent sub-agents"
        if crowd.children >= limits.max_children_per_agent:
            return f"Concurrency limit exceeded: max {limits.max_children_per_agent} children per agent"
        if crowd.operations >= limits.max_concurrent_ops:
            return f"Concurrency limit exceeded: max {limits.max_concurrent_ops} concurrent operations"
        return ""

    # Birth

    def _mind(self, provider: str | None, model: str | None, context: CallContext, *, fork: bool) -> ResolvedModel:
        caller_spec = self._kin.caller(context).run.run_spec
        return resolve_model(
            provider, model, caller_spec, families=self._dialect_context.families, settings=self._settings, fork=fork
        )

    def _brief(
        self, context: CallContext, resolved: ResolvedModel, agent: str, system: str, offered: tuple[str, ...]
    ) -> RunSpec:
        caller_spec = self._kin.caller(context).run.run_spec
        # A sub-agent works for its parent, also where the settings have an agent that happens to be called like it.
        own = self._dialect_context.run_spec_for(
            caller_spec, agent=caller_spec.identity or caller_spec.agent, system=system, offered=offered
        )
        run_spec = replace(own, agent=agent)
        if (resolved.provider, resolved.model) == (caller_spec.provider, caller_spec.model):
            return run_spec
        temperature = (
            caller_spec.temperature
            if resolved.provider == caller_spec.provider
            else self._dialect_context.temperature(resolved.provider)
        )
        return replace(run_spec, provider=resolved.provider, model=resolved.model, temperature=temperature, fallback=())

    async def _start(self, spawn_request: SpawnRequest, context: CallContext) -> RunId:
        try:
            started = await self._supervisor.spawn(
                spawn_request, session_id=context.session_id, caller=context, key=context.key
            )
        except CallRefused:
            raise
        except Refused as refused:
            raise failed(f"{self.unregistered}: {refused}") from refused
        return started.run_id

    async def _begun(self, context: CallContext) -> tuple[RunId, str, RunSpec] | None:
        """What this call started before a crash: it is answered as it would have been then."""
        row = await self._dialect_context.begun(context)
        if row is None:
            return None
        return row.run_id, row.agent, await self._supervisor.stored.run_spec(row.run_spec)

    # What a child is given

    def _inherited(self, context: CallContext) -> tuple[str, ...]:
        """The caller's tools that a child may have; delegation is among them only where the settings say so."""
        kept_back = comms.names(self._settings)
        if not self._settings.nested_tools:
            kept_back += AGENT_TOOLS
        return tuple(name for name in context.offered if name not in kept_back)

    def _first_message(self, prompt: str, context: CallContext) -> str:
        if not self._settings.enable_comms:
            return prompt
        return comms.block(own_name(context), self._settings) + prompt

    def _capped(self, tokens: int | None) -> int | None:
        most = self._settings.max_budget_per_agent
        return tokens if most is None else most if tokens is None else min(tokens, most)

    def _told(
        self, run_id: RunId, agent: str, run_spec: RunSpec, more: dict[str, object], message: str
    ) -> dict[str, object]:
        """What the caller reads about its new child."""
        name = name_of(run_id, agent)
        answer: dict[str, object] = {
            "agent_id": run_id,
            "name": name,
            "provider": self._dialect_context.families.family(run_spec.provider) or run_spec.provider,
            "model": run_spec.model,
            "state": "running",
            **more,
            "message": message,
        }
        if self._settings.enable_comms:
            answer["comms"] = comms.to_child(name, "fork" if agent == FORK else "child", self._settings)
        return answer


class SpawnTool(BirthTool):
    """`agent_spawn`: a child that knows nothing but its prompt."""

    tool = schema.SPAWN
    cannot = "Cannot spawn sub-agent"
    nested = "Nested spawning"
    unregistered = "Failed to spawn sub-agent"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        if (begun := await self._begun(context)) is not None:
            return self._spawned(*begun)
        request = parsed(arguments, SpawnArguments if self._settings.enable_comms else StrictSpawnArguments)
        access, budget = access_of(request.tool_access), budget_of(request.budget)
        self._check_limits(context)
        if not request.prompt.strip():
            raise invalid("Prompt cannot be empty")
        if request.host_mode and not self._settings.enable_comms:
            raise invalid("host_mode requires comms to be enabled for sub-agents")
        resolved = self._mind(request.provider, request.model, context, fork=False)
        agent = HOST if request.host_mode else SUB_AGENT
        offered = (*access.among(self._inherited(context)), *comms.names(self._settings))
        run_spec = self._brief(context, resolved, agent, self._system(request.system_prompt, offered), offered)
        spawn_request = SpawnRequest(
            agent=agent,
            run_spec=run_spec,
            task=self._first_message(request.prompt, context),
            limits=self._limits(budget),
            lifecycle=Lifecycle(keep_alive=agent == HOST, announce=True, on_parent_end="wait"),
            dialect=NAME,
            check=lambda: self._check_birth(context),
        )
        return self._spawned(await self._start(spawn_request, context), agent, run_spec)

    def _system(self, asked: str | None, offered: tuple[str, ...]) -> str:
        if asked is not None:
            return asked
        return comms.usage_of(offered, self._settings) if self._settings.inherit_system_prompt else ""

    def _limits(self, budget: Budget) -> Limits:
        asked = self._settings.default_budget if budget.max_tokens is None else budget.max_tokens
        return Limits(max_tokens=self._capped(asked), max_turns=budget.max_turns, max_calls=budget.max_tool_calls)

    def _spawned(self, run_id: RunId, agent: str, run_spec: RunSpec) -> dict[str, object]:
        return self._told(run_id, agent, run_spec, {}, schema.SPAWNED)


class ForkTool(BirthTool):
    """`agent_fork`: a child that knows the whole conversation."""

    tool = schema.FORK
    cannot = "Cannot fork agent"
    nested = "Nested forking"
    unregistered = "Failed to spawn forked agent"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        if (begun := await self._begun(context)) is not None:
            run_id, _, run_spec = begun
            return self._forked(run_id, run_spec, context)
        request = parsed(arguments, ForkRequest)
        access = access_of(request.tool_access)
        self._check_limits(context)
        if not request.prompt.strip():
            raise invalid("Fork prompt cannot be empty")
        resolved = self._mind(request.provider, request.model, context, fork=True)
        if self._settings.fork_keeps_tools and access.policy == "inherit":
            offered = context.offered
        else:
            offered = (*access.among(self._inherited(context)), *comms.names(self._settings))
        system = self._kin.caller(context).run.system
        run_spec = self._brief(context, resolved, FORK, system, offered)
        spawn_request = SpawnRequest(
            agent=FORK,
            run_spec=run_spec,
            task=self._first_message(request.prompt, context),
            limits=Limits(max_tokens=self._budget(request.budget_policy or "equal", context)),
            lifecycle=Lifecycle(announce=True, on_parent_end="wait"),
            inherits=self._supervisor.fork_point(context.run_id),
            dialect=NAME,
            check=lambda: self._check_birth(context),
        )
        return self._forked(await self._start(spawn_request, context), run_spec, context)

    def _budget(self, policy: str, context: CallContext) -> int | None:
        if (fixed := fixed_budget(policy)) is not None:
            return self._capped(fixed)
        left = self._supervisor.left(context.run_id).tokens
        if left is None or policy not in ("remaining", "proportional"):
            return self._capped(self._settings.default_budget)
        if policy == "remaining":
            return self._capped(left)
        more = self._settings.concurrency_limits.max_children_per_agent - self._kin.crowd(context).children
        return self._capped(left // max(1, more))

    def _forked(self, run_id: RunId, run_spec: RunSpec, context: CallContext) -> dict[str, object]:
        caller = self._kin.caller(context).run
        # The reply with the call in progress is the last message; it is no part of what was said before.
        inherited: dict[str, object] = {"messages_inherited": len(caller.history) - 1}
        answer = self._told(run_id, FORK, run_spec, inherited, schema.FORKED)
        return answer | {"cache": _cache(run_spec, caller.run_spec)}


def _cache(run_spec: RunSpec, caller_spec: RunSpec) -> str:
    """Whether a fork's request begins with the same bytes as its parent's, and if not, why."""
    if (run_spec.provider, run_spec.model) != (caller_spec.provider, caller_spec.model):
        return "lost: another model"
    if run_spec.output != caller_spec.output:
        return "lost: another form of answer"
    return "shared" if run_spec.offered == caller_spec.offered else "lost: other tools"
