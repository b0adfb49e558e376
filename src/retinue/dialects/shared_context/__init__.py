"""The tool `shared_context` of the dialect `spec`: the agents of a session share short texts under keys.

The operations for an operator (`overview`, `contents`, `histories`, `snapshot_contents`, `take_snapshot`) are no tools.
The tool itself is in `tool`: the other modules load nothing of the engine, because settings import this package.
"""

from retinue.dialects.shared_context.actions import (
    contents,
    histories,
    overview,
    session_archived,
    session_not_found,
    snapshot_contents,
    snapshot_size,
    space_of,
    take_snapshot,
)
from retinue.dialects.shared_context.requests import EXTENSIONS, NAME, participant_text

__all__ = [
    "EXTENSIONS",
    "NAME",
    "contents",
    "histories",
    "overview",
    "participant_text",
    "session_archived",
    "session_not_found",
    "snapshot_contents",
    "snapshot_size",
    "space_of",
    "take_snapshot",
    "tool",
]
