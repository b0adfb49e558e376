"""Resume a stored run: find it, reopen a retinue as it was launched, and drive the run's tree to its end::

stored = await find_stored(name, flags)
retinue, model_choice = reopen(stored, flags)
async with retinue:
    root = await resume(retinue, stored)
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace as changed

from retinue.app.handle import RunHandle
from retinue.app.launch.model_choice import ModelChoice, check_key, choose_model, override_provider, script_of
from retinue.app.launch.start import config_of, open_config
from retinue.app.open import default_home, open_read_only
from retinue.app.registries import Closes
from retinue.app.retinue import Retinue
from retinue.app.run_spec import DetachedApprovals, LaunchConfig
from retinue.app.settings_file import load_settings, provider_configs
from retinue.app.state_folder import secure_state_folder
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.config.store import StoreSettings
from retinue.core.agent import Agent, RunSpec
from retinue.core.commands import DriverRow
from retinue.core.errors import BadInput, NotAdoptable, RunIsOver
from retinue.core.ids import RunId
from retinue.core.inbox import Close
from retinue.core.log_context import logger
from retinue.core.messages import Reply
from retinue.core.policy import DelegationCeiling, intersect
from retinue.core.ports import (
    Provider,
    Publish,
    Request,
    cached_price_of,
    counts_exactly,
    longest_reply_of,
    price_of,
    window_of,
)
from retinue.engine import Approver, RunView
from retinue.providers.catalog import ACP, SCRIPTED, ProviderConfig, check_key_address, create_provider
from retinue.telemetry import log_files
from retinue.tools.path_walk import change_to
from retinue.tools.settings_trust import recorded_roots

log = logger("retinue.app")

RETINUE_COMMAND = (sys.executable, "-P", "-m", "retinue")
"""The program of a background process; `-P`: it must not import modules from the current folder."""


@dataclass(frozen=True, slots=True)
class ResumableRun:
    """A run of the store, and how the process was launched that started its tree.

    `view.outcome` is set if there is nothing to resume.
    """

    view: RunView
    launch_config: LaunchConfig


async def find_stored(name: str, flags: Flags, *, config: str | None = None) -> ResumableRun:
    """The run with this id or part of an id; raises `NotAdoptable` while another process drives it.

    Of an ended root with interrupted descendants, one of these is found: background work may be unfinished.
    """
    async with open_read_only() as client:
        view = await client.find(name)
        if view.outcome is not None and view.run_id == view.root_id:
            view = next((each for each in await client.tree(view.run_id) if each.state == "interrupted"), view)
        if view.outcome is not None:
            return ResumableRun(view, LaunchConfig())
        if (driver := await client.driver_of(view.run_id)) is not None:
            raise NotAdoptable(view.run_id, f"it is driven by {_named(driver)}")
        launch_config = await client.launch_config(view.run_id)
        run_spec = (await client.replay(view.root_id)).run_spec
    if launch_config is None or not launch_config.provider_configs:
        launch_config = await _config_from_here(run_spec, flags, config)
    return ResumableRun(view, launch_config)


async def _config_from_here(run_spec: RunSpec, flags: Flags, config: str | None) -> LaunchConfig:
    """A launch config from the flags and the current folder, for a run that a program started without storing one.

    The provider keeps the name by which the run asks for it.
    """
    settings = load_settings(config)
    model_choice = await choose_model(changed(flags, model=flags.model or run_spec.model), settings)
    first = changed(model_choice.provider_config, name=run_spec.provider)
    return config_of(
        settings, model=run_spec.model, provider_configs=(first, *model_choice.others), dialects=run_spec.dialects
    )


def _named(driver: DriverRow) -> str:
    pid = driver.process.partition(":")[0]
    host = driver.host.partition("/")[0]
    return f"process {pid} on {host} (driver {driver.driver_id})"


def reopen(
    stored: ResumableRun,
    flags: Flags,
    *,
    config: str | None = None,
    approvals: Approver = "deny",
    warn: Callable[[str], object] = log.warning,
) -> tuple[Retinue, ModelChoice]:
    """A retinue that is opened as the stored run was launched, with `flags` and the settings of today on top.

    It adopts nothing by itself. The process changes to the run's folder. `warn` receives what is different now.
    """
    launch_config = stored.launch_config
    settings = _settings_of(launch_config, config, warn)
    home = default_home().absolute()  # relative to the current folder, not to the run's
    if launch_config.workspace and Path(launch_config.workspace) != Path.cwd():
        _change_to(launch_config.workspace, warn)
    configured = {each.name: each for each in provider_configs(settings)}
    first, *others = (_with_headers(each, configured) for each in launch_config.provider_configs)
    first = override_provider(first, flags, settings)
    check_key_address(first, tuple(configured.values()))
    check_key(first, os.environ)
    model_choice = ModelChoice(provider_config=first, model=flags.model or launch_config.model, others=tuple(others))
    if first.wire == SCRIPTED:
        script_of(model_choice.model)
    providers: dict[str, Provider] = {}
    if flags.model is not None and flags.model != launch_config.model:
        if first.wire == ACP:
            raise BadInput(f"the agent program {first.name!r} goes on with its own model: leave out --model")
        made = create_provider(first, agents_write=lambda: recorded_roots(home))
        providers[first.name] = OtherModel(made, launch_config.model, flags.model)
    today = changed(
        launch_config, provider_configs=model_choice.providers, agents=_as_of_today(launch_config.agents, settings)
    )
    session = stored.view.session_id
    retinue = open_config(today, settings, session=session, approvals=approvals, home=home, providers=providers)
    retinue.launch_config = launch_config
    return retinue, model_choice


def _settings_of(launch_config: LaunchConfig, config: str | None, warn: Callable[[str], object]) -> Settings:
    """The settings of the launch, read again: headers and the dialects' sections are stored nowhere else."""
    if config is not None:
        return load_settings(config)
    if not launch_config.config:
        return load_settings(project=False)
    if not os.path.lexists(launch_config.config):
        warn(f"the settings file {launch_config.config} does not exist any more; continuing without it")
        return load_settings(project=False)
    return load_settings(launch_config.config)


def _change_to(workspace: str, warn: Callable[[str], object]) -> None:
    try:
        change_to(workspace)
    except OSError as error:
        if error.errno == errno.ELOOP:  # the tools of the run would work behind it
            raise BadInput(f"the run's folder {workspace} cannot be entered: {error.strerror}") from error
        warn(f"the run's folder {workspace} cannot be entered ({error.strerror}); continuing in {Path.cwd()}")


def _with_headers(stored: ProviderConfig, configured: dict[str, ProviderConfig]) -> ProviderConfig:
    """The stored provider with what is not stored: the headers of the settings, if the address is the same, and the
    program of an agent.
    """
    now = configured.get(stored.name)
    if stored.wire == ACP:
        if now is None or now.program is None:
            raise BadInput(f"the settings have no agent program for the provider {stored.name!r} of the run")
        return changed(stored, program=now.program)
    return changed(stored, headers=now.headers) if now is not None and now.base_url == stored.base_url else stored


def _as_of_today(stored: Sequence[Agent], settings: Settings) -> tuple[Agent, ...]:
    """The agents of the launch, allowed no more than the settings of today say.

    An agent that is missing in the settings stays: a run can be resumed without them. A disabled agent does not stay.
    """
    today = {agent.name: agent for agent in settings.core_agents()}
    disabled = settings.agents.keys() - today.keys()
    return tuple(_narrowed(agent, today.get(agent.name)) for agent in stored if agent.name not in disabled)


def _narrowed(stored: Agent, today: Agent | None) -> Agent:
    if today is None:
        return stored
    then, now = stored.runtime, today.runtime
    policy = stored.policy or today.policy
    if stored.policy is not None and today.policy is not None:
        policy = intersect(stored.policy, today.policy)
    return changed(
        stored,
        policy=policy,
        memory_from=tuple(name for name in stored.memory_from if name in today.memory_from),
        runtime=changed(
            then,
            agentic=then.agentic and now.agentic,
            max_delegation_depth=min(then.max_delegation_depth, now.max_delegation_depth),
            delegation_ceiling=_narrower_ceiling(then.delegation_ceiling, now.delegation_ceiling),
        ),
    )


def _narrower_ceiling(then: DelegationCeiling, now: DelegationCeiling) -> DelegationCeiling:
    """The setting that gives a target fewer rights: `caller` before unset, and unset before `target`."""
    if "caller" in (then, now):
        return "caller"
    return None if None in (then, now) else "target"


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A provider that replaces the stored model by another one; requests for third models pass unchanged."""

    provider: Provider
    stored: str
    model: str

    async def answer(self, request: Request, publish: Publish) -> Reply:
        return await self.provider.answer(replace(request, model=self._asked(request.model)), publish)

    @property
    def counts_are_exact(self) -> bool:
        return counts_exactly(self.provider)

    def price(self, model: str) -> tuple[int, int] | None:
        return price_of(self.provider, self._asked(model))

    def cached_price(self, model: str) -> int | None:
        return cached_price_of(self.provider, self._asked(model))

    def window(self, model: str) -> int | None:
        return window_of(self.provider, self._asked(model))

    def longest_reply(self, model: str) -> int | None:
        return longest_reply_of(self.provider, self._asked(model))

    async def close(self) -> None:
        if isinstance(self.provider, Closes):
            await self.provider.close()

    def _asked(self, model: str) -> str:
        return self.model if model == self.stored else model


async def resume(retinue: Retinue, stored: ResumableRun) -> RunHandle:
    """Adopt the tree of the stored run; its root. A run that waits for more input is closed: none will come."""
    await retinue.resume(stored.view.run_id)
    root = retinue.handle(stored.view.root_id)
    if (await retinue.supervisor.replay(root.run_id)).accepted.lifecycle.keep_alive:
        with suppress(RunIsOver):
            await retinue.supervisor.post(root.run_id, Close(key="close"), durable=True)
    return root


def resume_command(run_id: RunId, approvals: DetachedApprovals) -> tuple[str, ...]:
    """The arguments of `retinue` with which a background process resumes a run."""
    return "runs", "resume", run_id, "--quiet", *(("--yes",) if approvals == "yes" else ("--approvals", approvals))


class RunLog(NamedTuple):
    """The file for the output of a background process, its open descriptor, and variables for the process."""

    path: Path
    file: int
    environment: Mapping[str, str]


def open_log(run_id: RunId, limits: StoreSettings) -> RunLog:
    """Open the log file of a run, which only its owner may read; the caller closes the descriptor."""
    path = default_home().absolute() / log_files.FOLDER / f"{run_id}.log"
    secure_state_folder(path.parent.parent)
    secure_state_folder(path.parent)
    max_bytes = limits.log_mb * 1_000_000
    file = log_files.open_log_file(path, max_bytes=max_bytes)
    log_files.trim(path.parent, limits.log_files)
    return RunLog(path, file, log_files.limit_in_environment(path, max_bytes))


def resume_in_background(run_id: RunId, approvals: DetachedApprovals, limits: StoreSettings) -> Path:
    """Start a process that resumes the run; the file of its output.

    The process has a session of its own: Ctrl-C in this terminal does not reach it.
    """
    output, file, environment = open_log(run_id, limits)
    try:
        subprocess.Popen(
            [*RETINUE_COMMAND, *resume_command(run_id, approvals)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | environment,
            start_new_session=True,
        )
    finally:
        os.close(file)
    return output
