"""The interfaces that the engine needs: provider, tool, store, sandbox, clock, key-value, metrics."""

from retinue.core.ports.clock import Clock, Ids
from retinue.core.ports.key_value import KeyValue
from retinue.core.ports.metrics import Meter, NoMeter
from retinue.core.ports.provider import OutputValidator, Prices, Provider, Providers, Publish, Request, Windows
from retinue.core.ports.sandbox import Ended, Program, Sandbox
from retinue.core.ports.store import CommitsAtOnce, Store
from retinue.core.ports.tool import (
    CallContext,
    CallRisk,
    Foresees,
    HasCompanion,
    KnowsWhyHidden,
    Tool,
    Toolbox,
    ToolResult,
    ToolWrapper,
    WaitsAtTimes,
    Weighs,
    assess_call,
    closed_by,
    does_wait,
)

__all__ = [
    "CallContext",
    "CallRisk",
    "Clock",
    "CommitsAtOnce",
    "Ended",
    "Foresees",
    "HasCompanion",
    "Ids",
    "KeyValue",
    "KnowsWhyHidden",
    "Meter",
    "NoMeter",
    "OutputValidator",
    "Prices",
    "Program",
    "Provider",
    "Providers",
    "Publish",
    "Request",
    "Sandbox",
    "Store",
    "Tool",
    "ToolResult",
    "ToolWrapper",
    "Toolbox",
    "WaitsAtTimes",
    "Weighs",
    "Windows",
    "assess_call",
    "closed_by",
    "does_wait",
]
