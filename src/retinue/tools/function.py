"""A typed function as a tool: its annotations become the schema, its docstring the description.

The model's arguments are decoded and checked against the annotations in one pass; an error message for the model says
what does not fit. The decorated function can still be called as before.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, get_args, overload

import msgspec

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.attachments import File, Image
from retinue.core.errors import BadInput
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Tool, ToolResult
from retinue.core.text import utf8_safe
from retinue.tools.function_schema import Arguments, Misfit
from retinue.tools.threads import in_thread

_PARAMETERS = re.compile(r"(Args|Arguments|Parameters):\s*")
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Keyword Args|Returns?|Yields?|Raises|Examples?|Notes?|See Also|References|Todo"
    r"|Attributes|Warnings?|Warns):\s*|>>> .*"
)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(?P<what>[a-z]+(?: [^:]+)?):")
_SPHINX_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")


def described(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the entry of each parameter.

    Google's sections (`Args:`), NumPy's (`Parameters` above dashes) and Sphinx's fields (`:param x:`) are read.

    >>> described('''Search the logs.
    ...
    ... Args:
    ...     query: what to look for,
    ...         as a regular expression
    ...     limit (int): how many lines
    ...
    ... Returns:
    ...     lines
    ... ''')
    ('Search the logs.', {'query': 'what to look for, as a regular expression', 'limit': 'how many lines'})
    >>> described("Search.\\n\\n:param str query: what to look for\\n:returns: lines")
    ('Search.', {'query': 'what to look for'})
    >>> described("Search.\\n\\nParameters\\n----------\\nquery : str\\n    what to look for")
    ('Search.', {'query': 'what to look for'})
    """
    lines = docstring.splitlines()
    if underlined := [number for number in range(len(lines) - 1) if _UNDERLINE.fullmatch(lines[number + 1])]:
        return _numpy(lines, underlined)
    if fields := [number for number, line in enumerate(lines) if _FIELD.match(line)]:
        return "\n".join(lines[: fields[0]]).strip(), _sphinx(lines[fields[0] :])
    sections = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
    summary = "\n".join(lines[: sections[0]] if sections else lines).strip()
    about: dict[str, str] = {}
    for number in sections:
        if _PARAMETERS.fullmatch(lines[number]):
            about |= _entries(lines[number + 1 :])
    return summary, about


def _numpy(lines: list[str], underlined: list[int]) -> tuple[str, dict[str, str]]:
    about: dict[str, str] = {}
    for number, end in zip(underlined, (*underlined[1:], len(lines)), strict=True):
        if lines[number].strip() in ("Parameters", "Other Parameters"):
            names: list[str] = []
            for line in lines[number + 2 : end]:
                if line.strip() and not line[0].isspace():
                    names = [name.strip().lstrip("*") for name in line.partition(":")[0].split(",")]
                elif line.strip():
                    about |= {name: f"{about.get(name, '')} {line.strip()}".strip() for name in names}
    return "\n".join(lines[: underlined[0]]).strip(), about


def _sphinx(lines: list[str]) -> dict[str, str]:
    about: dict[str, str] = {}
    name = ""
    for line in lines:
        if field := _FIELD.match(line):
            parts = field["what"].split()
            name = parts[-1].lstrip("*") if parts[0] in _SPHINX_PARAMETERS and len(parts) > 1 else ""
            text = line[field.end() :].strip()
            about |= {name: text} if name and text else {}
        elif name and line.strip():
            about[name] = f"{about.get(name, '')} {line.strip()}".strip()
    return about


def _entries(lines: list[str]) -> dict[str, str]:
    """The entries of a section: the first sets the margin, a line that is further in continues the entry before it."""
    entries: dict[str, str] = {}
    margin, name = 0, ""
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and indent == 0:
            break
        margin = margin or indent
        entry = _ENTRY.fullmatch(text) if indent == margin else None
        if entry:
            name = entry["name"]
            entries[name] = entry["text"]
        elif name and text:
            entries[name] = f"{entries[name]} {text}".strip()
    return entries


P = ParamSpec("P")
R = TypeVar("R")

RiskName = Literal["low", "medium", "high"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class FunctionTool(Tool, Generic[P, R]):
    """A typed function as a tool, made by `retinue.tool`; it can still be called as the function."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        kind: ToolKind = "once",
        risk: Risk | RiskName = Risk.LOW,
        timeout: float | None = None,
        acts: bool = False,
        polls: bool = False,
        waits: bool = False,
        assess: Callable[[str], CallRisk] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        name = _checked_name(function, name)
        if kind not in get_args(ToolKind):
            raise BadInput(f"tool {name}: kind is {kind!r}; expected one of: {', '.join(get_args(ToolKind))}")
        if risk not in tuple(Risk):
            raise BadInput(f"tool {name}: risk is {risk!r}; expected one of: {', '.join(Risk)}")
        if timeout is not None and not timeout > 0:
            raise BadInput(f"tool {name}: timeout is {timeout!r}; expected seconds above 0, or None")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadInput(f"tool {name}: the function yields; a tool returns its whole result")

        summary, about = described(inspect.getdoc(function) or "")
        self._arguments = Arguments(function, name=name, about=about)
        self._is_async = inspect.iscoroutinefunction(function)
        self.spec = ToolSpec(
            name=name,
            description=summary if description is None else description,
            parameters=msgspec.json.encode(self._arguments.schema).decode(),
        )
        self.kind: ToolKind = kind
        self.risk = Risk(risk)
        self.acts = acts
        self.polls = polls
        self.waits = waits
        self.timeout = timeout
        self.stoppable = self._is_async
        self._assess = assess

    @property
    def takes_context(self) -> bool:
        """Whether the function receives the context of a call, with which it can start runs."""
        return self._arguments.takes_context

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}>"

    def prepare(self, arguments: str) -> PreparedCall:
        # The arguments are decoded when the call runs: their types may be the user's own code.
        risk = CallRisk(self.risk, self.acts) if self._assess is None else self._assess(arguments)
        return PreparedCall(arguments, risk, partial(self.call, arguments), self.waits)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.call_decoded(self.decode(arguments), context)

    def decode(self, arguments: str) -> msgspec.Struct | Misfit:
        """The model's arguments, decoded and checked against the function's annotations."""
        return self._arguments.decode(arguments)

    async def call_decoded(self, decoded: msgspec.Struct | Misfit, context: CallContext) -> ToolResult:
        """Call the function with decoded arguments; one that is not async runs in a thread, which cannot be stopped."""
        if isinstance(decoded, Misfit):
            return ToolResult(decoded.text, failed=True)
        args, kwargs = self._arguments.bind(decoded, context)
        function = cast("Callable[..., Any]", self.__wrapped__)
        if self._is_async:
            result: object = await function(*args, **kwargs)
        else:
            result = await in_thread(_contained, function, args, kwargs)
            if inspect.isawaitable(result):  # a plain function that returns the coroutine of an async one
                result = await result
        if isinstance(result, ToolResult):
            return ToolResult(as_text(result.text), result.failed, attachments=tuple(result.attachments))
        if isinstance(result, Image | File):
            return ToolResult("", attachments=(result,))
        if isinstance(result, list | tuple):
            parts = cast("Sequence[object]", result)
            if any(isinstance(part, Image | File) for part in parts):
                return _mixed(parts)
        return ToolResult(as_text(cast("object", result)))


def _mixed(parts: Sequence[object]) -> ToolResult:
    """Texts and attachments of a list: the texts as lines, the attachments after them."""
    texts = [as_text(part) for part in parts if not isinstance(part, Image | File)]
    return ToolResult("\n".join(texts), attachments=tuple(part for part in parts if isinstance(part, Image | File)))


def _contained(function: Callable[..., Any], args: list[object], kwargs: dict[str, object]) -> object:
    """Call the function; exceptions that would make the awaiting task hang or exit become a `RuntimeError`."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("StopIteration left the function: a next() without a default?") from error
    except (GeneratorExit, KeyboardInterrupt) as error:  # not a real Ctrl-C, which arrives in the main thread
        raise RuntimeError(f"{type(error).__name__} left the function") from error


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    kind: ToolKind = "once",
    risk: Risk | RiskName = Risk.LOW,
    timeout: float | None = None,
    acts: bool = False,
    polls: bool = False,
    waits: bool = False,
    assess: Callable[[str], CallRisk] | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    kind: ToolKind = "once",
    risk: Risk | RiskName = Risk.LOW,
    timeout: float | None = None,
    acts: bool = False,
    polls: bool = False,
    waits: bool = False,
    assess: Callable[[str], CallRisk] | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a typed function: `@retinue.tool`, or with options `@retinue.tool(kind="pure")`.

    Every parameter needs a type that JSON can carry: builtins, dataclasses, typed dicts, msgspec structs, enums,
    unions, pydantic models. A parameter annotated `CallContext` receives the context of the call and is not shown to
    the model. The docstring describes the tool, and the parameters in the style of Google, NumPy or Sphinx.
    `Annotated[int, "how many"]`, `msgspec.Meta` and `Field` of pydantic describe a parameter and bound its values.

    - `name`, `description`: instead of the name and the docstring of the function.
    - `kind`: what recovery does with a call that a crash interrupted; see `ToolKind`.
    - `risk`: `low`, `medium` or `high`; a policy may require an approval.
    - `timeout`: seconds that a call may take; None for the limit of the run.
    - `acts`: whether a call changes something. Such calls count as actions of a policy and are refused in read-only
      mode.
    - `polls`: whether a model may repeat the same call with the same result, as of a tool that waits for something; a
      run that repeats others ends as `looping`.
    - `waits`: whether a call waits for other runs (`CallContext.spawn`); it then has no deadline of its own.
    - `assess`: a function from the arguments of one call, as JSON text, to its `CallRisk`, instead of `risk` and
      `acts`.

    The model reads a returned text as it is, and any other value as JSON. It is shown a returned `retinue.Image` or
    `retinue.File`, alone or in a list with texts. The function may also return a `ToolResult`, or raise `ToolError`
    with a text for the model. A function that is not async runs in a thread.

    Returns a `FunctionTool`, which can still be called as the function. Raises `BadInput` for an unusable name,
    parameter or option.

    >>> @tool(kind="pure")
    ... def search_logs(query: str, limit: int = 20) -> str:
    ...     \"\"\"Search the service logs.
    ...
    ...     Args:
    ...         query: what to look for
    ...     \"\"\"
    ...     return f"{limit} lines about {query}"
    >>> search_logs("pool")
    '20 lines about pool'
    >>> search_logs.spec.name, search_logs.spec.description
    ('search_logs', 'Search the service logs.')
    """

    def decorate(function: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(
            function,
            name=name,
            description=description,
            kind=kind,
            risk=risk,
            timeout=timeout,
            acts=acts,
            polls=polls,
            waits=waits,
            assess=assess,
        )

    return decorate if function is None else decorate(function)


def as_text(value: object) -> str:
    """A result as the model reads it: text unchanged, None as an empty text, others as JSON, else by `str`.

    >>> as_text("plain"), as_text(None), as_text({"found": [1, 2]}), as_text(1 + 2j)
    ('plain', '', '{"found":[1,2]}', '(1+2j)')
    """
    match value:
        case None:
            return ""
        case bytes():
            return value.decode("utf-8", "replace")
        case str():
            return utf8_safe(str.__str__(value))  # a plain string: stores cannot encode a subclass
        case _:
            pass
    try:
        encoded = msgspec.json.encode(value, enc_hook=_in_builtins)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return utf8_safe(str(value))
    # A date, an enum or a path alone needs no quotes.
    return msgspec.json.decode(encoded, type=str) if encoded.startswith(b'"') else encoded.decode()


def _in_builtins(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # of a pydantic model
    return dump(mode="json") if callable(dump) else str(value)


def _checked_name(function: Callable[..., object], name: str | None) -> str:
    chosen: str = getattr(function, "__name__", "") if name is None else name
    if not _NAME.fullmatch(chosen):
        raise BadInput(
            f"tool name {chosen!r}: expected a letter or _ and then up to 63 letters, digits, _ and -; "
            "give one with @tool(name=...)"
        )
    return chosen
