"""Every error that retinue raises on purpose; all of them are subclasses of `RetinueError`.

A failure that a model can act on becomes the result of a tool call. A failure that a person has to fix is raised, with
the facts as attributes and a message that says what to do.

>>> from retinue.errors import Refused, TooManyRunning
>>> try:
...     raise TooManyRunning(running=5, limit=5)
... except Refused as refusal:
...     print(refusal)
5 runs are running already; the limit is 5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.core.errors import (
    BadInput,
    ConfigError,
    DepthExceeded,
    Fenced,
    NoAllowance,
    NotAdoptable,
    NotKept,
    PolicyError,
    Problem,
    ProviderError,
    ProviderFault,
    Refused,
    RetinueError,
    RunFailed,
    RunIsOver,
    SandboxUnavailable,
    SessionClosed,
    StoreCorrupt,
    StoreError,
    StoreNotOpened,
    StoreUnavailable,
    ToolError,
    TooManyRunning,
    TreeCancelled,
    UnknownFormat,
    UnknownName,
    UnknownVariant,
)
from retinue.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from retinue.net.guard import FetchFailed as FetchFailed

# `retinue.net` loads an HTTP client.
_HOMES = {"FetchFailed": "retinue.net.guard:FetchFailed"}

__all__ = [
    "BadInput",
    "ConfigError",
    "DepthExceeded",
    "Fenced",
    "FetchFailed",
    "NoAllowance",
    "NotAdoptable",
    "NotKept",
    "PolicyError",
    "Problem",
    "ProviderError",
    "ProviderFault",
    "Refused",
    "RetinueError",
    "RunFailed",
    "RunIsOver",
    "SandboxUnavailable",
    "SessionClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreNotOpened",
    "StoreUnavailable",
    "TooManyRunning",
    "ToolError",
    "TreeCancelled",
    "UnknownFormat",
    "UnknownName",
    "UnknownVariant",
]

__getattr__ = lazy_names(__name__, _HOMES)
