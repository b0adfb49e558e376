"""One agent file of Claude Code, Codex, OpenCode, Gemini CLI, Copilot or Retinue, read as settings of an agent.

What the owner of a format would load is loaded, and also what was clearly meant: each guess and each ignored field is a
warning with its line. A file gives an agent its texts, tools, model and turns. It has no field for a policy, and its
tools and model are bound by those of the run that starts the agent: a file cannot allow what the settings do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeAlias, cast

import msgspec

from retinue.config.agent_files.front_matter import (
    FrontMatterValue,
    NoFrontMatter,
    UnreadableFrontMatter,
    read_front_matter,
)
from retinue.config.agent_files.translation import FormatTables
from retinue.config.agents import AgentSettings, LimitSettings
from retinue.config.error_texts import Document
from retinue.config.toml import read_toml
from retinue.core.errors import ConfigError
from retinue.core.model_options import EFFORTS, Effort

FileFormat: TypeAlias = Literal["claude", "codex", "opencode", "gemini", "copilot", "retinue"]

MAX_NAME = 64
MAX_LISTED = 1000
"""Tools of one file that are read."""


MAX_WARNING = 1000
"""Characters of a warning or of an error."""


class FileWarning(NamedTuple):
    """What was guessed or ignored in a file; `line` counts from 1 and is None where it is not known."""

    line: int | None
    text: str


class AgentFile(NamedTuple):
    """An agent that a file defines."""

    name: str
    path: str
    source: FileFormat
    settings: AgentSettings
    warnings: tuple[FileWarning, ...] = ()
    is_usable: bool = True
    """False if none of the tools that it lists exists here."""


class NotAnAgentFile(Exception):
    """The file is none of the known formats, for example a page without front matter; it is not counted."""


class UnusableAgentFile(Exception):
    """The file should define an agent and does not; `line` counts from 1."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = _short(reason)
        self.line = line


_SHARED = ("name", "description", "tools", "model", "color")
_CLAUDE = (
    *_SHARED,
    "disallowedTools",
    "effort",
    "permissionMode",
    "maxTurns",
    "skills",
    "mcpServers",
    "hooks",
    "memory",
    "background",
    "isolation",
    "initialPrompt",
    "autoCompactWindow",
    "omitClaudeMd",
    "observer",
    "observerMessage",
)
_OPENCODE = ("mode", "variant", "temperature", "top_p", "steps", "maxSteps", "permission", "hidden", "disable")
_GEMINI = ("kind", "display_name", "mcp_servers", "max_turns", "timeout_mins", "temperature")
_COPILOT = ("target", "mcp-servers", "handoffs", "argument-hint", "infer", "agents", "user-invokable")
KNOWN_KEYS = frozenset((*_CLAUDE, *_OPENCODE, *_GEMINI, *_COPILOT, "options"))

_SILENT = frozenset(
    ("color", "hidden", "display_name", "argument-hint", "mode", "kind", "target", "infer", "user-invokable")
)
"""Fields about the display or the place of an agent in its program, which mean nothing here."""

_UNSUPPORTED: Mapping[str, str] = {
    "skills": "skills are not loaded",
    "hooks": "hooks of files are not run",
    "initialPrompt": "the task of the caller is the first message",
    "permission": "apart from tools that it denies, the settings and --approvals decide what an agent may do",
    "mcpServers": "without tools the agent has those of its caller; MCP servers are declared in the settings",
    "mcp_servers": "without tools the agent has those of its caller; MCP servers are declared in the settings",
    "mcp-servers": "without tools the agent has those of its caller; MCP servers are declared in the settings",
}


def read_agent_file(path: str, text: str, translation: FormatTables) -> list[AgentFile]:
    """The agents of one file; raises `NotAnAgentFile` or `UnusableAgentFile`."""
    # A warning can quote a value of the file, which may be long.
    return [
        agent._replace(warnings=tuple(each._replace(text=_short(each.text)) for each in agent.warnings))
        for agent in _read(path, text, translation)
    ]


def _read(path: str, text: str, translation: FormatTables) -> list[AgentFile]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if path.endswith(".toml"):
        return _toml(path, text, translation)
    try:
        front = read_front_matter(text, KNOWN_KEYS)
    except NoFrontMatter:
        raise NotAnAgentFile from None
    except UnreadableFrontMatter as error:
        raise UnusableAgentFile(error.reason, error.line) from None
    source = _source(path, front.values)
    reader = _Reader(front.values, front.lines.get, translation)
    reader.warnings += [FileWarning(line, note) for line, note in front.notes]
    return [reader.agent(path, source, front.body)]


def _short(text: str) -> str:
    return text if len(text) <= MAX_WARNING else f"{text[:MAX_WARNING]} ..."


def _source(path: str, values: Mapping[str, FrontMatterValue]) -> FileFormat:
    parts = PurePath(path).parts
    if path.endswith((".agent.md", ".chatmode.md")) or ".github" in parts:
        return "copilot"
    if ".claude" in parts:
        return "claude"
    if ".opencode" in parts or "opencode" in parts:
        return "opencode"
    if ".gemini" in parts:
        return "gemini"
    if "kind" in values or "timeout_mins" in values or "display_name" in values:
        return "gemini"
    if "mode" in values or "permission" in values or isinstance(values.get("tools"), dict):
        return "opencode"
    return "claude"


class _Reader:
    """Reads the fields of one file and collects warnings."""

    def __init__(
        self, values: Mapping[str, FrontMatterValue], line_of: Callable[[str], int | None], translation: FormatTables
    ) -> None:
        self._values = values
        self._line_of = line_of
        self._translation = translation
        self.warnings: list[FileWarning] = []
        self._is_usable = True

    def agent(self, path: str, source: FileFormat, body: str) -> AgentFile:
        if source == "gemini" and self._values.get("kind") == "remote":
            raise UnusableAgentFile(
                "it names a remote agent, which cannot be started from a file", self._line_of("kind")
            )
        name, description = self._text("name"), self._text("description")
        if not name and not description:
            raise UnusableAgentFile("it has neither a name nor a description: this is not an agent")
        removed = self._removed()
        tools = self._tools(removed)
        if tools is not None:
            if self._left_by_denial() is None:
                tools = _without(list(dict.fromkeys((*tools, *self._server_tools(), *self._memory_tools()))), removed)
            # A pattern among the tools may have what the file takes away.
            removed = [name for name in removed if name.startswith("mcp__")]
        settings = AgentSettings(
            description=description or self._guessed_description(body),
            system_prompt=body,
            tools=None if tools is None else tuple(tools),
            model=self._model(),
            max_turns=self._max_turns(),
            effort=self._effort(),
            temperature=self._number("temperature", most=1),
            top_p=self._number("top_p", most=1),
            limits=self._limits(),
            isolation=self._isolation(),
            background=self._is_true("background"),
            read_only=self._is_read_only(),
            excluded_tools=tuple(removed),
            enabled=not self._is_true("disable"),
        )
        named_by_path = source in ("opencode", "copilot") and not name
        name_in_use = self._name(name, path, named_by_path=named_by_path)
        self._other_fields()
        warnings = tuple(sorted(self.warnings, key=lambda each: each.line or 0))
        return AgentFile(name_in_use, path, source, settings, warnings, self._is_usable)

    def warn(self, key: str, text: str) -> None:
        self.warnings.append(FileWarning(self._line_of(key), text))

    def _text(self, key: str) -> str:
        value = self._values.get(key)
        if isinstance(value, str):
            return value.strip()
        if isinstance(value, list) and all(isinstance(item, str) for item in value[:MAX_LISTED]):
            self.warn(key, f"{key} is a list; its items are joined")
            return ", ".join(cast("list[str]", value[:MAX_LISTED]))
        if value is not None:
            self.warn(key, f"{key} is not a text and is ignored")
        return ""

    def _is_true(self, key: str) -> bool:
        return str(self._values.get(key)).lower() in ("true", "yes", "on")

    def _guessed_description(self, body: str) -> str:
        first = next((line.lstrip("# ").strip() for line in body.split("\n") if line.strip("# \t")), "")
        self.warn("name", "there is no description; the first line of the text is used")
        return first[:500]

    def _name(self, name: str, path: str, *, named_by_path: bool) -> str:
        stem = re.sub(r"\.(agent|chatmode)$", "", _name_in_folder(path))
        if not name and not named_by_path:
            self.warn("description", f"there is no name; the name of the file is used: {_slug(stem)}")
        usable = _slug(name or stem) or _slug(stem) or "agent"
        if name and usable != name:
            self.warn("name", f"the name {name[:80]!r} becomes {usable!r}")
        return usable

    def _tools(self, removed: Sequence[str]) -> list[str] | None:
        """The tools of Retinue, or None where the file lists none."""
        listed = self._listed("tools")
        if (allowed := self._left_by_denial()) is not None:
            listed = allowed if listed is None else [name for name in listed if name in allowed]
            self.warn("tools", f"all tools are denied, except: {', '.join(allowed)[:200] or 'none'}")
        if listed is None:
            return None
        tools = _without(self._translated("tools", listed), removed)
        if listed and not tools:
            self.warn("tools", "none of its tools exists here: the agent has no tools")
            self._is_usable = False
        return tools

    def _translated(self, key: str, names: list[str]) -> list[str]:
        found: dict[str, None] = {}
        for name in names:
            translated = self._translation.tool(name)
            found.update(dict.fromkeys(translated.tools))
            if translated.note:
                self.warn(key, translated.note)
        return list(found)

    def _removed(self) -> list[str]:
        """The tools that the file takes away, as names and patterns. A tool without an equal is none that there is."""
        value = self._values.get("tools")
        names = list(self._listed("disallowedTools") or ())
        if isinstance(value, dict):
            names += [name for name, item in list(value.items())[:MAX_LISTED] if str(item).lower() in _OFF]
        rights = self._values.get("permission")
        if isinstance(rights, dict):
            denied = [name for name, item in list(rights.items())[:MAX_LISTED] if self._is_denied(name, item)]
            names += [*denied, *(["write"] if "edit" in denied else [])]
        found: dict[str, None] = {}
        for name in names:
            whole, bracket, _ = name.partition("(")
            if bracket:  # to remove less than the whole tool would widen what the file says
                self.warn("disallowedTools", f"{name[:80]!r} removes the whole tool {whole.strip()}")
            found.update(dict.fromkeys(self._translation.tool(whole).tools))
        return list(found)

    def _is_denied(self, name: str, item: FrontMatterValue) -> bool:
        """Whether a permission denies a tool, or some of its uses: to remove only these is not possible."""
        if isinstance(item, dict) and "deny" in item.values():
            self.warn("permission", f"what is denied of {name[:80]!r} removes the whole tool")
            return True
        return item == "deny" and name != "*"

    def _left_by_denial(self) -> list[str] | None:
        """The names of tools that are left where the file denies all; None where it does not.

        Of permissions the last one that is meant counts: those before `*` are denied again.
        """
        disallowed = self._values.get("disallowedTools")
        if disallowed is not None and self._listed("disallowedTools") is None:
            return []
        rights = self._values.get("permission")
        if isinstance(rights, dict) and rights.get("*") == "deny":
            names = list(rights)
            return [name for name in names[names.index("*") + 1 :][:MAX_LISTED] if rights[name] != "deny"]
        return [] if rights == "deny" else None

    def _server_tools(self) -> list[str]:
        """Patterns for the tools of the MCP servers that the file names; those of the settings alone are started."""
        found: list[str] = []
        for key in ("mcpServers", "mcp_servers", "mcp-servers"):
            match self._values.get(key):
                case list(items):
                    names = [name for item in items for name in ([item] if isinstance(item, str) else _keys(item))]
                    inline = any(isinstance(item, dict) for item in items)
                case dict(items):
                    names, inline = list(items), True
                case str(text):
                    names, inline = _split_names(text), False
                case _:
                    continue
            names = [name.strip() for name in names[:MAX_LISTED] if re.fullmatch(r"\s*[A-Za-z0-9_-]{1,64}\s*", name)]
            found += [f"mcp__{name}__*" for name in names]
            if inline:
                self.warn(key, f"no server is started from a file: declare {', '.join(names)} in [mcp_servers.NAME]")
        return found

    def _memory_tools(self) -> tuple[str, ...]:
        return () if self._values.get("memory") is None else ("memory_store", "memory_recall")

    def _is_read_only(self) -> bool:
        """Whether the file wants the agent to change nothing; every other mode is up to the settings."""
        mode = str(self._values.get("permissionMode") or "")
        sandbox = str(self._values.get("sandbox_mode") or "")
        for key, value in (("permissionMode", mode), ("sandbox_mode", sandbox)):
            if value and value not in ("plan", "default", "read-only"):
                self.warn(key, f"{key} {value[:40]!r} is ignored: the settings and --approvals decide what it may do")
        return mode == "plan" or sandbox == "read-only"

    def _listed(self, key: str) -> list[str] | None:
        """The names in a list, in a text with commas, or those of a mapping that are true; None for all tools."""
        value = self._values.get(key)
        names: list[str]
        match value:
            case str():
                names = _split_names(value)
            case list():
                names = [item for item in value[:MAX_LISTED] if isinstance(item, str)]
            case dict():
                names = [name for name, item in list(value.items())[:MAX_LISTED] if str(item).lower() not in _OFF]
                if not names:  # it only removes tools, or all
                    return [] if "*" in value else None
            case _:
                return None
        names = [name.strip() for name in names if name.strip()]
        return None if "*" in names or names == ["all"] else names

    def _model(self) -> str:
        value = self._values.get("model")
        if isinstance(value, list) and value:  # Copilot: the first that is available
            value = value[0]
        if not isinstance(value, str):
            return ""
        model, note = self._translation.model(value)
        if note:
            self.warn("model", note)
        return model

    def _effort(self) -> Effort | None:
        for key in ("effort", "model_reasoning_effort"):
            value = self._values.get(key)
            for effort in EFFORTS:
                if effort == value:
                    return effort
            if value is not None:
                self.warn(key, f"{key} is none of: {', '.join(EFFORTS)}; it is ignored")
        return None

    def _max_turns(self) -> int | None:
        for key in ("maxTurns", "max_turns", "steps", "maxSteps"):
            value = self._values.get(key)
            if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,6}", value):
                return int(value)
            if value is not None:
                self.warn(key, f"{key} is not a number from 1 and is ignored")
        return None

    def _number(self, key: str, *, most: float) -> float | None:
        """A number from 0 to `most`; None where there is none."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"\d{1,7}(\.\d{0,9})?|\.\d{1,9}", value) and float(value) <= most:
            return float(value)
        self.warn(key, f"{key} is not a number from 0 to {most:g} and is ignored")
        return None

    def _limits(self) -> LimitSettings:
        minutes = self._number("timeout_mins", most=1_000_000)
        return LimitSettings(timeout=60 * minutes) if minutes else LimitSettings()

    def _isolation(self) -> Literal["worktree"] | None:
        value = self._values.get("isolation")
        if value not in (None, "worktree"):
            self.warn("isolation", "isolation is not worktree; it is ignored")
        return "worktree" if value == "worktree" else None

    def _other_fields(self) -> None:
        used = {"isolation", "name", "description", "tools", "disallowedTools", "model", "disable"}
        used |= {"maxTurns", "max_turns", "steps", "maxSteps", "effort", "model_reasoning_effort"}
        used |= {"permissionMode", "sandbox_mode", "background", "temperature", "top_p", "timeout_mins"}
        if self._values.get("memory") is not None:
            self.warn("memory", "what the agent remembers is kept by memory_store and memory_recall, not in files")
            used.add("memory")
        servers = {"mcpServers", "mcp_servers", "mcp-servers"}
        if self._values.get("tools") is not None:
            used |= servers
        for key in self._values:
            if key in used or key in _SILENT or self._values[key] is None:
                continue
            reason = _UNSUPPORTED.get(key)
            self.warn(key, f"{key[:64]} is ignored" + (f": {reason}" if reason else ""))


_OFF = frozenset(("false", "no", "off", "deny", "none"))


def _split_names(text: str) -> list[str]:
    """The names in a text with commas; a comma in brackets separates nothing.

    >>> _split_names("Read, Bash(git add:*, git commit:*), Grep")
    ['Read', ' Bash(git add:*, git commit:*)', ' Grep']
    """
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    names: list[str] = []
    start, commas = 0, list[int]()
    for found in re.finditer(r"[,()]|\Z", text):
        match found[0]:
            case ",":
                commas.append(found.start())
            case ")":
                commas.clear()
            case _:  # those before it are in no brackets
                for comma in commas[:MAX_LISTED]:
                    names.append(text[start:comma])
                    start = comma + 1
                commas.clear()
        if len(names) >= MAX_LISTED:
            return [name.strip("\"'") for name in names[:MAX_LISTED]]
    return [name.strip("\"'") for name in (*names, text[start:])]


def _without(tools: Sequence[str], removed: Sequence[str]) -> list[str]:
    """The tools that are not removed, by name or, for those of MCP servers, by server or the begin of a pattern.

    >>> _without(["grep", "mcp__github__search", "mcp__jira__find"], ["glob", "mcp__github", "mcp__jira__f*"])
    ['grep']
    """
    names, servers = set(removed), [name for name in removed if name.startswith("mcp__")]
    begins = tuple(name.partition("*")[0] if "*" in name else f"{name}__" for name in servers)
    return [tool for tool in tools if tool not in names and not tool.startswith(begins)]


def _keys(value: FrontMatterValue) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _name_in_folder(path: str) -> str:
    """The path of a file without its ending, below the folder of agents of OpenCode, else the name of the file.

    >>> _name_in_folder(".opencode/agent/review/security.md"), _name_in_folder("agents/review/security.md")
    ('review/security', 'security')
    """
    parts = PurePath(path).with_suffix("").parts
    for index, folders in enumerate(pairwise(parts)):
        if folders[0] in (".opencode", "opencode") and folders[1] in ("agent", "agents"):
            return "/".join(parts[index + 2 :])
    return parts[-1]


def _slug(name: str) -> str:
    """The name as a name of the settings.

    >>> _slug("Code Reviewer: Go")
    'code-reviewer-go'
    """
    return re.sub(r"[^a-z0-9_]+", "-", name.strip().lower()).strip("-")[:MAX_NAME].rstrip("-")


# ---- TOML ------------------------------------------------------------------------------------------------------------

_CODEX_IGNORED = frozenset(("nickname_candidates",))


def _toml(path: str, text: str, translation: FormatTables) -> list[AgentFile]:
    looks_like_agent = re.search(r"^[ \t]*(developer_instructions[ \t]*=|\[agents\.)", text, re.MULTILINE)
    if not looks_like_agent:
        raise NotAnAgentFile
    try:
        document = read_toml(text, path)
    except ConfigError as error:
        (problem,) = error.problems
        raise UnusableAgentFile(problem.complaint, problem.line) from None
    if "developer_instructions" in document.values:
        return [_codex(path, document, translation)]
    if not isinstance(document.values.get("agents"), dict):
        raise NotAnAgentFile
    return list(_own(path, document))


def _codex(path: str, document: Document, translation: FormatTables) -> AgentFile:
    values = document.values
    texts: dict[str, FrontMatterValue] = {
        key: value
        for key, value in values.items()
        if isinstance(value, str) and key in ("name", "description", "model", "model_reasoning_effort", "sandbox_mode")
    }
    reader = _Reader(texts, lambda key: document.line_of((key,)), translation)
    body = values["developer_instructions"]
    agent = reader.agent(path, "codex", body.strip() if isinstance(body, str) else "")
    for key in values:
        if key not in texts and key != "developer_instructions" and key not in _CODEX_IGNORED:
            reason = _UNSUPPORTED.get(key)
            reader.warn(key, f"{key[:64]} is ignored" + (f": {reason}" if reason else ""))
    return agent._replace(warnings=tuple(reader.warnings))


_WIDENING = ("risk_profile", "runtime_profile", "workspace", "memory", "model_provider")


def _own(path: str, document: Document) -> Iterator[AgentFile]:
    """Agents of a settings file of Retinue; fields that refer to other sections of it are left out."""
    agents = cast("dict[str, object]", document.values["agents"])
    for name, table in agents.items():
        line = document.line_of(("agents", name))
        if not isinstance(table, dict):
            continue
        fields = cast("dict[str, object]", table)
        warnings = [
            FileWarning(line, f"{key} is ignored: the settings decide it") for key in _WIDENING if key in fields
        ]
        known = {key: value for key, value in fields.items() if key not in _WIDENING}
        for key in [key for key in known if key not in AgentSettings.__struct_fields__]:
            warnings.append(FileWarning(line, f"{key[:64]} is ignored"))
            del known[key]
        try:
            settings = msgspec.convert(known, AgentSettings)
        except msgspec.ValidationError as error:
            raise UnusableAgentFile(f"[agents.{name}]: {error}", line) from None
        usable = _slug(name) or "agent"
        if usable != name:
            warnings.append(FileWarning(line, f"the name {name[:80]!r} becomes {usable!r}"))
        yield AgentFile(usable, path, "retinue", settings, tuple(warnings))
