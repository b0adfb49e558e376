"""TODO door."""

from retinue.dialects.shared_context.actions import decide, session_archived, session_not_found, space_of
from retinue.dialects.shared_context.prompts import participant_text
from retinue.dialects.shared_context.requests import TakeSnapshot, label_of
from retinue.dialects.shared_context.schema import NAME
from retinue.dialects.shared_context.tool import SharedContextTool

__all__ = [
    "NAME",
    "SharedContextTool",
    "TakeSnapshot",
    "decide",
    "label_of",
    "participant_text",
    "session_archived",
    "session_not_found",
    "space_of",
]
