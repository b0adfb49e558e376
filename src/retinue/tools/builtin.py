"""Registry of the built-in tools: each is created on first use, from the dependencies of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from retinue.core.ports import Tool
from retinue.tools.artifacts import READER, TruncatingTool
from retinue.tools.dependencies import ToolDependencies, ToolFactory

NAMES: Mapping[str, tuple[str, ...]] = {
    "web": ("search_web", "scrape_webpage", "fetch"),
    "search": ("bash_find", "bash_ripgrep", "grep"),
    "files": ("bash_read", "file_read", "file_write", "file_edit", "file_ops"),
    "python": ("python_execute",),
    "shell": ("shell", "terminal"),
    "todo": ("task_create", "task_get", "task_list", "task_update"),
    "memory": ("memory_store", "memory_recall", "memory_forget"),
    "artifacts": ("artifact_read",),
}
BUILTIN: Mapping[str, str] = {name: f"retinue.tools.{module}" for module, names in NAMES.items() for name in names}
"""The module that makes each built-in tool, imported on first use."""

IN_FOLDER = frozenset(name for module in ("search", "files", "python", "shell") for name in NAMES[module])
"""Tools that work in the workspace of their run."""

LONG = frozenset(
    ("shell", "terminal", "fetch", "scrape_webpage", "file_read", "file_ops", "memory_recall", "task_list")
)
"""Tools whose results may be longer than a model should read at once."""


def with_reader(names: Sequence[str]) -> tuple[str, ...]:
    """Tools that were chosen by default, with `artifact_read` if the result of one may be cut.

    A list that a person or a model gave is exact and is not extended.

    >>> with_reader(["grep", "fetch"]), with_reader(["grep"])
    (('grep', 'fetch', 'artifact_read'), ('grep',))
    """
    needed = (READER,) if any(name in LONG or name.startswith("mcp__") for name in names) else ()
    return tuple(dict.fromkeys((*names, *needed)))


class Builtin:
    """The built-in tools of a process; `dependencies` is called when the first of them is needed."""

    def __init__(self, dependencies: Callable[[], ToolDependencies]) -> None:
        self._make_dependencies = dependencies
        self._made_dependencies: ToolDependencies | None = None
        self._made: dict[str, Tool] = {}

    def find(self, name: str) -> Tool | None:
        """The built-in tool of that name, or None."""
        if name not in self._made and name in BUILTIN:
            make: ToolFactory = import_module(BUILTIN[name]).tools
            for tool in make(self._dependencies):
                self._made.setdefault(tool.spec.name, tool)
        return self._made.get(name)

    def truncating(self, tool: Tool) -> Tool:
        """The tool with results of limited length; the tool itself if it is the reader of long ones."""
        if tool.spec.name == READER:
            return tool
        return TruncatingTool(tool, self._dependencies.key_value, self._dependencies.max_result)

    @property
    def _dependencies(self) -> ToolDependencies:
        if self._made_dependencies is None:
            self._made_dependencies = self._make_dependencies()
        return self._made_dependencies
