"""Registry of the built-in tools: each is made from the dependencies of the process when it is first used.

`builtin.json` describes most of them as they are offered to models, so a run that calls none of its tools loads none of
their modules. `make docs` writes that file from the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallContext, PreparedCall, Tool, ToolResult
from retinue.core.schema import Schema
from retinue.core.text import name_list
from retinue.tools.dependencies import READER, ToolDependencies, ToolFactory, ToolOptions

NAMES: Mapping[str, tuple[str, ...]] = {
    "web": ("search_web", "scrape_webpage", "fetch"),
    "search": ("bash_find", "bash_ripgrep", "grep"),
    "files": ("bash_read", "file_read", "file_write", "file_edit", "file_ops"),
    "python": ("python_execute",),
    "shell": ("shell", "terminal"),
    "todo": ("task_create", "task_get", "task_list", "task_update"),
    "memory": ("memory_store", "memory_recall", "memory_forget"),
    "artifacts": (READER,),
}
BUILTIN: Mapping[str, str] = {name: f"retinue.tools.{module}" for module, names in NAMES.items() for name in names}
"""The module that makes each built-in tool, imported on first use."""

IN_FOLDER = frozenset(name for module in ("search", "files", "python", "shell") for name in NAMES[module])
"""Tools that work in the workspace of their run."""

LONG = frozenset(
    ("shell", "terminal", "fetch", "scrape_webpage", "file_read", "file_ops", "memory_recall", "task_list")
)
"""Tools whose results may be longer than a model should read at once."""

DESCRIBED = tuple(name for name, module in BUILTIN.items() if module != "retinue.tools.memory")
"""Tools that `builtin.json` describes. Those of memories are made with the run, because that opens their files."""

DESCRIPTIONS = Path(__file__).with_name("builtin.json")
SHELLS = NAMES["shell"]


class ToolDescription(Struct, frozen=True, kw_only=True):
    """A built-in tool as runs are offered it; `parameters` is the text of its schema."""

    name: str
    description: str
    parameters: msgspec.Raw
    kind: ToolKind
    risk: Risk
    acts: bool
    timeout: float | None
    stoppable: bool


def described(tools: Iterable[Tool]) -> str:
    """The text of `builtin.json` for these tools."""
    lines = [
        msgspec.json.encode(
            ToolDescription(
                name=tool.spec.name,
                description=tool.spec.description,
                parameters=msgspec.Raw(tool.spec.parameters.encode()),
                kind=tool.kind,
                risk=tool.risk,
                acts=tool.acts,
                timeout=tool.timeout,
                stoppable=tool.stoppable,
            )
        ).decode()
        for tool in tools
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@cache
def _descriptions() -> Mapping[str, ToolDescription]:
    found = msgspec.json.decode(DESCRIPTIONS.read_bytes(), type=list[ToolDescription])
    return {each.name: each for each in found}


class DescribedTool(Tool):
    """A built-in tool by its description; the tool itself is made when it is first called."""

    def __init__(self, description: ToolDescription, make: Callable[[], Tool]) -> None:
        self.description = description
        parameters = bytes(description.parameters).decode()
        self.spec = ToolSpec(description.name, description.description, parameters)
        self.kind = description.kind
        self.risk = description.risk
        self.acts = description.acts
        self.timeout = description.timeout
        self.stoppable = description.stoppable
        self._make = make

    @cached_property
    def tool(self) -> Tool:
        return self._make()

    def prepare(self, arguments: str) -> PreparedCall:
        return self.tool.prepare(arguments)

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return with_allowed_commands(self.spec, policy) if self.spec.name in SHELLS else self.spec

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.tool.call(arguments, context)


def with_allowed_commands(spec: ToolSpec, policy: Policy) -> ToolSpec:
    """The spec of a shell tool with the commands that the policy allows."""
    schema = msgspec.json.decode(spec.parameters, type=Schema)
    schema["properties"]["command"]["description"] += f" Allowed: {name_list(policy.allowed_commands)}."
    return replace(spec, parameters=msgspec.json.encode(schema).decode())


def with_reader(names: Sequence[str]) -> tuple[str, ...]:
    """Tools that were chosen by default, with `artifact_read` if the result of one may be cut.

    A list that a person or a model gave is exact and is not extended.

    >>> with_reader(["grep", "fetch"]), with_reader(["grep"])
    (('grep', 'fetch', 'artifact_read'), ('grep',))
    """
    needed = (READER,) if any(name in LONG or name.startswith("mcp__") for name in names) else ()
    return tuple(dict.fromkeys((*names, *needed)))


class Builtin:
    """The built-in tools of a process; `dependencies`, which follow `options`, are made when the first of them is."""

    def __init__(self, dependencies: Callable[[], ToolDependencies], options: ToolOptions) -> None:
        self._is_usual = _offers_usual_tools(options)
        self._make_dependencies = dependencies
        self._made_dependencies: ToolDependencies | None = None
        self._found: dict[str, Tool] = {}
        self._made: dict[str, Tool] = {}

    def find(self, name: str) -> Tool | None:
        """The built-in tool of that name, or None."""
        if name in self._found or name not in BUILTIN:
            return self._found.get(name)
        description = _descriptions().get(name) if self._is_usual else None
        tool = self.made(name) if description is None else DescribedTool(description, partial(self.made, name))
        return self._found.setdefault(name, tool)

    def made(self, name: str) -> Tool:
        """The built-in tool of that name, and not its description."""
        if name not in self._made:
            make: ToolFactory = import_module(BUILTIN[name]).tools
            for tool in make(self._dependencies):
                self._made.setdefault(tool.spec.name, tool)
        return self._made[name]

    def truncating(self, tool: Tool) -> Tool:
        """The tool with results of limited length; the tool itself if it is the reader of long ones."""
        if tool.spec.name == READER:
            return tool
        if isinstance(tool, DescribedTool):
            return DescribedTool(tool.description, lambda: self._truncating(tool.tool))
        return self._truncating(tool)

    def _truncating(self, tool: Tool) -> Tool:
        from retinue.tools.artifacts import TruncatingTool  # with the first tool that is made

        return TruncatingTool(tool, self._dependencies.key_value, self._dependencies.max_result)

    @property
    def _dependencies(self) -> ToolDependencies:
        if self._made_dependencies is None:
            self._made_dependencies = self._make_dependencies()
        return self._made_dependencies


def _offers_usual_tools(options: ToolOptions) -> bool:
    """Whether the tools are those of `builtin.json`; other options change descriptions, or can be wrong."""
    return options.sandbox == "required" and options.preset is None and options.web_search == "auto"
