"""Tool calls that a model wrote as text: recognise them in a reply, or say why an attempt at a call failed.

Small models, and servers that do not know a model's template, put the call into the answer: in tags (Hermes, Qwen,
Llama), after a mark (Mistral, Llama), in a fenced block of JSON, or bare, sometimes between doubled braces. Only tools
that the request offers are called. An object counts if it has a name and arguments, or the parameters of one tool;
other JSON in an answer stays an answer. The work is bounded: the text, the number of calls and the depth of the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.ports import Request
from retinue.core.text import NOT_JSON

MAX_TEXT = 100_000
"""Characters of a reply that is examined; no call is longer."""

MAX_BLOCKS = 64
"""Blocks of one reply that are read as calls."""

_TAGGED = re.compile(
    r"<(tool_call|function_call|tool_use|tools|function)>(?P<body>.*?)(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE
)
_NAMED = re.compile(r"<function=(?P<name>[^>\s]{1,128})>(?P<body>.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(?P<name>[^>\s]{1,128})>\n?")
_PARAMETER_END = "</parameter>"
_MARKED = re.compile(r"(?:\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call\|>)\s*(?P<body>.*)\Z", re.DOTALL)
_MISTRAL = re.compile(r"(?P<name>[\w.-]{1,128})\s*\[ARGS\]\s*(?P<body>\{.*)\Z", re.DOTALL)
_FENCED = re.compile(r"```(?P<kind>[\w-]{0,20})[ \t]*\n(?P<body>.*?)(?:```|\Z)", re.DOTALL)
_CALL_FENCES = ("", "json", "tool", "tool_call", "tool_code", "function", "function_call", "plaintext", "text")
_END_MARKS = re.compile(r"<\|(?:eom_id|eot_id|im_end|end|endoftext)\|>|</s>")

_NAMES = ("name", "tool", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input", "params")
_OTHER_KEYS = frozenset({"id", "type", "index", *_NAMES, *_ARGUMENTS})

_EMPTY: tuple[object, ...] = (None, "", [], {})
"""Values of an optional parameter that say nothing; 0 and false are none of them."""

_LOOKS_LIKE_A_CALL = re.compile(
    r"""<(?:tool_call|function_call|tool_use)>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call\|>
    |["']?(?:name|tool|tool_name|function|function_name)["']?\s*:\s*["'][\w.-]{1,128}["']\s*,
     \s*["']?(?:arguments|parameters|args|tool_input)["']?\s*:\s*[{"]""",
    re.VERBOSE,
)

CALL_MARKS = ("{", "<", "[TOOL_CALLS]", "arguments", "parameters", "args", "tool_input")
"""Every text with a call has one of these; most texts have none, and need not be searched."""


class TextCalls(Struct, frozen=True):
    """What a text contains: calls and the words around them, or the error of an attempt at a call."""

    calls: tuple[ToolCall, ...] = ()
    rest: str = ""
    error: str = ""


NOTHING = TextCalls()


def with_text_calls(reply: Reply, request: Request) -> Reply:
    """The reply with the calls in its text made calls of its own, or with the error of an attempt at a call.

    A reply that has calls, or that was cut off or refused, stays as it is; so does a reply that must not call tools.
    To a request without any tool, a written call is an attempt that failed.
    """
    message, may_call = reply.message, request.purpose == "turn" and not request.withheld_tools
    if message.calls or reply.stop != "end" or not may_call or len(message.text) > MAX_TEXT:
        return reply
    found = find_calls(message.text, request.tools, must_be_marked=request.output is not None)
    if found.calls:
        calls = AssistantMessage(found.rest, found.calls, message.thinking)
        return replace(reply, message=calls, stop="calls", calls_in_text=True)
    return replace(reply, call_error=found.error) if found.error else reply


def find_calls(text: str, tools: Sequence[ToolSpec], *, must_be_marked: bool = False) -> TextCalls:
    """The calls of `tools` in a text. With `must_be_marked` only tags and marks count: JSON may be the answer.

    >>> look = [ToolSpec("look")]
    >>> find_calls('Let me look.\\n<tool_call>{"name": "look", "arguments": {"at": "logs"}}</tool_call>', look)
    TextCalls(calls=(ToolCall(name='look', arguments='{"at":"logs"}', id=''),), rest='Let me look.', error='')
    >>> find_calls('{"name": "loook", "arguments": {}}', look).error
    "there is no tool named 'loook'"
    >>> find_calls('{"name": "Ada", "age": 36}', look)
    TextCalls(calls=(), rest='', error='')
    """
    if "{" not in text and not _LOOKS_LIKE_A_CALL.search(text):
        return NOTHING
    text = _END_MARKS.sub("", text)
    calls: list[ToolCall] = []
    unknown = ""
    rest: list[str] = []
    position = 0
    offered = _Offered(tools)
    for start, end, block in _blocks(text, must_be_marked=must_be_marked):
        found = [block] if isinstance(block, ToolCall) else _calls_in(block, offered)
        named = [known for call in found if (known := offered.known(call)) is not None]
        if named and len(named) == len(found):
            calls += named
            rest.append(text[position:start])
            position = end
        elif found:
            unknown = unknown or next(call.name for call in found if offered.known(call) is None)
    if calls and not unknown:
        words = "".join((*rest, text[position:])).strip()
        return TextCalls(tuple(calls[:MAX_BLOCKS]), words)
    if unknown:
        return TextCalls(error=f"there is no tool named {unknown[:128]!r}")
    return TextCalls(error=_failed_attempt(text, must_be_marked=must_be_marked))


class _Parameters(Struct):
    """What the schema of a tool's parameters says about their names and choices."""

    properties: dict[str, _Choices] = {}
    required: list[str] = []


class _Choices(Struct, rename="camel"):
    enum: list[object] = []
    minimum: float | None = None
    exclusive_minimum: float | None = None

    def is_filled_in(self, value: object) -> bool:
        """Whether a value says nothing: it is empty, or a zero that the schema does not allow."""
        if type(value) in (int, float) and value == 0:
            return (self.minimum or 0) > 0 or (-1 if self.exclusive_minimum is None else self.exclusive_minimum) >= 0
        return value in _EMPTY


class _Offered:
    """The tools of a request; their schemas are read when a text has JSON without the name of a tool."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._read: list[tuple[str, _Parameters]] | None = None

    def known(self, call: ToolCall) -> ToolCall | None:
        """The call, if its tool is offered; or the call that it means: of the one tool with a choice of that name.

        Models call the action of a tool, `spawn`, in place of the tool that has it as a choice of its `action`.
        """
        if call.name in self._tools:
            return self._without_empty(call)
        means = [
            (tool, parameter)
            for tool, schema in self._schemas()
            for parameter in schema.required
            if parameter in schema.properties and call.name in schema.properties[parameter].enum
        ]
        if len(means) != 1:
            return None
        ((tool, parameter),) = means
        arguments = cast("dict[str, object]", json.loads(call.arguments))
        return self._without_empty(ToolCall(tool, _compact({**arguments, parameter: call.name}), call.id))

    def _without_empty(self, call: ToolCall) -> ToolCall:
        """The call without optional parameters that say nothing: models fill in every parameter of a schema."""
        arguments = cast("dict[str, object]", json.loads(call.arguments))
        if all(value != 0 and value not in _EMPTY for value in arguments.values()):
            return call
        schema = next((schema for name, schema in self._schemas() if name == call.name), None)
        if schema is None:
            return call
        kept = {
            name: value
            for name, value in arguments.items()
            if name in schema.required or not schema.properties.get(name, _Choices()).is_filled_in(value)
        }
        return call if kept == arguments else ToolCall(call.name, _compact(kept), call.id)

    def by_parameters(self, fields: dict[str, object]) -> ToolCall | None:
        """A call of the one tool whose required parameters the fields have, and most of whose fields it knows."""
        fitting = [
            tool
            for tool, schema in self._schemas()
            if schema.required
            and fields.keys() >= set(schema.required)
            and 2 * len(fields.keys() & schema.properties.keys()) > len(fields)
        ]
        return ToolCall(fitting[0], _compact(fields)) if len(fitting) == 1 else None

    def _schemas(self) -> Iterable[tuple[str, _Parameters]]:
        if self._read is None:  # once: a text may have many calls, and a request large schemas
            self._read = []
            for name, tool in self._tools.items():
                with suppress(*NOT_JSON):
                    self._read.append((name, msgspec.json.decode(tool.parameters, type=_Parameters)))
        return self._read


def _compact(arguments: object) -> str:
    return json.dumps(arguments, separators=(",", ":"))


def _blocks(text: str, *, must_be_marked: bool) -> Iterator[tuple[int, int, str | ToolCall]]:
    """The parts of a text that may be calls, with their places: of the first form that the text uses."""
    if named := [match for match in _first(_NAMED.finditer(text)) if not _is_quoted(text, match.start())]:
        for match in named:
            arguments = _named_arguments(match["body"])
            yield *_widened(text, match), match["body"] if arguments is None else ToolCall(match["name"], arguments)
        return
    if tagged := [match for match in _first(_TAGGED.finditer(text)) if not _is_quoted(text, match.start())]:
        yield from ((*match.span(), match["body"]) for match in tagged)
        return
    if (marked := _MARKED.search(text)) is not None:
        if (mistral := _MISTRAL.match(marked["body"])) is not None and (value := _first_json(mistral["body"])):
            yield *marked.span(), ToolCall(mistral["name"], msgspec.json.encode(value).decode())
        else:
            yield *marked.span(), marked["body"]
        return
    if must_be_marked:
        return
    if fenced := [match for match in _first(_FENCED.finditer(text)) if match["kind"].lower() in _CALL_FENCES]:
        yield from ((*match.span(), match["body"]) for match in fenced)
        return
    begin = text.find("{")
    if begin >= 0 and text[begin - 1 : begin] == "[":
        begin -= 1
    if begin >= 0 and not _is_quoted(text, begin):
        value, length = _json_prefix(text[begin:])
        if value is not None and not text[begin + length :].strip():  # the call is the end of the reply
            yield begin, len(text), text[begin:]


def _first(matches: Iterator[re.Match[str]]) -> Iterator[re.Match[str]]:
    for _, match in zip(range(MAX_BLOCKS), matches, strict=False):
        yield match


def _is_quoted(text: str, at: int) -> bool:
    """Whether a place is in a line that is quoted (`> `), or behind words and an open backtick of its line.

    Models quote what a page or a child wrote: that is no call of theirs.
    """
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before.lstrip().startswith(">") or (before.count("`") % 2 == 1 and bool(before.strip("` \t")))


def _widened(text: str, match: re.Match[str]) -> tuple[int, int]:
    """The place of a call, with the tag around it."""
    start, end = match.span()
    before, after = text[:start].rstrip(), text[end:].lstrip()
    if before.endswith("<tool_call>"):
        start = len(before) - len("<tool_call>")
    if after.startswith("</tool_call>"):
        end = len(text) - len(after) + len("</tool_call>")
    return start, end


def _named_arguments(body: str) -> str | None:
    """The arguments of `<function=NAME>`: a JSON object (Llama), or a tag for each parameter (Qwen); else None."""
    if (value := _first_json(body)) is not None:
        return msgspec.json.encode(value).decode()
    arguments = {name: _value_of(value) for name, value in _parameters(body)}
    return msgspec.json.encode(arguments).decode() if arguments or not body.strip() else None


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """The names and texts of parameters that are written as tags; one without an end is none, and neither is the rest.

    No part of the text is read twice: it may have any number of tags that have no end.
    """
    position = 0
    for _ in range(MAX_BLOCKS):
        begin = _PARAMETER.search(body, position)
        end = -1 if begin is None else body.find(_PARAMETER_END, begin.end())
        if begin is None or end < 0:
            return
        yield begin["name"], body[begin.end() : end].removesuffix("\n")
        position = end + len(_PARAMETER_END)


def _value_of(text: str) -> object:
    """A parameter without quotes: a number, a boolean or a structure as JSON, anything else as text."""
    try:
        value: object = msgspec.json.decode(text)
    except NOT_JSON:
        return text
    return text if isinstance(value, str) else value


def _first_json(text: str) -> dict[str, object] | None:
    value, _ = _json_prefix(text.strip())
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


_DECODER = json.JSONDecoder(strict=False)


def _json_prefix(text: str) -> tuple[object, int]:
    """The JSON value that a text begins with, and its length; doubled braces around it are read as single ones."""
    is_doubled = text.startswith("{{")
    try:
        value, end = _DECODER.raw_decode(text, 1 if is_doubled else 0)
    except (ValueError, RecursionError):
        return None, 0
    while is_doubled and text[end : end + 1] in ("}", " ", "\n"):  # some close more than they opened
        end += 1
    return value, end


def _calls_in(block: str, offered: _Offered) -> list[ToolCall]:
    """The calls of a block: one object, a list of them, or several one after the other; empty if it has none."""
    calls: list[ToolCall] = []
    rest = block.strip()
    while rest and len(calls) < MAX_BLOCKS:
        value, length = _json_prefix(rest)
        if not length:
            return []
        several = cast("list[object]", value) if isinstance(value, list) else [value]
        for each in several[:MAX_BLOCKS]:
            call = _as_call(each, offered)
            if call is None:
                return []
            calls.append(call)
        rest = rest[length:].lstrip(" \t\r\n;,")
    return calls


def _as_call(value: object, offered: _Offered) -> ToolCall | None:
    """An object with a name and arguments, or with the parameters of one tool, as a call; None for any other value."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, object]", value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        fields = cast("dict[str, object]", inner)
    name = next((fields[key] for key in _NAMES if isinstance(fields.get(key), str)), None)
    key = next((key for key in _ARGUMENTS if key in fields), None)
    if not isinstance(name, str) or key is None or not _OTHER_KEYS.issuperset(fields):
        return offered.by_parameters(fields)
    arguments = fields[key]
    if isinstance(arguments, str):
        arguments = _first_json(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    identifier = fields.get("id")
    return ToolCall(name, _compact(cast("object", arguments)), identifier if isinstance(identifier, str) else "")


def _failed_attempt(text: str, *, must_be_marked: bool) -> str:
    """Why a text that was clearly meant as a call is none; empty for a text that may be an answer."""
    attempts = (each for each in _first(_LOOKS_LIKE_A_CALL.finditer(text)) if not _is_quoted(text, each.start()))
    match = next(attempts, None)
    if match is None or (must_be_marked and text[match.start()] not in "<["):
        return ""
    if text[match.start()] in "<[":
        return "what follows the mark of a tool call is not a JSON object with a name and arguments"
    is_json = re.match(r"\s*(?:```(?:json|tool\w*|function\w*)?[ \t]*\n\s*)?[\[{]", text) is not None
    return "its JSON cannot be read" if is_json else ""
