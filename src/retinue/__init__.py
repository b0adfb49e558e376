"""Sub-agents for LLM agents: spawn, fork, delegate, message, wait, cancel, with budgets and crash recovery.

The public Python surface is this module and five more: `retinue.events`, `retinue.messages`, `retinue.errors`,
`retinue.ports` and `retinue.testing`. Everything else may change without notice.

>>> import asyncio, retinue
>>> from retinue.testing import Script, ScriptedProvider, says
>>> model = ScriptedProvider(Script().play("main", says("It was the connection pool.")))
>>> async def main() -> str:
...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
...         outcome = await r.run("Why did throughput drop?")
...         return outcome.text
>>> asyncio.run(main())
'It was the connection pool.'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names
from retinue.version import __version__

if TYPE_CHECKING:
    from retinue.app.engine_types import RunView as RunView
    from retinue.app.handle import RunHandle as RunHandle
    from retinue.app.handle import agent_tool as agent_tool
    from retinue.app.handle import handoff as handoff
    from retinue.app.open import MEMORY as MEMORY
    from retinue.app.open import open as open
    from retinue.app.retinue import Retinue as Retinue
    from retinue.app.surface import SurfaceResult as SurfaceResult
    from retinue.app.surface import ToolHints as ToolHints
    from retinue.app.surface import ToolSurface as ToolSurface
    from retinue.app.surface import surface as surface
    from retinue.app.sync import SyncHandle as SyncHandle
    from retinue.app.sync import SyncRetinue as SyncRetinue
    from retinue.app.sync import open_sync as open_sync
    from retinue.core.agent import Agent as Agent
    from retinue.core.attachments import File as File
    from retinue.core.attachments import Image as Image
    from retinue.core.errors import PolicyError as PolicyError
    from retinue.core.errors import ProviderError as ProviderError
    from retinue.core.errors import Refused as Refused
    from retinue.core.errors import RetinueError as RetinueError
    from retinue.core.errors import RunFailed as RunFailed
    from retinue.core.errors import ToolError as ToolError
    from retinue.core.model_options import ModelOptions as ModelOptions
    from retinue.core.policy import Autonomy as Autonomy
    from retinue.core.policy import Policy as Policy
    from retinue.core.policy import RuntimeProfile as RuntimeProfile
    from retinue.core.ports import CallContext as CallContext
    from retinue.core.ports import Denial as Denial
    from retinue.core.ports import Hooks as Hooks
    from retinue.core.run import Approval as Approval
    from retinue.core.run import Exchange as Exchange
    from retinue.core.run import Limits as Limits
    from retinue.core.run import Outcome as Outcome
    from retinue.core.usage import Usage as Usage
    from retinue.dialects.base import Dialect as Dialect
    from retinue.dialects.buzzllm import BuzzllmSettings as BuzzllmSettings
    from retinue.dialects.claude import ClaudeSettings as ClaudeSettings
    from retinue.dialects.codex import CodexSettings as CodexSettings
    from retinue.dialects.meerkat import ConcurrencyLimits as ConcurrencyLimits
    from retinue.dialects.meerkat import MeerkatSettings as MeerkatSettings
    from retinue.dialects.native import NativeSettings as NativeSettings
    from retinue.dialects.spec import SpecSettings as SpecSettings
    from retinue.dialects.xzatoma import XzatomaSettings as XzatomaSettings
    from retinue.mcp_client import McpServer as McpServer
    from retinue.providers.acp import AgentProgram as AgentProgram
    from retinue.providers.catalog import ProviderConfig as ProviderConfig
    from retinue.telemetry.exporters import Telemetry as Telemetry
    from retinue.tools.dependencies import ToolOptions as ToolOptions
    from retinue.tools.function import tool as tool
    from retinue.tools.server_tools import ServerTool as ServerTool

# The home of each public name; imported on first use, so that `import retinue` stays light.
_HOMES = {
    "MEMORY": "retinue.app.open:MEMORY",
    "open": "retinue.app.open:open",
    "open_sync": "retinue.app.sync:open_sync",
    "Retinue": "retinue.app.retinue:Retinue",
    "RunHandle": "retinue.app.handle:RunHandle",
    "RunView": "retinue.app.engine_types:RunView",
    "ToolHints": "retinue.app.surface:ToolHints",
    "ToolSurface": "retinue.app.surface:ToolSurface",
    "SurfaceResult": "retinue.app.surface:SurfaceResult",
    "surface": "retinue.app.surface:surface",
    "SyncRetinue": "retinue.app.sync:SyncRetinue",
    "SyncHandle": "retinue.app.sync:SyncHandle",
    "Agent": "retinue.core.agent:Agent",
    "ModelOptions": "retinue.core.model_options:ModelOptions",
    "File": "retinue.core.attachments:File",
    "Image": "retinue.core.attachments:Image",
    "Policy": "retinue.core.policy:Policy",
    "Autonomy": "retinue.core.policy:Autonomy",
    "RuntimeProfile": "retinue.core.policy:RuntimeProfile",
    "Limits": "retinue.core.run:Limits",
    "Outcome": "retinue.core.run:Outcome",
    "Exchange": "retinue.core.run:Exchange",
    "Approval": "retinue.core.run:Approval",
    "Usage": "retinue.core.usage:Usage",
    "CallContext": "retinue.core.ports:CallContext",
    "Denial": "retinue.core.ports:Denial",
    "Hooks": "retinue.core.ports:Hooks",
    "tool": "retinue.tools.function:tool",
    "agent_tool": "retinue.app.handle:agent_tool",
    "handoff": "retinue.app.handle:handoff",
    "ToolOptions": "retinue.tools.dependencies:ToolOptions",
    "ServerTool": "retinue.tools.server_tools:ServerTool",
    "AgentProgram": "retinue.providers.acp:AgentProgram",
    "Telemetry": "retinue.telemetry.exporters:Telemetry",
    "ProviderConfig": "retinue.providers.catalog:ProviderConfig",
    "Dialect": "retinue.dialects.base:Dialect",
    "BuzzllmSettings": "retinue.dialects.buzzllm:BuzzllmSettings",
    "ClaudeSettings": "retinue.dialects.claude:ClaudeSettings",
    "CodexSettings": "retinue.dialects.codex:CodexSettings",
    "ConcurrencyLimits": "retinue.dialects.meerkat:ConcurrencyLimits",
    "McpServer": "retinue.mcp_client:McpServer",
    "MeerkatSettings": "retinue.dialects.meerkat:MeerkatSettings",
    "NativeSettings": "retinue.dialects.native:NativeSettings",
    "SpecSettings": "retinue.dialects.spec:SpecSettings",
    "XzatomaSettings": "retinue.dialects.xzatoma:XzatomaSettings",
    "RetinueError": "retinue.core.errors:RetinueError",
    "Refused": "retinue.core.errors:Refused",
    "RunFailed": "retinue.core.errors:RunFailed",
    "PolicyError": "retinue.core.errors:PolicyError",
    "ProviderError": "retinue.core.errors:ProviderError",
    "ToolError": "retinue.core.errors:ToolError",
}

__all__ = ["__version__", *sorted(_HOMES)]  # pyright: ignore[reportUnsupportedDunderAll] the names are lazy


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
