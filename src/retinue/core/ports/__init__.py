"""The interfaces that the engine needs: provider, tool, store, sandbox, clock, key-value, metrics."""

from retinue.core.ports.clock import Clock, Ids
from retinue.core.ports.key_value import Shelf
from retinue.core.ports.metrics import Meter, NoMeter
from retinue.core.ports.provider import Judge, Prices, Provider, Providers, Publish, Request, Windows
from retinue.core.ports.sandbox import Ended, Program, Sandbox
from retinue.core.ports.store import CommitsAtOnce, Store
from retinue.core.ports.tool import (
    CallContext,
    Foresees,
    HasCompanion,
    KnowsWhyHidden,
    Tool,
    Toolbox,
    ToolResult,
    WaitsAtTimes,
    Weighs,
    Weight,
    Wrapped,
    closed_by,
    does_wait,
    weight_of,
)

__all__ = [
    "CallContext",
    "Clock",
    "CommitsAtOnce",
    "Ended",
    "Foresees",
    "HasCompanion",
    "Ids",
    "Judge",
    "KnowsWhyHidden",
    "Meter",
    "NoMeter",
    "Prices",
    "Program",
    "Provider",
    "Providers",
    "Publish",
    "Request",
    "Sandbox",
    "Shelf",
    "Store",
    "Tool",
    "ToolResult",
    "Toolbox",
    "WaitsAtTimes",
    "Weighs",
    "Weight",
    "Windows",
    "Wrapped",
    "closed_by",
    "does_wait",
    "weight_of",
]
