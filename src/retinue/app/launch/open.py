"""Opens a retinue as a command wants it: with the settings' agents, tools and dialects, and a setup that is kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as changed

from retinue.app.launch.model_choice import ModelChoice, check_key, instead, script_of
from retinue.app.launch_config import LaunchConfig
from retinue.app.open import default_home
from retinue.app.open import open as open_retinue
from retinue.app.registries import Closes
from retinue.app.retinue import Retinue
from retinue.app.settings_file import dialect_settings, load_settings, provider_configs
from retinue.app.tool_modules import load_tools
from retinue.cli.output.terminal import say
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.agent import Agent
from retinue.core.ids import SessionId
from retinue.core.messages import Reply
from retinue.core.policy import Policy, intersect
from retinue.core.ports import Provider, Publish, Request, price_of, window_of
from retinue.engine import Approver
from retinue.providers.catalog import SCRIPTED, ProviderConfig, create_provider


def open_new(
    model_choice: ModelChoice,
    settings: Settings,
    *,
    dialects: tuple[str, ...],
    session: SessionId | None,
    approvals: Approver = "deny",
    no_sandbox: bool = False,
) -> Retinue:
    """A retinue for a new run. It adopts nothing: who asks one question does not expect to pay for older ones.

    `no_sandbox` is what a flag says about this run, whatever the settings say then and later.
    """
    options = settings.tool_options
    retinue = open_retinue(
        model=model_choice.model,
        provider=model_choice.provider_config.name,
        provider_configs=model_choice.everyone,
        tools=load_tools(settings.tool_modules),
        tool_options=changed(options, sandbox="off") if no_sandbox else options,
        dialects=dialects,
        dialect_settings=dialect_settings(settings),
        agents=settings.core_agents(),
        session=session,
        approvals=approvals,
    )
    retinue.launch_config = LaunchConfig(
        model=model_choice.model,
        provider_configs=model_choice.everyone,
        dialects=dialects,
        agents=settings.core_agents(),
        tool_modules=tuple(str(path) for path in settings.tool_modules),
        config=str(settings.source or ""),
        workspace=str(Path.cwd()),
        no_sandbox=no_sandbox,
    )
    return retinue


def open_again(
    launch_config: LaunchConfig, flags: Flags, *, config: str | None, session: SessionId, approvals: Approver = "deny"
) -> tuple[Retinue, ModelChoice]:
    """A retinue for going on with a stored run, as it was set up then and with what the flags say on top.

    It adopts nothing by itself; the tree that is to go on is adopted by name.
    """
    settings = _settings_of(launch_config, config)
    home = default_home().absolute()  # as seen from here, not from the run's folder
    if launch_config.workspace and Path(launch_config.workspace) != Path.cwd():
        _go_to(launch_config.workspace)
    settled = {each.name: each for each in provider_configs(settings)}
    first, *others = (_with_headers(each, settled) for each in launch_config.provider_configs)
    first = instead(first, flags, settings)
    check_key(first, os.environ)
    model_choice = ModelChoice(provider_config=first, model=flags.model or launch_config.model, others=tuple(others))
    if first.wire == SCRIPTED:
        script_of(model_choice.model)
    providers: dict[str, Provider] = {}
    if flags.model is not None and flags.model != launch_config.model:
        providers[first.name] = OtherModel(create_provider(first), launch_config.model, flags.model)
    retinue = open_retinue(
        model=launch_config.model,
        provider=first.name,
        provider_configs=model_choice.everyone,
        providers=providers,
        tools=load_tools(Path(module) for module in launch_config.tool_modules),
        tool_options=changed(settings.tool_options, sandbox="off")
        if launch_config.no_sandbox
        else settings.tool_options,
        dialects=launch_config.dialects,
        dialect_settings=dialect_settings(settings),
        agents=_as_of_today(launch_config.agents, settings),
        session=session,
        home=home,
        approvals=approvals,
    )
    retinue.launch_config = launch_config
    return retinue, model_choice


def _settings_of(launch_config: LaunchConfig, config: str | None) -> Settings:
    """The settings that a run was started with, read again: headers and dialects' sections are kept nowhere else."""
    if config is not None:
        return load_settings(config)
    if not launch_config.config:
        return Settings()
    if not os.path.lexists(launch_config.config):
        say(f"warning: the settings file {launch_config.config} is gone; going on without it")
        return Settings()
    return load_settings(launch_config.config)


def _as_of_today(stored: Sequence[Agent], settings: Settings) -> tuple[Agent, ...]:
    """The agents that a run was started with, allowed no more than the settings of today say.

    One that is gone from the settings stays: a run can be resumed without them. One that is switched off does not.
    """
    today = {agent.name: agent for agent in settings.core_agents()}
    switched_off = settings.agents.keys() - today.keys()
    return tuple(_cut(agent, today.get(agent.name)) for agent in stored if agent.name not in switched_off)


def _cut(stored: Agent, today: Agent | None) -> Agent:
    if today is None:
        return stored
    then, now = stored.runtime, today.runtime
    return changed(
        stored,
        policy=_shared(stored.policy, today.policy),
        memory_from=tuple(name for name in stored.memory_from if name in today.memory_from),
        runtime=changed(
            then,
            agentic=then.agentic and now.agentic,
            max_delegation_depth=min(then.max_delegation_depth, now.max_delegation_depth),
            delegation_ceiling="caller" if "caller" in (then.delegation_ceiling, now.delegation_ceiling) else "target",
        ),
    )


def _shared(stored: Policy | None, today: Policy | None) -> Policy | None:
    return intersect(stored, today) if stored is not None and today is not None else stored or today


def _go_to(workspace: str) -> None:
    try:
        os.chdir(workspace)
    except OSError as error:
        say(f"warning: the run's folder {workspace} cannot be entered ({error.strerror}); going on in {Path.cwd()}")


def _with_headers(stored: ProviderConfig, settled: dict[str, ProviderConfig]) -> ProviderConfig:
    """Headers may be secret and are not stored; they come from the settings again, for the same address."""
    now = settled.get(stored.name)
    return changed(stored, headers=now.headers) if now is not None and now.base_url == stored.base_url else stored


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A provider that asks one model in place of another; whoever asked for a third one gets that."""

    provider: Provider
    stored: str
    model: str

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The reply of the model that was asked instead."""
        asked = replace(request, model=self.model) if request.model == self.stored else request
        return await self.provider.answer(asked, publish)

    def price(self, model: str) -> tuple[int, int] | None:
        """What the model that is asked instead costs."""
        asked = self.model if model == self.stored else model
        return price_of(self.provider, asked)

    def window(self, model: str) -> int | None:
        """How much the model can read that is asked instead."""
        asked = self.model if model == self.stored else model
        return window_of(self.provider, asked)

    async def close(self) -> None:
        """Let go of connections."""
        if isinstance(self.provider, Closes):
            await self.provider.close()
