"""Open the retinue of a worker: with the tools, providers, agents and keys of its own settings and environment.

Of what a run's launch has stored nothing is used here: neither module paths nor addresses.
"""

from __future__ import annotations

import os
import platform

from msgspec.structs import replace

from retinue.app.launch.model_choice import own_providers
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.app.settings_file import dialect_settings, server_tools
from retinue.app.state_folder import chosen_url
from retinue.app.tool_modules import load_tools
from retinue.config.settings import Settings
from retinue.core.workspace import host_tag
from retinue.engine import WorkerRole

SESSION = "worker"
"""The session of workers, in which they start no run."""


def open_worker(settings: Settings, role: WorkerRole, *, lease: float) -> Retinue:
    """A retinue that adopts what its worker takes; raises `BadInput` if the settings have no provider."""
    first, *others = own_providers(settings, os.environ)
    retinue = open_retinue(
        provider=first.name,
        provider_configs=(first, *others),
        tools=load_tools(settings.tool_modules),
        tool_options=settings.tool_options,
        dialects=(),
        dialect_settings=dialect_settings(settings),
        agents=settings.core_agents(),
        server_tools=server_tools(settings),
        policy=settings.policy,
        session=SESSION,
        store=chosen_url(),
        approvals="wait",
        lease=lease,
    )
    return as_worker(retinue, role)


def as_worker(retinue: Retinue, role: WorkerRole) -> Retinue:
    """A retinue that is not entered yet, as that of a worker: it drives only what this process can drive."""
    retinue.providers.use_own_only(os.environ)
    retinue.driver.work_as(replace(role, tags=role.tags | {host_tag(platform.node())}))
    return retinue
