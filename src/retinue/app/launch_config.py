"""How a retinue was opened: stored with every root run, so that the run can be resumed from any folder without
flags.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from retinue.core.agent import Agent, RunSpec
from retinue.providers.catalog import ProviderConfig


class LaunchConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What another process needs to resume a run: providers, tools, agents and folders.

    Headers of a provider may be secret and are left out; they are read from the settings file again.
    """

    model: str = ""
    provider_configs: tuple[ProviderConfig, ...] = field(default=(), name="contacts")
    dialects: tuple[str, ...] = ()
    agents: tuple[Agent, ...] = ()
    tool_modules: tuple[str, ...] = ()
    config: str = ""
    workspace: str = ""
    no_sandbox: bool = False
    """Whether programs of the tools were allowed to run without a sandbox."""

    def text(self) -> str:
        """The config as JSON, as a run spec stores it."""
        bare = tuple(msgspec.structs.replace(each, headers={}) for each in self.provider_configs)
        return msgspec.json.encode(msgspec.structs.replace(self, provider_configs=bare)).decode()


def launch_config_of(run_spec: RunSpec) -> LaunchConfig | None:
    """The launch config that a root run was started with, if one was stored."""
    return msgspec.json.decode(run_spec.launch_config, type=LaunchConfig) if run_spec.launch_config else None
