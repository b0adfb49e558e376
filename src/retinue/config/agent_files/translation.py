"""Tool names and model names of other programs, as names of Retinue; the section `[agent_files]` changes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from retinue.config.section_type import Section
from retinue.providers.catalog import CLAUDE_MODELS

Name = Annotated[str, Meta(min_length=1)]

TO_DO_TOOLS = ("task_create", "task_get", "task_list", "task_update")

DELEGATION: tuple[str, ...] = ()
"""The tools of other programs that start agents: dialects bring those of Retinue."""

TOOLS: Mapping[str, tuple[str, ...]] = {
    # Claude Code
    "Read": ("file_read",),
    "NotebookRead": ("file_read",),
    "Write": ("file_write",),
    "Edit": ("file_edit",),
    "MultiEdit": ("file_edit",),
    "Bash": ("shell",),
    "BashOutput": (),
    "KillShell": (),
    "KillBash": (),
    "Grep": ("grep",),
    "Glob": ("bash_find",),
    "LS": ("bash_find",),
    "WebFetch": ("fetch",),
    "WebSearch": ("search_web",),
    "TodoWrite": TO_DO_TOOLS,
    "TodoRead": TO_DO_TOOLS,
    "TaskCreate": ("task_create",),
    "TaskGet": ("task_get",),
    "TaskList": ("task_list",),
    "TaskUpdate": ("task_update",),
    "Task": DELEGATION,
    "Agent": DELEGATION,
    "SendMessage": DELEGATION,
    "TaskStop": DELEGATION,
    "ListAgents": DELEGATION,
    # OpenCode, in lower case the same names, and:
    "list": ("bash_find",),
    "patch": ("file_edit",),
    # Gemini CLI
    "read_file": ("file_read",),
    "read_many_files": ("file_read",),
    "write_file": ("file_write",),
    "replace": ("file_edit",),
    "run_shell_command": ("shell",),
    "search_file_content": ("grep",),
    "grep_search": ("grep",),
    "list_directory": ("bash_find",),
    "web_fetch": ("fetch",),
    "google_web_search": ("search_web",),
    "write_todos": TO_DO_TOOLS,
    "save_memory": ("memory_store",),
    # Copilot
    "search": ("grep", "bash_find"),
    "codebase": ("grep", "bash_find"),
    "textSearch": ("grep",),
    "fileSearch": ("bash_find",),
    "readFile": ("file_read",),
    "listDirectory": ("bash_find",),
    "editFiles": ("file_edit", "file_write"),
    "createFile": ("file_write",),
    "execute": ("shell",),
    "runCommands": ("shell",),
    "runInTerminal": ("shell",),
    "runTests": ("shell",),
    "web": ("fetch", "search_web"),
    "todo": TO_DO_TOOLS,
    "todos": TO_DO_TOOLS,
    "runSubagent": DELEGATION,
}
"""The tools of Retinue that stand for a tool of another program; an empty list is a tool that is not needed."""

INHERIT = "inherit"

_VENDORS = {
    "anthropic": "anthropic",
    "openai": "openai-responses",
    "google": "gemini",
    "gemini": "gemini",
    "ollama": "ollama",
    "lmstudio": "lmstudio",
    "llama.cpp": "llamacpp",
    "vllm": "vllm",
}
"""Providers in `provider/model` of OpenCode, as wires."""

_BY_NAME = ((re.compile(r"claude-"), "anthropic"), (re.compile(r"gpt-|o\d|codex-"), "openai-responses"))
_GEMINI = re.compile(r"gemini-")


class AgentFileSettings(Struct, frozen=True, kw_only=True):
    """How agent files of other programs are read."""

    folders: Annotated[
        tuple[Name, ...],
        Meta(
            description="Folders with agent files that every run has, relative to this file.",
            examples=[[".claude/agents"]],
        ),
    ] = ()
    tools: Annotated[
        Mapping[str, tuple[Name, ...]],
        Meta(description="Tools of Retinue in place of a tool that a file names.", examples=[{"Bash": ["terminal"]}]),
    ] = {}
    models: Annotated[
        Mapping[str, str],
        Meta(
            description="Models in place of those that a file names; an empty text is the model of the parent run.",
            examples=[{"sonnet": "local:qwen3"}],
        ),
    ] = {}
    instructions: Annotated[
        bool,
        Meta(
            description="Whether AGENTS.md or CLAUDE.md of the workspace becomes part of the system text of root runs.",
            examples=[False],
        ),
    ] = False


AGENT_FILES = Section(
    name="agent_files",
    type=AgentFileSettings,
    about="Agent files of Claude Code, Codex, OpenCode, Gemini CLI and Copilot (--agents DIR).",
)


class ToolTranslation(NamedTuple):
    """Tools of Retinue for one name in a file; `note` says what was left out."""

    tools: tuple[str, ...]
    note: str = ""


NO_PROVIDERS: Mapping[str, str] = {}


class FormatTables:
    """The tables with which agent files are read.

    `own_tools` are the tools that exist under their own names. `providers` has the name of a provider that can be used,
    by its name and by its wire: a model of any other is replaced by the model of the parent run.
    """

    def __init__(
        self,
        settings: AgentFileSettings | None = None,
        *,
        own_tools: frozenset[str] = frozenset(),
        providers: Mapping[str, str] = NO_PROVIDERS,
    ) -> None:
        settings = settings or AgentFileSettings()
        self._own = own_tools
        self._providers = providers
        self._models = settings.models
        self._tools = {_folded(name): tools for name, tools in TOOLS.items()}
        self._tools |= {_folded(name): tools for name, tools in settings.tools.items()}

    def tool(self, name: str) -> ToolTranslation:
        """The tools for a name in a file."""
        if name.startswith("mcp__"):
            return ToolTranslation((name,))
        whole, bracket, scope = name.partition("(")
        whole = whole.strip()
        found = self._found(whole)
        if found is None and "/" in whole:  # Copilot: SET/TOOL
            found = self._found(whole.rpartition("/")[2])
        if found is None:
            return ToolTranslation((), f"tool {name!r} has no equal and is left out")
        if bracket:
            limited = scope.rstrip(") ")
            if not found:
                note = f"the limit of tool {name!r} is not kept: settings decide which agents it can start"
                return ToolTranslation((), note)
            # To give the whole tool would widen what the file says.
            return ToolTranslation((), f"tool {name!r} is left out: its limit to {limited!r} cannot be kept")
        return ToolTranslation(found)

    def _found(self, name: str) -> tuple[str, ...] | None:
        found = self._tools.get(_folded(name))
        return (name,) if found is None and name in self._own else found

    def model(self, name: str) -> tuple[str, str]:
        """The model for a name in a file, and a note if it is another one; empty is the model of the parent run."""
        name = name.strip()
        if name in self._models:
            return self._models[name], ""
        if name.lower() in ("", INHERIT, "default", "auto"):
            return "", ""
        alias = CLAUDE_MODELS.get(name.lower())
        if alias is not None:
            return self._at("anthropic", alias, name)
        vendor, slash, rest = name.partition("/")
        if slash:
            wire = _VENDORS.get(vendor.lower(), vendor)
            return self._at(wire, rest, name)
        provider, colon, rest = name.partition(":")
        if colon and provider in self._providers:
            return name, ""
        bare = name.partition("[")[0]
        for pattern, wire in (*_BY_NAME, (_GEMINI, "gemini")):
            if pattern.match(bare):
                return self._at(wire, bare, name)
        return "", f"model {name!r} is not known here; the model of the parent run is used ([agent_files] models)"

    def _at(self, provider: str, model: str, written: str) -> tuple[str, str]:
        if provider in self._providers:
            return f"{self._providers[provider]}:{model}", ""
        return "", f"model {written!r} needs the provider {provider}, which is not set up; the parent's model is used"


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
