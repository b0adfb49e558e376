"""The tool calls of an agent, as its messages describe them, and what a run records of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.core.messages import ToolCall
from retinue.core.text import clean, clean_line
from retinue.providers.acp.program import KINDS, PREFIX

MAX_ID = 200
MAX_TITLE = 500
MAX_INPUT = 20_000
MAX_RESULT = 50_000
MAX_PATHS = 50
MAX_CHANGES = 20
MAX_CHANGE = 10_000
CUT = " [cut]"

NO_RESULT = "The agent reported no result."

FINISHED = ("completed", "failed")


class AgentCall:
    """One tool call of an agent; its messages fill it in."""

    __slots__ = (
        "_changes",
        "_input",
        "_output",
        "_paths",
        "_text",
        "_title",
        "id",
        "is_queued",
        "is_reported",
        "is_seen",
        "kind",
        "options",
        "permission",
        "status",
    )

    def __init__(self, id: str) -> None:
        self.id = id
        self.kind = "other"
        self.status = "pending"
        self.permission: asyncio.Future[str | None] | None = None
        """The id of the option that answers the agent's question, None for cancelled; None if it does not ask."""
        self.options: Sequence[Mapping[str, Any]] = ()
        self.is_queued = False
        """Whether the call waits for a reply of the run, or has one."""
        self.is_reported = False
        """Whether a reply of the run has the call."""
        self.is_seen = False
        """Whether the run has made the call: the policy did not refuse it."""
        self._title = ""
        self._input = ""
        self._paths: tuple[str, ...] = ()
        self._changes: tuple[dict[str, str], ...] = ()
        self._text = ""
        self._output = ""

    @property
    def name(self) -> str:
        return PREFIX + self.kind

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def asks(self) -> bool:
        """Whether the agent waits for a permission."""
        return self.permission is not None and not self.permission.done()

    def update(self, fields: Mapping[str, Any]) -> None:
        """Take over what a message says about the call; what it does not say stays."""
        if isinstance(kind := fields.get("kind"), str):
            self.kind = kind if kind in KINDS else "other"
        if isinstance(status := fields.get("status"), str):
            self.status = status
        if isinstance(title := fields.get("title"), str):
            self._title = _short(clean_line(title), MAX_TITLE)
        if (given := fields.get("rawInput")) is not None and given != {}:
            self._input = _json(given)
        if isinstance(locations := fields.get("locations"), list):
            found = (_text_of(each, "path") for each in _dicts(cast("list[object]", locations)))
            self._paths = tuple(_short(clean_line(path), MAX_TITLE) for path in found if path)[:MAX_PATHS]
        if isinstance(content := fields.get("content"), list):
            self._take_content(_dicts(cast("list[object]", content)))
        if (output := fields.get("rawOutput")) is not None:
            self._output = clean(output[:MAX_RESULT]) if isinstance(output, str) else _json(output, MAX_RESULT)

    def _take_content(self, blocks: Iterable[Mapping[str, Any]]) -> None:
        texts: list[str] = []
        changes: list[dict[str, str]] = []
        for block in blocks:
            if block.get("type") == "diff" and len(changes) < MAX_CHANGES:
                path, old, new = (_text_of(block, name) for name in ("path", "oldText", "newText"))
                changes.append(
                    {
                        "path": _short(clean_line(path), MAX_TITLE),
                        "old": _short(clean(old), MAX_CHANGE),
                        "new": _short(clean(new), MAX_CHANGE),
                    }
                )
            elif block.get("type") == "content" and isinstance(inner := block.get("content"), dict):
                texts.append(content_text(cast("dict[str, Any]", inner)))
        self._text = clean("\n".join(filter(None, texts))[:MAX_RESULT])
        self._changes = tuple(changes) or self._changes

    def as_call(self) -> ToolCall:
        """The call as a reply of the run has it."""
        facts: dict[str, object] = {"title": self._title, "call": self.id}
        if self.asks:
            facts["asks"] = True
        if self._input:
            facts["input"] = msgspec.Raw(self._input.encode())
        if self._paths:
            facts["paths"] = self._paths
        if self._changes:
            facts["changes"] = self._changes
        return ToolCall(self.name, msgspec.json.encode(facts).decode(), self.id)

    @property
    def title(self) -> str:
        return self._title or self.kind

    @property
    def result(self) -> str:
        """What the agent said about the result."""
        if self._text or self._output:
            return self._text or self._output
        if self._changes:
            return "Changed: " + ", ".join(change["path"] for change in self._changes)
        return "" if self.is_finished else NO_RESULT

    def option(self, kind: str) -> str | None:
        """The id of the option of a kind among those that the agent offers."""
        for option in self.options:
            if option.get("kind") == kind and isinstance(id := option.get("optionId"), str):
                return id
        return None


def content_text(block: Mapping[str, Any]) -> str:
    """The text of a content block; a note for one that is none.

    >>> content_text({"type": "text", "text": "hello"}), content_text({"type": "image", "mimeType": "image/png"})
    ('hello', '[image]')
    """
    kind = block.get("type")
    if kind == "text":
        return _text_of(block, "text")
    if kind == "resource" and isinstance(inner := block.get("resource"), dict):
        resource = cast("dict[str, Any]", inner)
        return _text_of(resource, "text") or f"[{clean_line(_text_of(resource, 'uri'))[:MAX_TITLE]}]"
    if kind == "resource_link":
        return f"[{clean_line(_text_of(block, 'uri'))[:MAX_TITLE]}]"
    return f"[{kind}]" if kind in ("image", "audio") else ""


def _dicts(values: list[object]) -> Iterable[dict[str, Any]]:
    return (cast("dict[str, Any]", value) for value in values if isinstance(value, dict))


def _text_of(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + CUT


def _json(value: object, limit: int = MAX_INPUT) -> str:
    """A value as JSON; as a cut string if that is too long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= limit else msgspec.json.encode(text[:limit] + CUT).decode()
