"""TODO door."""

from retinue.dispatch.worker.grant import (
    GRANT_FD,
    MAY_I_ACT,
    NOTHING,
    USAGE_FD,
    YES,
    Grant,
    Reaching,
    Tally,
    inherited,
    read_grant,
)
from retinue.dispatch.worker.process import ProcessPool
from retinue.dispatch.worker.provider import ProcessProvider, ProcessSettings

__all__ = [
    "GRANT_FD",
    "MAY_I_ACT",
    "NOTHING",
    "USAGE_FD",
    "YES",
    "Grant",
    "ProcessPool",
    "ProcessProvider",
    "ProcessSettings",
    "Reaching",
    "Tally",
    "inherited",
    "read_grant",
]
