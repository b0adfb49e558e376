"""TODO door."""

from retinue.dialects.xzatoma.retention import SPACE
from retinue.dialects.xzatoma.transcript import Conversation, conversation, kept

__all__ = ["SPACE", "Conversation", "conversation", "kept"]
