"""The engine: drives runs, records what happens and recovers after a crash. Knows ports, no vendor and no dialect.

`build_engine` makes a `Supervisor`, with which other packages work, and a `Driver`, which starts and ends the work.
"""

from retinue.engine.admission import SpawnRequest
from retinue.engine.context import Approver, PlainOutcomeTexts, Tuning, WorkerRole, plain_log_fields
from retinue.engine.driver import Driver, build_engine
from retinue.engine.driver_table import is_gone, this_host, this_process
from retinue.engine.journal_writer import CommitTimes
from retinue.engine.run_view import LiveView, RunView
from retinue.engine.supervisor import StartedRun, Supervisor
from retinue.engine.tool_calls import Unanswered

__all__ = [
    "Approver",
    "CommitTimes",
    "Driver",
    "LiveView",
    "PlainOutcomeTexts",
    "RunView",
    "SpawnRequest",
    "StartedRun",
    "Supervisor",
    "Tuning",
    "Unanswered",
    "WorkerRole",
    "build_engine",
    "is_gone",
    "plain_log_fields",
    "this_host",
    "this_process",
]
