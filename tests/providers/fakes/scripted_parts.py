"""Parts of a scripted reply as fake servers of Claude's vendors send them: calls with ids, and counted tokens."""

from __future__ import annotations

import msgspec

from retinue.core.messages import ToolCall
from retinue.core.usage import Usage
from retinue.providers.scripted import ScriptedReply
from retinue.testing.fake_chat import PromptTokens


def calls_with_ids(line: ScriptedReply, prefix: str, messages: list[dict[str, object]]) -> list[ToolCall]:
    """The calls of a line; one without an id gets one of the turn that comes after these messages."""
    turn = sum(message["role"] == "assistant" for message in messages) + 1
    return [
        msgspec.structs.replace(call, id=call.id or f"{prefix}_{turn}_{index}") for index, call in enumerate(line.calls)
    ]


def counted(line: ScriptedReply, prompt: PromptTokens) -> tuple[Usage | None, int]:
    """The usage of a line, and the tokens that were written to the cache."""
    if line.usage != "counted":
        return line.usage, 0
    characters = len(line.text) + len(line.thinking) + sum(len(call.arguments) for call in line.calls)
    return Usage(input=prompt.total, output=characters // 4, cached=prompt.cached), prompt.written
