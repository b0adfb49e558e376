"""The interfaces that the engine needs: provider, tool, store, sandbox, clock, key-value, metrics."""

from retinue.core.ports.clock import Clock, Ids, Meter, NoMeter
from retinue.core.ports.provider import (
    OutputValidator,
    Provider,
    Providers,
    Publish,
    Request,
    cached_price_of,
    price_of,
    window_of,
)
from retinue.core.ports.sandbox import Ended, Program, Sandbox
from retinue.core.ports.store import (
    CommitAtOnce,
    KeyValue,
    PruneInSteps,
    PruneRequest,
    Store,
    commit_at_once_of,
    prune_in_steps_of,
)
from retinue.core.ports.tool import (
    CallContext,
    CallRisk,
    PreparedCall,
    Tool,
    Toolbox,
    ToolLike,
    ToolResult,
    ToolWrapper,
    as_tool,
)

__all__ = [
    "CallContext",
    "CallRisk",
    "Clock",
    "CommitAtOnce",
    "Ended",
    "Ids",
    "KeyValue",
    "Meter",
    "NoMeter",
    "OutputValidator",
    "PreparedCall",
    "Program",
    "Provider",
    "Providers",
    "PruneInSteps",
    "PruneRequest",
    "Publish",
    "Request",
    "Sandbox",
    "Store",
    "Tool",
    "ToolLike",
    "ToolResult",
    "ToolWrapper",
    "Toolbox",
    "as_tool",
    "cached_price_of",
    "commit_at_once_of",
    "price_of",
    "prune_in_steps_of",
    "window_of",
]
