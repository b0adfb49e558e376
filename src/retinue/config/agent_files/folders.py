"""Folders with agent files: find the files, read each, and give every agent a name of its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from retinue.config.agent_files.agent_file import (
    AgentFile,
    FileWarning,
    NotAnAgentFile,
    UnusableAgentFile,
    read_agent_file,
)
from retinue.config.agent_files.translation import FormatTables
from retinue.core.errors import BadInput, ConfigError

MAX_BYTES = 1 << 20
"""The largest agent file."""
MAX_FILES = 20_000
MAX_FOLDERS = 2000
"""Folders that are read: a link in a repository could lead to the whole disk."""
MAX_DEPTH = 16
_SUFFIXES = (".md", ".toml")
_SKIPPED = frozenset((".git", "node_modules", ".venv", "venv", "__pycache__"))
_NOT_AGENTS = ("SKILL.md", ".prompt.md", ".instructions.md")
"""Ends of names of files that have front matter and define something else."""

USUAL_FOLDERS = (
    ".claude/agents",
    ".codex/agents",
    ".opencode/agent",
    ".opencode/agents",
    ".gemini/agents",
    ".github/agents",
)
"""Where other programs keep the agent files of a project."""

FileCheck = Callable[[Path, int, bytes], None]
"""Raises `ConfigError` for an open file that must not be obeyed."""


class FileError(NamedTuple):
    """Why a file gave no agent."""

    path: str
    line: int | None
    text: str


class FoundAgents(NamedTuple):
    """The agents in some folders; `files` counts the files that are agent files by their form."""

    files: int = 0
    agents: tuple[AgentFile, ...] = ()
    errors: tuple[FileError, ...] = ()


def find_agents(paths: Sequence[str | Path], translation: FormatTables, check: FileCheck | None = None) -> FoundAgents:
    """Read the agent files in folders, with the folders in them, and in files that are named themselves.

    A file that cannot be used is an error in the result, and the others are read. A name that an earlier file has gets
    a number. Raises `BadInput` for a path that does not exist, and for more than `MAX_FILES` files.
    """
    files = 0
    agents: list[AgentFile] = []
    errors: list[FileError] = []
    first_with: dict[str, str] = {}
    for path, is_named in _files(paths):
        try:
            found = read_agent_file(path, _read(path, check), translation)
        except NotAnAgentFile:
            if is_named:
                errors.append(FileError(path, None, "it is not an agent file: expected Markdown with front matter"))
                files += 1
            continue
        except UnusableAgentFile as error:
            errors.append(FileError(path, error.line, error.reason))
        except ConfigError as error:
            errors.append(FileError(path, None, error.problems[0].complaint))
        except OSError as error:
            errors.append(FileError(path, None, f"it cannot be read: {error.strerror or error}"))
        else:
            agents += [_with_own_name(agent, first_with) for agent in found]
        files += 1
    return FoundAgents(files, tuple(agents), tuple(errors))


def agent_files_in(folder: Path) -> list[str]:
    """The files of a folder that can be agent files by their names; at most `MAX_FILES`."""
    return list(islice(_below(str(folder), 0, set()), MAX_FILES))


def _with_own_name(agent: AgentFile, first_with: dict[str, str]) -> AgentFile:
    name, number = agent.name, 2
    while name in first_with:
        name, number = f"{agent.name[:60]}-{number}", number + 1
    first_with[name] = agent.path
    if name == agent.name:
        return agent
    warning = FileWarning(None, f"the name {agent.name!r} is taken by {first_with[agent.name]}; this one is {name!r}")
    return agent._replace(name=name, warnings=(*agent.warnings, warning))


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[str, bool]]:
    """The paths of the files, sorted within each folder, and whether the file itself was named."""
    count = 0
    for path in paths:
        whole = os.path.expanduser(path)
        try:
            is_folder = stat.S_ISDIR(os.stat(whole).st_mode)
        except (OSError, ValueError):
            raise BadInput(f"there is no folder or file {str(path)!r}: give a folder with agent files") from None
        for found in _below(whole, 0, set()) if is_folder else [whole]:
            count += 1
            if count > MAX_FILES:
                raise BadInput(f"{str(path)!r} has more than {MAX_FILES} files: give a folder with agent files alone")
            yield found, not is_folder


def _below(folder: str, depth: int, seen: set[tuple[int, int]]) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    try:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    if (status.st_dev, status.st_ino) in seen:  # a link leads to a folder that was read, or to one above it
        return
    seen.add((status.st_dev, status.st_ino))
    if len(seen) > MAX_FOLDERS:
        raise BadInput(
            f"there are more than {MAX_FOLDERS} folders, up to {folder!r}: give a folder with agent files alone"
        )
    takes_all = _takes_all(folder)
    for entry in ordered:
        if os.path.isdir(entry.path):  # in contrast to entry.is_dir, also where links lead in a circle
            if takes_all or entry.name not in _SKIPPED:
                yield from _below(entry.path, depth + 1, seen)
        elif not entry.name.endswith(_SUFFIXES) or (entry.name.endswith(_NOT_AGENTS) and not takes_all):
            continue
        elif os.path.isfile(entry.path):
            yield entry.path


def _takes_all(folder: str) -> bool:
    """Whether a folder is one of Claude Code's for agents, in which it takes every Markdown file for one."""
    parts = os.path.abspath(folder).split(os.sep)
    return (".claude", "agents") in pairwise(parts)


def _read(path: str, check: FileCheck | None) -> str:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnusableAgentFile("it is not a regular file")
        content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UnusableAgentFile(f"it is larger than {MAX_BYTES >> 20} MiB")
        if check is not None and (path.endswith(".toml") or _has_front_matter(content)):
            check(Path(path), file.fileno(), content)
    return content.decode("utf-8", "replace")


def _has_front_matter(content: bytes) -> bool:
    return content[:1000].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"---")
