"""Refusals of tool calls, and the error codes of the dialect `spec` and of shared context."""

from __future__ import annotations

from typing import Literal, TypeAlias

from retinue.core.errors import Refused

JsonObject: TypeAlias = dict[str, object]
"""An answer to the model, before it is encoded."""

ErrorCode: TypeAlias = Literal[
    "ACCESS_DENIED",
    "AGENT_ALREADY_EXISTS",
    "AGENT_NOT_FOUND",
    "INVALID_ACTION",
    "INVALID_AGENT_NAME",
    "INVALID_KEY",
    "INVALID_REQUEST",
    "INVALID_TOOL",
    "KEY_NOT_FOUND",
    "MAX_TASKS_EXCEEDED",
    "PROMPT_TOO_LARGE",
    "SESSION_ARCHIVED",
    "SESSION_NOT_FOUND",
    "STORE_FULL",
    "TASK_NOT_FOUND",
    "TASK_NOT_READY",
    "TASK_TOO_LARGE",
    "VALUE_TOO_LARGE",
]


class CallRefused(Refused):
    """A tool call that a dialect refuses, or that failed; the text is what the model reads."""


class CodedRefusal(CallRefused):
    """A refusal with one of the documented codes, and a sentence that the model can act on.

    >>> CodedRefusal("KEY_NOT_FOUND", "Key not found: 'scope'").answer
    {'error': 'KEY_NOT_FOUND', 'message': "Key not found: 'scope'"}

    `details` are further fields of the answer.
    """

    def __init__(self, code: ErrorCode, message: str, **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    @property
    def answer(self) -> JsonObject:
        """The error that the model reads."""
        return {"error": self.code, "message": self.message, **self.details}
