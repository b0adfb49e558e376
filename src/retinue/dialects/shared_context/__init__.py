"""Shared context: the tool `shared_context`, with which the participants of a session share short texts under keys.

It is a companion of the dialect `spec`. Its operations for an operator (`overview`, `contents`, `snapshot_contents`,
`take_snapshot`) are no tools. The tool itself is in `retinue.dialects.shared_context.tool`: this package is imported
for its settings too, and loads nothing of the engine.
"""

from retinue.dialects.shared_context.actions import session_archived, session_not_found, space_of
from retinue.dialects.shared_context.admin import contents, overview, snapshot_contents, snapshot_size, take_snapshot
from retinue.dialects.shared_context.prompts import participant_text
from retinue.dialects.shared_context.requests import EXTENSIONS
from retinue.dialects.shared_context.schema import NAME

__all__ = [
    "EXTENSIONS",
    "NAME",
    "contents",
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
