"""Types of the engine for front ends, which import `app` and not the engine."""

from retinue.engine import Approver, RunView, SpawnRequest, Supervisor, Unanswered, WorkerRole

__all__ = ["Approver", "RunView", "SpawnRequest", "Supervisor", "Unanswered", "WorkerRole"]
