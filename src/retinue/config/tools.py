"""The sections `[tools]` and `[server_tools.<name>]`: the user's tools, and options of built-in and of vendors' tools.

The user's files are not imported here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config import error_texts
from retinue.config.error_texts import quoted
from retinue.config.providers import OptionalVariable
from retinue.config.section_type import NamedTables, Section
from retinue.config.validation import Issue
from retinue.tools.dependencies import PROGRAM_MEMORY_MB, ToolOptions


class ToolsSettings(Struct, frozen=True, kw_only=True):
    """Tool modules and options of the built-in tools."""

    modules: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Python files with functions decorated with @retinue.tool, relative to this file.",
            examples=[["./mytools.py"]],
        ),
    ] = ()
    sandbox: Annotated[
        Literal["required", "off"],
        Meta(
            description="Whether programs of agents run only in a sandbox (required) or without one (off).",
            examples=["required"],
        ),
    ] = "required"
    network: Annotated[
        bool, Meta(description="Whether programs of shell and terminal may use the network.", examples=[False])
    ] = False
    web_search: Annotated[
        str,
        Meta(
            description="Web search: ddgs, brave (BRAVE_API_KEY), searxng:ADDRESS, or auto, the first that is set up.",
            examples=["auto"],
        ),
    ] = "auto"
    memory: Annotated[
        Literal["sqlite", "markdown"],
        Meta(
            description="Memory backend of agents: sqlite, or markdown (files in the state folder, not in workspaces).",
            examples=["sqlite"],
        ),
    ] = "sqlite"
    workspaces: Annotated[
        tuple[str, ...],
        Meta(
            description="Workspaces that are fetched for runs of other processes, as patterns.",
            examples=[["git+https://git.example/team/*"]],
        ),
    ] = ()
    max_result: Annotated[
        int,
        Meta(
            ge=1000,
            le=10_000_000,
            description="Maximum characters of a tool result sent to a model; it can page through the rest.",
            examples=[50_000],
        ),
    ] = 50_000
    program_memory_mb: Annotated[
        int,
        Meta(
            ge=64,
            le=1_048_576,
            description="Memory limit in MiB of a program with all its processes; python_execute asks for less.",
            examples=[2048],
        ),
    ] = PROGRAM_MEMORY_MB
    program_memory_total_mb: Annotated[
        Annotated[int, Meta(ge=64, le=16_777_216)] | None,
        Meta(
            description="Memory limit in MiB of all programs at once; by default 3/4 of the machine's memory.",
            examples=[8192],
        ),
    ] = None

    def options(self) -> ToolOptions:
        return ToolOptions(
            sandbox=self.sandbox,
            network=self.network,
            web_search=self.web_search,
            memory=self.memory,
            workspaces=self.workspaces,
            max_result=self.max_result,
            program_memory_mb=self.program_memory_mb,
            program_memory_total_mb=self.program_memory_total_mb,
        )


ALLOWED = "a Python file (.py)"
MAX_SHOWN_PATH = 500

TOOLS = Section(name="tools", type=ToolsSettings, about="Your own tools in Python, and options of the built-in ones.")


_Entry = Annotated[str, Meta(min_length=1, max_length=500)]
_Entries = Annotated[tuple[_Entry, ...], Meta(max_length=100)]


class ServerToolSettings(Struct, frozen=True, kw_only=True):
    """A tool that the vendor runs: web_search, web_fetch, code_execution or file_search; with a url an MCP server."""

    max_uses: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, Meta(description="Uses within one reply.", examples=[5])
    ] = None
    allowed_domains: Annotated[
        _Entries, Meta(description="The only hosts of web_search and web_fetch.", examples=[["docs.example"]])
    ] = ()
    blocked_domains: Annotated[
        _Entries, Meta(description="Hosts that they leave out, instead.", examples=[["forum.example"]])
    ] = ()
    stores: Annotated[
        _Entries, Meta(description="Document stores of file_search, by the vendor's ids.", examples=[["vs_123"]])
    ] = ()
    url: Annotated[
        str | None,
        Meta(description="The address of a remote MCP server.", examples=["https://mcp.example/mcp"]),
    ] = None
    token_env: Annotated[
        OptionalVariable | None,
        Meta(description="The variable of its token, which the vendor is sent.", examples=["DOCS_TOKEN"]),
    ] = None
    allow: Annotated[_Entries, Meta(description="The only tools of the server.", examples=[["search"]])] = ()
    risk: Annotated[
        Literal["low", "medium", "high"] | None,
        Meta(description="Risk of its use; an MCP server counts as medium, other tools as low.", examples=["medium"]),
    ] = None
    price: Annotated[
        Annotated[float, Meta(ge=0, le=1000)] | None,
        Meta(description="Dollars of one use, in place of the vendor's list price.", examples=[0.01]),
    ] = None


SERVER_TOOLS = Section(
    name="server_tools",
    type=ServerToolSettings,
    about="Tools that a model's vendor runs, for agents that list them as server:NAME.",
    named=NamedTables(
        example="web_search", pattern=r"[A-Za-z][A-Za-z0-9_-]{0,31}", expected="up to 32 letters, digits, _ and -"
    ),
)


def module_files(modules: Sequence[str], folder: Path) -> tuple[Path, ...]:
    """The absolute paths of modules, which are relative to the folder of the settings file."""
    return tuple(Path(os.path.abspath(folder / module)) for module in modules)


def module_issues(modules: Sequence[Path]) -> Iterator[Issue]:
    """Issues about modules that do not exist or are not Python files."""
    for index, file in enumerate(modules):
        kind = _file_kind(file)
        if kind == "a file" and file.suffix == ".py":
            continue
        found = f"{kind} at {quoted(str(file), max_shown=MAX_SHOWN_PATH)}"
        message = error_texts.mismatch(found, ALLOWED)
        yield Issue(path=("tools", "modules", index), message=message, found=found, allowed=ALLOWED)


def _file_kind(file: Path) -> str:
    # Path.is_file raises some of these errors, and since Python 3.14 none.
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return "nothing"
    except OSError:  # a too long name, or an inaccessible folder
        return "nothing readable"
    return "a file" if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "nothing"
