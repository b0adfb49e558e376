"""`agent_spawn`, which starts a sub-agent with a prompt alone, and `agent_fork`, which gives it the conversation.

A call is checked in the order of the document: shape, limits, nesting, prompt, host mode, provider, model, client, and
the limits once more when the run is accepted.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec, ToolSpec
from retinue.core.errors import Refused
from retinue.core.ids import RunId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext
from retinue.core.run import Lifecycle, Limits
from retinue.dialects.context import ProviderFamilies
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.meerkat import NAME, answers, comms, requests
from retinue.dialects.meerkat.answers import FORK_AGENT, HOST_AGENT, SUB_AGENT, child_name, failed, invalid
from retinue.dialects.meerkat.relatives import RelativesTool, own_name
from retinue.dialects.meerkat.requests import arguments_struct
from retinue.dialects.meerkat.settings import DEFAULT_MODELS, INHERIT, MeerkatSettings
from retinue.engine import SpawnRequest
from retinue.providers.catalog import LOCAL_SERVERS


class StartTool(RelativesTool):
    """Base class of both tools; subclasses set the beginnings of refusals."""

    cannot = ""
    nested = ""
    unregistered = ""

    def _check_limits(self, context: CallContext) -> None:
        if context.depth >= self._settings.concurrency_limits.max_depth or self._excess(context):
            raise failed(f"{self.cannot}: concurrency or depth limit reached")
        if context.depth > 0 and not self._settings.allow_nested_spawn:
            raise failed(f"{self.nested} is not allowed at this depth")

    def _check_start(self, context: CallContext) -> None:
        """Check the limits again: other runs may have started since the call was checked."""
        if excess := self._excess(context):
            raise failed(f"{self.unregistered}: {excess}")

    def _excess(self, context: CallContext) -> str:
        """The limit that another sub-agent would exceed; empty if none."""
        limits, running = self._settings.concurrency_limits, self._relatives.running_counts(context)
        if running.agents >= limits.max_concurrent_agents:
            return f"Sub-agent limit exceeded: max {limits.max_concurrent_agents} concurrent sub-agents"
        if running.children >= limits.max_children_per_agent:
            return f"Concurrency limit exceeded: max {limits.max_children_per_agent} children per agent"
        if running.operations >= limits.max_concurrent_ops:
            return f"Concurrency limit exceeded: max {limits.max_concurrent_ops} concurrent operations"
        return ""

    def _resolve(self, provider: str | None, model: str | None, context: CallContext, *, fork: bool) -> ResolvedModel:
        caller_spec = self._relatives.caller(context).run.run_spec
        return resolve_model(
            provider, model, caller_spec, families=self._dialect_context.families, settings=self._settings, fork=fork
        )

    def _run_spec(
        self, context: CallContext, resolved: ResolvedModel, agent: str, system: str, offered: tuple[str, ...]
    ) -> RunSpec:
        caller_spec = self._relatives.caller(context).run.run_spec
        # A sub-agent works for its parent, also if the settings have an agent of the same name.
        own = self._dialect_context.run_spec_for(
            caller_spec, agent=caller_spec.identity or caller_spec.agent, system=system, offered=offered
        )
        run_spec = replace(own, agent=agent)
        if (resolved.provider, resolved.model) == (caller_spec.provider, caller_spec.model):
            return run_spec
        temperature = self._dialect_context.temperature(resolved.provider)
        return replace(run_spec, provider=resolved.provider, model=resolved.model, temperature=temperature, fallback=())

    async def _start(self, spawn_request: SpawnRequest, context: CallContext) -> RunId:
        try:
            started = await self._dialect_context.spawn(spawn_request, context)
        except CallRefused:
            raise
        except Refused as refused:
            raise failed(f"{self.unregistered}: {refused}") from refused
        return started.run_id

    async def _begun(self, context: CallContext) -> tuple[RunId, str, RunSpec] | None:
        """The run that this call started before a crash."""
        row = await self._dialect_context.begun(context)
        if row is None:
            return None
        return row.run_id, row.agent, await self._supervisor.stored.run_spec(row.run_spec)

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        usable = [name for name in requests.FAMILIES if _has_models_of(name, self._dialect_context.families)]
        return requests.specs(self._settings, self.inheritable(offered), usable)[self.tool]

    def inheritable(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        """The caller's tools that a child may have; the agent tools only if the settings allow nesting."""
        kept_back = comms.names(self._settings)
        if not self._settings.nested_tools:
            kept_back += requests.AGENT_TOOLS
        return tuple(name for name in offered if name not in kept_back)

    def _first_message(self, prompt: str, context: CallContext) -> str:
        if not self._settings.enable_comms:
            return prompt
        return comms.block(own_name(context), self._settings) + prompt

    def _capped(self, tokens: int | None) -> int | None:
        limit = self._settings.max_budget_per_agent
        return tokens if limit is None else limit if tokens is None else min(tokens, limit)

    def _started(
        self, run_id: RunId, agent: str, run_spec: RunSpec, more: dict[str, object], message: str
    ) -> dict[str, object]:
        """The answer about a new child."""
        name = child_name(run_id, agent)
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
            answer["comms"] = comms.to_child(name, "fork" if agent == FORK_AGENT else "child", self._settings)
        return answer


class SpawnTool(StartTool):
    """`agent_spawn`: a child with a clean history."""

    tool = requests.SPAWN
    cannot = "Cannot spawn sub-agent"
    nested = "Nested spawning"
    unregistered = "Failed to spawn sub-agent"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        if (begun := await self._begun(context)) is not None:
            return self._spawned(*begun)
        request = arguments_struct(
            arguments, requests.SpawnArguments if self._settings.enable_comms else requests.StrictSpawnArguments
        )
        access, budget = requests.access_of(request.tool_access), requests.budget_of(request.budget)
        self._check_limits(context)
        if not request.prompt.strip():
            raise invalid("Prompt cannot be empty")
        if request.host_mode and not self._settings.enable_comms:
            raise invalid("host_mode requires comms to be enabled for sub-agents")
        resolved = self._resolve(request.provider or None, request.model or None, context, fork=False)
        agent = HOST_AGENT if request.host_mode else SUB_AGENT
        offered = (*access.among(self.inheritable(context.offered)), *comms.names(self._settings))
        system = self._usage_text(offered, context) if request.system_prompt is None else request.system_prompt
        run_spec = self._run_spec(context, resolved, agent, system, offered)
        spawn_request = SpawnRequest(
            stays_here=True,
            agent=agent,
            run_spec=run_spec,
            task=self._first_message(request.prompt, context),
            limits=self._limits(budget),
            lifecycle=Lifecycle(keep_alive=agent == HOST_AGENT, announce=True, on_parent_end="wait"),
            dialect=NAME,
            check=lambda: self._check_start(context),
        )
        return self._spawned(await self._start(spawn_request, context), agent, run_spec)

    def _usage_text(self, offered: tuple[str, ...], context: CallContext) -> str:
        """The caller's usage instructions of the offered tools; empty if the settings do not pass them on."""
        if not self._settings.inherit_system_prompt:
            return ""
        own = requests.TOOL_NAMES
        specs = {spec.name: spec for spec in self._relatives.caller(context).tool_specs if spec.name not in own}
        texts = (
            answers.available_tools(specs[name] for name in offered if name in specs),
            comms.usage_of(offered, self._settings),
        )
        return "\n\n".join(filter(None, texts))

    def _limits(self, budget: requests.BudgetArgument) -> Limits:
        asked = self._settings.default_budget if budget.max_tokens is None else budget.max_tokens
        return Limits(max_tokens=self._capped(asked), max_turns=budget.max_turns, max_calls=budget.max_tool_calls)

    def _spawned(self, run_id: RunId, agent: str, run_spec: RunSpec) -> dict[str, object]:
        return self._started(run_id, agent, run_spec, {}, answers.SPAWNED)


class ForkTool(StartTool):
    """`agent_fork`: a child with the caller's history."""

    tool = requests.FORK
    cannot = "Cannot fork agent"
    nested = "Nested forking"
    unregistered = "Failed to spawn forked agent"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        if (begun := await self._begun(context)) is not None:
            run_id, _, run_spec = begun
            return self._forked(run_id, run_spec, context)
        request = arguments_struct(arguments, requests.ForkRequest)
        access = requests.access_of(request.tool_access)
        self._check_limits(context)
        if not request.prompt.strip():
            raise invalid("Fork prompt cannot be empty")
        resolved = self._resolve(request.provider or None, request.model or None, context, fork=True)
        if self._settings.fork_keeps_tools and access.policy == "inherit":
            offered = context.offered
        else:
            offered = (*access.among(self.inheritable(context.offered)), *comms.names(self._settings))
        caller = self._relatives.caller(context).run
        run_spec = self._run_spec(context, resolved, FORK_AGENT, caller.system, offered)
        if run_spec.provider == caller.run_spec.provider:
            run_spec = _with_sampling_of(run_spec, caller.run_spec)
        spawn_request = SpawnRequest(
            stays_here=True,
            agent=FORK_AGENT,
            run_spec=run_spec,
            task=self._first_message(request.prompt, context),
            limits=Limits(max_tokens=self._budget(request.budget_policy or "equal", context)),
            lifecycle=Lifecycle(announce=True, on_parent_end="wait"),
            inherits=self._supervisor.fork_point(context.run_id),
            dialect=NAME,
            check=lambda: self._check_start(context),
        )
        return self._forked(await self._start(spawn_request, context), run_spec, context)

    def _budget(self, policy: str, context: CallContext) -> int | None:
        if (fixed := requests.fixed_budget(policy)) is not None:
            return self._capped(fixed)
        left = self._supervisor.left(context.run_id).tokens
        if left is None or policy not in ("remaining", "proportional"):
            return self._capped(self._settings.default_budget)
        if policy == "remaining":
            return self._capped(left)
        children = self._relatives.running_counts(context).children
        places = self._settings.concurrency_limits.max_children_per_agent - children
        return self._capped(left // max(1, places))

    def _forked(self, run_id: RunId, run_spec: RunSpec, context: CallContext) -> dict[str, object]:
        caller = self._relatives.caller(context).run
        # The last message is the reply with this call; it is not inherited.
        inherited: dict[str, object] = {"messages_inherited": len(caller.history) - 1}
        answer = self._started(run_id, FORK_AGENT, run_spec, inherited, answers.FORKED)
        return answer | {"cache": _cache(run_spec, caller.run_spec)}


def _cache(run_spec: RunSpec, caller_spec: RunSpec) -> str:
    """Whether a fork shares its parent's prompt cache, and if not, why."""
    if (run_spec.provider, run_spec.model) != (caller_spec.provider, caller_spec.model):
        return "lost: another model"
    if run_spec.output != caller_spec.output:
        return "lost: another form of answer"
    return "shared" if run_spec.offered == caller_spec.offered else "lost: other tools"


class ResolvedModel(Struct, frozen=True):
    """The family as it is printed, the provider of this process, and the model's name there."""

    shown: str
    provider: str
    model: str


def _has_models_of(family: str, families: ProviderFamilies) -> bool:
    """Whether models of this vendor can be called: there is a key, and what speaks its API is no server like Ollama."""
    member = families.member(family)
    return not families.complaint(member) and families.wire(member) not in LOCAL_SERVERS


def resolve_model(
    provider: str | None,
    model: str | None,
    caller_spec: RunSpec,
    *,
    families: ProviderFamilies,
    settings: MeerkatSettings,
    fork: bool,
) -> ResolvedModel:
    """The provider and model of a sub-agent; raises `CallRefused` if they are not allowed or cannot be used."""
    own = families.family(caller_spec.provider)
    family = _family(provider, model, own, families, settings, fork=fork)
    if family is None:  # the caller's provider belongs to no family, and no other was requested
        resolved = ResolvedModel(caller_spec.provider, caller_spec.provider, model or caller_spec.model)
        return _checked(resolved, (caller_spec.model,), shown=(caller_spec.model,))
    at = caller_spec.provider if family == own else families.member(family)
    allowed = settings.allowed_models.get(family, ())
    beside = (caller_spec.model,) if at == caller_spec.provider else ()
    if model is None:
        model = _default_model(at, caller_spec, allowed, families, settings, fork=fork)
    resolved = _checked(ResolvedModel(family, at, model), (*allowed, *beside), shown=allowed)
    if complaint := families.complaint(at):
        raise failed(f"Failed to create LLM client: {complaint}")
    return resolved


def _family(
    requested: str | None,
    model: str | None,
    own: str | None,
    families: ProviderFamilies,
    settings: MeerkatSettings,
    *,
    fork: bool,
) -> str | None:
    if requested is not None:
        family = (requested if requested in DEFAULT_MODELS else None) if fork else families.called(requested)
        if family is None:
            raise invalid(f"Invalid provider: {answers.shown(requested)}")
        return family
    if settings.default_provider != INHERIT:
        return settings.default_provider
    if model is None and not fork and settings.default_model not in (None, INHERIT):
        # Settings with a default model that is not in exactly one list were refused.
        return next(name for name, models in settings.allowed_models.items() if settings.default_model in models)
    return own


def _default_model(
    at: str,
    caller_spec: RunSpec,
    allowed: tuple[str, ...],
    families: ProviderFamilies,
    settings: MeerkatSettings,
    *,
    fork: bool,
) -> str:
    """The model of a call that names none: that of the settings, or the first allowed one.

    A fork keeps its parent's model, to share the prompt cache; so does a child on a local server, which has none of the
    vendors' models.
    """
    is_own = at == caller_spec.provider
    default = settings.default_model
    if is_own and (fork or default == INHERIT or (default is None and families.is_local(at))):
        return caller_spec.model
    if default not in (None, INHERIT) and default in allowed:
        return default
    return allowed[0]


def _checked(resolved: ResolvedModel, allowed: tuple[str, ...], *, shown: tuple[str, ...]) -> ResolvedModel:
    if resolved.model not in allowed:
        raise invalid(
            f"Model '{answers.shown(resolved.model)}' is not in allowlist for provider '{resolved.shown}'. "
            f"Allowed models: {', '.join(shown)}"
        )
    return resolved


def _with_sampling_of(run_spec: RunSpec, caller_spec: RunSpec) -> RunSpec:
    """The run spec with the sampling of the caller, whose conversation a fork continues."""
    return replace(
        run_spec, max_output=caller_spec.max_output, temperature=caller_spec.temperature, top_p=caller_spec.top_p
    )
