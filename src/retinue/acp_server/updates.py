"""What an editor is shown of a run: text, tool calls with changes, and the messages of an earlier conversation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.core.ids import RunId
from retinue.core.messages import (
    AssistantMessage,
    Delta,
    DiscardDelta,
    Message,
    StartDelta,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.core.run import Approval
from retinue.core.text import NOT_JSON, clean, clean_line, middle_cut

Update = dict[str, object]

MAX_TEXT = 50_000
"""Characters of a result that the editor is shown."""

MAX_TITLE = 200

KINDS: Mapping[str, str] = {
    **dict.fromkeys(("file_read", "artifact_read", "memory_recall", "bash_read", "task_get", "task_list"), "read"),
    **dict.fromkeys(("file_write", "file_edit", "file_ops"), "edit"),
    **dict.fromkeys(
        ("grep", "bash_find", "bash_ripgrep", "glob_search", "content_search", "web_search_tool"), "search"
    ),
    **dict.fromkeys(("shell", "terminal", "python"), "execute"),
    **dict.fromkeys(("fetch", "web_fetch"), "fetch"),
}
"""The kinds of calls by tool; any other tool is `other`, and a call of an agent program has its own kind."""

DISCARDED = "\n\n[The reply was broken off, and begins again.]\n\n"


class RunUpdates:
    """Turns the events and deltas of one run into updates; text that was streamed is not sent twice."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._streamed: list[str] = []

    def of(self, event: Event | Delta) -> Iterator[Update]:
        match event:
            case StartDelta():
                self._streamed.clear()
            case DiscardDelta():
                if self._streamed:
                    yield text_chunk(DISCARDED)
                self._streamed.clear()
            case TextDelta(text=text):
                self._streamed.append(text)
                yield text_chunk(text)
            case ThinkingDelta(text=text):
                yield {"sessionUpdate": "agent_thought_chunk", "content": _text(text)}
            case ReplyReceived(turn=turn, reply=reply):
                if rest := self._rest(reply.message.text):
                    yield text_chunk(rest)
                for index, call in enumerate(reply.message.calls):
                    yield {"sessionUpdate": "tool_call", **call_fields(f"{self._run_id}/{turn}/{index}", call)}
            case CallReturned(turn=turn, index=index, text=text, failed=failed, tool=tool):
                yield _returned(f"{self._run_id}/{turn}/{index}", tool, text, failed=failed)
            case _:
                pass

    def _rest(self, text: str) -> str:
        """What of a reply was not streamed; the whole reply if something else was."""
        streamed = "".join(self._streamed)
        self._streamed.clear()
        if text.startswith(streamed):
            return text[len(streamed) :]
        return f"{DISCARDED}{text}"


def text_chunk(text: str) -> Update:
    return {"sessionUpdate": "agent_message_chunk", "content": _text(text)}


def call_fields(id: str, call: ToolCall, *, status: str = "pending", path: str = "") -> Update:
    """The fields of a tool call: title, kind, input, files, and the change that an edit will make."""
    arguments = _arguments(call.arguments)
    where = f"{path}: " if path else ""
    fields: Update = {
        "toolCallId": id,
        "title": clean_line(f"{where}{_title(call.name, arguments)}")[:MAX_TITLE],
        "kind": kind_of(call.name),
        "status": status,
        "rawInput": arguments,
    }
    if isinstance(file := arguments.get("path"), str) and file:
        fields["locations"] = [{"path": os.path.abspath(file)}]
    if changes := list(_changes(call.name, arguments)):
        fields["content"] = changes
    return fields


def question_fields(question: Approval) -> Update:
    """The tool call that a question is about; of a run below the root with its path."""
    call = ToolCall(question.tool, question.arguments)
    return call_fields(question.id, call, path="" if question.path == "root" else question.path)


def kind_of(tool: str) -> str:
    """The protocol's kind of a tool.

    >>> kind_of("file_edit"), kind_of("acp_execute"), kind_of("run_agent")
    ('edit', 'execute', 'other')
    """
    return tool.removeprefix("acp_") if tool.startswith("acp_") else KINDS.get(tool, "other")


def replayed(run_id: RunId, messages: Sequence[Message]) -> Iterator[Update]:
    """The messages of an earlier conversation as updates."""
    calls: list[str] = []
    for place, message in enumerate(messages):
        match message:
            case UserMessage(text=text, origin="caller"):
                yield {"sessionUpdate": "user_message_chunk", "content": _text(text)}
            case UserMessage():
                pass  # written by retinue or by other runs, and not by the person
            case AssistantMessage(text=text, calls=asked):
                if text:
                    yield text_chunk(text)
                calls = [f"{run_id}/m{place}/{index}" for index in range(len(asked))]
                for id, call in zip(calls, asked, strict=True):
                    yield {"sessionUpdate": "tool_call", **call_fields(id, call)}
            case ToolMessage(name=name, text=text, failed=failed):
                if calls:
                    yield _returned(calls.pop(0), name, text, failed=failed)


def _returned(id: str, tool: str, text: str, *, failed: bool) -> Update:
    """The end of a call. The result of an edit is the change, which the call shows already."""
    update: Update = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": id,
        "status": "failed" if failed else "completed",
    }
    if text and (failed or kind_of(tool) != "edit"):
        update["content"] = [{"type": "content", "content": _text(middle_cut(clean(text), MAX_TEXT))}]
    return update


def _text(text: str) -> Update:
    return {"type": "text", "text": text}


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments: object = msgspec.json.decode(text)
    except NOT_JSON:
        return {"text": text}
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {"value": arguments}


def _title(tool: str, arguments: Mapping[str, Any]) -> str:
    """The name of a tool, and what of its arguments says most.

    >>> _title("shell", {"command": "ls"}), _title("run_agent", {"task": "Look."}), _title("task_list", {})
    ('ls', 'run_agent: Look.', 'task_list')
    """
    if tool in ("shell", "terminal") and isinstance(command := arguments.get("command"), str):
        return command
    for name in ("title", "path", "task", "task_prompt", "prompt", "query", "pattern", "url", "subject"):
        if isinstance(value := arguments.get(name), str) and value:
            return f"{tool}: {value}"
    return tool


def _changes(tool: str, arguments: Mapping[str, Any]) -> Iterator[Update]:
    """The changes that an edit makes, by its arguments."""

    def text(name: str) -> str | None:
        value = arguments.get(name)
        return value if isinstance(value, str) else None

    path = text("path")
    if tool == "file_edit" and path and (new := text("new_string")) is not None:
        yield {"type": "diff", "path": os.path.abspath(path), "oldText": text("old_string") or "", "newText": new}
    elif tool == "file_write" and path and (new := text("content")) is not None:
        yield {"type": "diff", "path": os.path.abspath(path), "oldText": None, "newText": new}
    elif tool.startswith("acp_") and isinstance(changes := arguments.get("changes"), list):
        for change in cast("list[object]", changes):
            if isinstance(change, dict):
                fields = {name: str(value) for name, value in cast("dict[str, object]", change).items()}
                yield {
                    "type": "diff",
                    "path": os.path.abspath(fields.get("path", "")),
                    "oldText": fields.get("old", ""),
                    "newText": fields.get("new", ""),
                }
