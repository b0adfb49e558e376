"""Interfaces to implement: providers, tools and stores of your own, and the types in their signatures.

A provider is any object with the method `answer`, and a tool is a subclass of `Tool` (a typed function needs only
`@retinue.tool`). Pass them to `retinue.open` as `provider=` and `tools=`, a store as `store=`.

>>> import asyncio, retinue
>>> from retinue.messages import AssistantMessage, Reply, TextDelta
>>> from retinue.ports import Publish, Request
>>> class Echo:
...     async def answer(self, request: Request, publish: Publish) -> Reply:
...         text = request.messages[-1].text
...         publish(TextDelta(text))
...         return Reply(AssistantMessage(text=text))
>>> async def main() -> None:
...     async with retinue.open(provider=Echo(), home=retinue.MEMORY, dialects=()) as r:
...         print((await r.run("Hello.")).text)
>>> asyncio.run(main())
Hello.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.core.agent import Output, RunSpec, ToolKind, ToolSpec, ValidatedOutput
from retinue.core.commands import (
    Accept,
    Accepted,
    Adopt,
    AmountLimit,
    CallLimit,
    CancelTree,
    Change,
    Charge,
    CloseSession,
    Decide,
    Decision,
    DeclareDead,
    DriverRow,
    Forget,
    Heartbeat,
    NamespaceClosed,
    NotCreated,
    OpenSession,
    Phase,
    Post,
    Posted,
    Progress,
    Prune,
    Record,
    RegisterDriver,
    Retire,
    RunLimit,
    RunQuery,
    RunRow,
    SessionRow,
    Unread,
    UnregisterDriver,
    WindowFull,
    Write,
    WriteResult,
)
from retinue.core.lazy_names import lazy_names
from retinue.core.model_options import RequestOptions
from retinue.core.policy import Risk
from retinue.core.ports import (
    BeforeModel,
    BeforeTool,
    CallContext,
    CallRisk,
    ChildRun,
    Clock,
    CommitAtOnce,
    HostedCall,
    Ids,
    LogLengths,
    PreparedCall,
    Provider,
    Publish,
    Request,
    Spawner,
    Store,
    Tool,
    ToolLike,
    ToolResult,
    ToolWrapper,
    price_of,
    window_of,
)

if TYPE_CHECKING:
    from retinue.app.engine_types import Approver as Approver
    from retinue.core.server_tools import ServerToolKind as ServerToolKind
    from retinue.core.server_tools import ServerToolSpec as ServerToolSpec
    from retinue.net.fetcher import Bounds as Bounds
    from retinue.net.fetcher import Fetched as Fetched
    from retinue.net.fetcher import Fetcher as Fetcher
    from retinue.net.guard import Guard as Guard
    from retinue.providers.pricing import LongContextRates as LongContextRates
    from retinue.providers.pricing import ModelPrices as ModelPrices
    from retinue.providers.pricing import PricedProvider as PricedProvider
    from retinue.providers.pricing import Rates as Rates
    from retinue.tools.function import FunctionTool as FunctionTool

# `retinue.net` loads an HTTP client, `retinue.app` the engine.
_HOMES = {
    "Approver": "retinue.app.engine_types:Approver",
    "Bounds": "retinue.net.fetcher:Bounds",
    "Fetched": "retinue.net.fetcher:Fetched",
    "Fetcher": "retinue.net.fetcher:Fetcher",
    "FunctionTool": "retinue.tools.function:FunctionTool",
    "Guard": "retinue.net.guard:Guard",
    "LongContextRates": "retinue.providers.pricing:LongContextRates",
    "ModelPrices": "retinue.providers.pricing:ModelPrices",
    "PricedProvider": "retinue.providers.pricing:PricedProvider",
    "Rates": "retinue.providers.pricing:Rates",
    "ServerToolKind": "retinue.core.server_tools:ServerToolKind",
    "ServerToolSpec": "retinue.core.server_tools:ServerToolSpec",
}

__all__ = [
    "Accept",
    "Accepted",
    "Adopt",
    "AmountLimit",
    "Approver",
    "BeforeModel",
    "BeforeTool",
    "Bounds",
    "CallContext",
    "CallLimit",
    "CallRisk",
    "CancelTree",
    "Change",
    "Charge",
    "ChildRun",
    "Clock",
    "CloseSession",
    "CommitAtOnce",
    "Decide",
    "Decision",
    "DeclareDead",
    "DriverRow",
    "Fetched",
    "Fetcher",
    "Forget",
    "FunctionTool",
    "Guard",
    "Heartbeat",
    "HostedCall",
    "Ids",
    "LogLengths",
    "LongContextRates",
    "ModelPrices",
    "NamespaceClosed",
    "NotCreated",
    "OpenSession",
    "Output",
    "Phase",
    "Post",
    "Posted",
    "PreparedCall",
    "PricedProvider",
    "Progress",
    "Provider",
    "Prune",
    "Publish",
    "Rates",
    "Record",
    "RegisterDriver",
    "Request",
    "RequestOptions",
    "Retire",
    "Risk",
    "RunLimit",
    "RunQuery",
    "RunRow",
    "RunSpec",
    "ServerToolKind",
    "ServerToolSpec",
    "SessionRow",
    "Spawner",
    "Store",
    "Tool",
    "ToolKind",
    "ToolLike",
    "ToolResult",
    "ToolSpec",
    "ToolWrapper",
    "Unread",
    "UnregisterDriver",
    "ValidatedOutput",
    "WindowFull",
    "Write",
    "WriteResult",
    "price_of",
    "window_of",
]

__getattr__ = lazy_names(__name__, _HOMES)
