"""Find, parse and validate the settings file; `load` returns frozen `Settings` or raises with all errors at once."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeGuard, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.config.agents import AGENTS, AgentSettings, default_agent_issues, reference_issues
from retinue.config.defaults import (
    ROOT,
    FileDefaults,
    MoreDefaults,
    RootDefaults,
    RunDefaults,
    TopSettings,
    run_defaults,
)
from retinue.config.error_texts import Document, dotted
from retinue.config.mcp_servers import MCP_SERVERS, McpServerSettings
from retinue.config.memory import MEMORY, MemoryDefaults, backend_issues
from retinue.config.other_programs import LenientDocument, Translate, translated
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES, RiskSettings, RuntimeSettings, unsupported_options
from retinue.config.providers import ProviderSettings
from retinue.config.section_type import Section
from retinue.config.store import SQLITE, STORE
from retinue.config.toml import read_toml
from retinue.config.tools import (
    SERVER_TOOLS,
    TOOLS,
    ServerToolSettings,
    ToolsSettings,
    module_files,
    module_issues,
)
from retinue.config.validation import Issue, checked_sections
from retinue.core.agent import Agent
from retinue.core.errors import BadInput, ConfigError, Problem, UnknownName
from retinue.core.key_paths import KeyPath
from retinue.core.log_context import logger
from retinue.core.policy import Policy, Rules
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.tools.dependencies import Preset, ToolOptions

S = TypeVar("S", bound=Struct)

log = logger("retinue.config")

FILE = SETTINGS_FILES[0]

MAX_BYTES = 1 << 20
"""The largest settings file."""

MAX_DEPTH = 64
"""Levels of tables and arrays in each other."""

USER_FOLDER = "RETINUE_CONFIG_HOME"
"""The environment variable of the folder with the user's settings."""

TOP = ""
"""The section of the keys at the top of a file."""

DEFAULTS = "defaults"
EMPTY = Document(values={}, line_of=lambda path: None)
"""The document of a folder without a settings file."""

NO_TRANSLATIONS: Mapping[str, Translate] = {}


YAML_SUFFIXES = (".yaml", ".yml")
"""A file with any other extension, or none, such as a pipe, is TOML."""


FileCheck: TypeAlias = Callable[[Path, int, bytes], None]
"""Raises `ConfigError` for an open file that must not be obeyed; the last argument is what was read of it."""


def _parse(source: Path, file: str, check: FileCheck | None, *, named: bool, lenient: bool) -> Document:
    text = _text(source, file, check, named=named)
    if source.suffix.lower() not in YAML_SUFFIXES:
        document = read_toml(text, file)
    else:
        from retinue.config.yaml import read_yaml  # imported late: most settings files are TOML

        document = read_yaml(text, file, lenient=lenient)
    if _is_too_deep(document.values):
        raise ConfigError(Problem(file=file, complaint="not readable: nested too deeply"))
    return document


def _is_too_deep(values: Mapping[str, object]) -> bool:
    """Whether values lie more than `MAX_DEPTH` levels deep; what reads them calls itself for each level."""
    level: list[object] = [values]
    for _ in range(MAX_DEPTH):
        level = [below for each in level for below in _below(each)]
        if not level:
            return False
    return True


def _below(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


class Settings(Struct, frozen=True, kw_only=True):
    """The content of a settings file.

    `agents` and `providers` are in the order of the file. `tool_modules` are absolute paths. `sections` has the other
    declared sections by name, with their defaults if the file does not have them. `source` is the file, or None.
    """

    agents: Mapping[str, AgentSettings] = {}
    providers: Mapping[str, ProviderSettings] = {}
    tool_modules: tuple[Path, ...] = ()
    tool_options: ToolOptions = ToolOptions()
    sections: Mapping[str, Struct] = {}
    mcp_servers: Mapping[str, McpServerSettings] = {}
    server_tools: Mapping[str, ServerToolSettings] = {}
    risk_profiles: Mapping[str, RiskSettings] = {}
    runtime_profiles: Mapping[str, RuntimeSettings] = {}
    memory: MemoryDefaults = MemoryDefaults()
    root: RootDefaults = RootDefaults()
    """Defaults of root runs; only settings files of other programs have some."""
    unusable_provider: Problem | None = None
    """The provider of `root` if retinue does not have it; an error where no flag names another one."""
    source: Path | None = None
    user_tables: frozenset[tuple[str, str]] = frozenset()
    """Section and name of tables that are from `user_source`."""
    user_source: Path | None = None
    """The user's settings file, whose tables and keys hold where `source` does not have them."""
    defaults: tuple[FileDefaults, ...] = ()
    """Defaults of new runs: those of the chosen profile, of `source` and of `user_source`."""
    profile: RunDefaults | None = None
    """The chosen profile, which is the first of `defaults` as well."""
    profiles: Mapping[str, RunDefaults] = {}
    warnings: tuple[Problem, ...] = ()
    """Settings in the file that are ignored."""
    tool_references: tuple[Problem, ...] = ()
    """Every place where the file names a tool, as `found`; whether the tools exist is not checked here."""

    def with_profile(self, name: str | None) -> Settings:
        """The settings with the defaults of a profile before their own; raises `BadInput` for an unknown one."""
        if name is None:
            return self
        if not self.profiles:
            raise BadInput(f"unknown profile: {name!r}; the settings have no [profiles.NAME]")
        if name not in self.profiles:
            raise UnknownName("profile", name, tuple(self.profiles))
        chosen = self.profiles[name]
        return replace(self, profile=chosen, defaults=(FileDefaults(chosen, f"[profiles.{name}]"), *self.defaults))

    @property
    def default_agent(self) -> str | None:
        """The agent of runs for which none is named."""
        return next((each.values.agent for each in self.defaults if each.values.agent is not None), None)

    @property
    def default_tools(self) -> tuple[str, ...] | None:
        """The tools of runs without an agent for which none are named; None if no place sets them."""
        return next((each.values.tools for each in self.defaults if each.values.tools is not None), None)

    @property
    def default_preset(self) -> Preset | None:
        """The preset of runs for which none is named."""
        return next((each.values.preset for each in self.defaults if each.values.preset is not None), None)

    @property
    def default_dialects(self) -> tuple[str, ...] | None:
        """The dialects of runs for which none is named; None if no place sets them."""
        return next((each.values.dialects for each in self.defaults if each.values.dialects is not None), None)

    def section(self, name: str, kind: type[S]) -> S:
        section = self.sections.get(name)
        return section if isinstance(section, kind) else kind()

    def core_agents(self) -> tuple[Agent, ...]:
        """The enabled agents as the engine's type, with their profiles applied."""
        return tuple(self._core_agent(name, agent) for name, agent in self.agents.items() if agent.enabled)

    def _core_agent(self, name: str, agent: AgentSettings) -> Agent:
        risk, runtime = self._profiles(agent.risk_profile, agent.runtime_profile)
        return agent.agent(
            name,
            policy=self._policy(agent.risk_profile, agent.runtime_profile),
            runtime=runtime.profile(risk),
            folder=self.folder_of(AGENTS.name, name),
        )

    @property
    def policy(self) -> Policy | None:
        """The policy of every run; None where the file sets none."""
        return self._policy(self.root.risk_profile, self.root.runtime_profile)

    def policy_for(self, agent: Agent) -> Policy | None:
        """The policy of an agent, within that of every run; None where neither is set."""
        own = {} if agent.policy is None else {agent.name: agent.policy}
        return Rules(session=self.policy, agents=own).policy_for(agent.name)

    def _policy(self, risk_profile: str | None, runtime_profile: str | None) -> Policy | None:
        """The policy of two profiles, or None without any."""
        if risk_profile is None and runtime_profile is None:
            return None
        risk, runtime = self._profiles(risk_profile, runtime_profile)
        return risk.policy(runtime, self.folder_of(RISK_PROFILES.name, risk_profile or ""))

    def _profiles(self, risk_profile: str | None, runtime_profile: str | None) -> tuple[RiskSettings, RuntimeSettings]:
        return (
            self.risk_profiles.get(risk_profile or "", RiskSettings()),
            self.runtime_profiles.get(runtime_profile or "", RuntimeSettings()),
        )

    def folder_of(self, section: str, name: str) -> Path:
        """The folder of the file that has a table: its paths are relative to that."""
        source = self.user_source if (section, name) in self.user_tables else self.source
        return source.parent if source is not None else Path()


def load(
    path: str | Path | None = None,
    *,
    cwd: Path,
    sections: Sequence[Section],
    translations: Mapping[str, Translate] = NO_TRANSLATIONS,
    check: FileCheck | None = None,
    user: Path | None = None,
    folders: Sequence[Path] = (),
) -> Settings:
    """The settings in `path`, else in the `retinue.toml` or `retinue.yaml` of the first of `folders` that has one.

    Without `folders`, it is looked for in `cwd` alone. `user` is the file of the user's settings: what it has and the
    other file does not have holds as well. A table with a name and each key of another section count as a whole.

    A file whose name is in `translations` is the settings file of another program if its path is given: it is
    translated and read leniently, so that what retinue does not have is ignored with one warning; `user` is not read
    then.

    `check` gets the open file after it was read. Raises `ConfigError` for a missing, unreadable or invalid file, with
    all errors.
    """
    named = path is not None
    if path is None:
        path = project_file(cwd, list(folders) or [cwd])
    source = None if path is None else Path(os.path.abspath(cwd / path))
    translate = translations.get(source.name) if named and source is not None else None
    if source is not None:
        _check_file_type(source, str(path), named=named)
        document = _parse(source, str(path), check, named=named, lenient=translate is not None)
        if translate is not None:
            lenient = translated(document, translate)
            others = tuple(section for section in sections if section.name)  # a program's own keys are at the top
            return _settings(lenient.document, source, str(path), (*others, ROOT), lenient)
    else:
        document = EMPTY
        if user is None:
            return _without_file(sections)
    below = _user_settings(user, sections, check) if user is not None and user != source else None
    return _settings(document, source, str(path or FILE), sections, below=below)


def _without_file(sections: Sequence[Section]) -> Settings:
    """The defaults of all sections. They need no check, which takes most of the time of `_settings`."""
    fields_of_their_own = (TOOLS.name, MEMORY.name, ROOT.name, TOP, DEFAULTS)
    return Settings(
        sections={
            section.name: section.type()
            for section in sections
            if section.named is None and section.name not in fields_of_their_own
        }
    )


class _UserDocument(Struct, frozen=True):
    """The parsed file of the user's settings, which is valid by itself."""

    source: Path
    values: Mapping[str, object]
    settings: Settings


def _user_settings(user: Path, sections: Sequence[Section], check: FileCheck | None) -> _UserDocument:
    _check_file_type(user, str(user), named=False)
    document = _parse(user, str(user), check, named=False, lenient=False)
    return _UserDocument(user, document.values, _settings(document, user, str(user), sections))


def _over(values: Mapping[str, object], below: Mapping[str, object], sections: Sequence[Section]) -> dict[str, object]:
    """The values of the project's file with those of the user's file that it does not have.

    Defaults at the top and in `[defaults]` are not merged: each file's are kept apart, because an address belongs to
    the provider that is named with it.
    """
    merged = dict(values)
    for section in sections:
        if section.name and section.type is not MoreDefaults:
            path = section.name.split(".")
            own, other = _at(values, path), _at(below, path)
            if _is_table(other) and (own is None or _is_table(own)):
                _put(merged, path, {**other, **(own or {})})
    return merged


def _is_table(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _at(values: Mapping[str, object], path: Sequence[str]) -> object:
    found: object = values
    for part in path:
        found = found.get(part) if _is_table(found) else None
    return found


def _put(values: dict[str, object], path: Sequence[str], table: object) -> None:
    first, *rest = path
    if not rest:
        values[first] = table
        return
    below = values.get(first)
    inner = {**cast("dict[str, object]", below)} if isinstance(below, dict) else dict[str, object]()
    _put(inner, rest, table)
    values[first] = inner


def _with_absolute_paths(values: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """The values of the user's file, whose modules and store are relative to its own folder."""
    tools, store = values.get(TOOLS.name), values.get(STORE.name)
    if _is_table(tools) and "modules" in tools:
        modules = [str(path) for path in module_files(cast("list[str]", tools["modules"]), folder)]
        values = {**values, TOOLS.name: {**tools, "modules": modules}}
    if _is_table(store) and str(store.get("url", "")).startswith(SQLITE):
        path = str(store["url"]).removeprefix(SQLITE)
        if not path.startswith(("/", "~")):
            values = {**values, STORE.name: {**store, "url": f"{SQLITE}{folder / path}"}}
    return values


def _check_file_type(source: Path, file: str, *, named: bool) -> None:
    """Reject files that block or never end; a pipe is read only if its path was given explicitly."""
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):
        return  # reading it reports the error
    if stat.S_ISDIR(mode):
        found = "a folder"
    elif stat.S_ISFIFO(mode) and not named:
        found = "a pipe"
    elif stat.S_ISSOCK(mode):
        found = "a socket"
    elif (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not os.path.samefile(source, os.devnull):
        found = "a device"
    else:
        return
    raise ConfigError(Problem(file=file, complaint=f"found {found}; expected a file", found=found))


def _text(source: Path, file: str, check: FileCheck | None, *, named: bool) -> str:
    # Opening a pipe waits for its writer; one can have been put in place of the file a moment ago.
    flags = os.O_RDONLY | (0 if named else getattr(os, "O_NONBLOCK", 0))
    try:
        with os.fdopen(os.open(source, flags), "rb") as file_object:
            if not named and stat.S_ISFIFO(os.fstat(file_object.fileno()).st_mode):
                raise ConfigError(Problem(file=file, complaint="found a pipe; expected a file", found="a pipe"))
            body = file_object.read(MAX_BYTES + 1)
            if check is not None:
                check(source, file_object.fileno(), body)
    except FileNotFoundError:
        raise ConfigError(Problem(file=file, complaint="there is no such file", found="nothing")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(Problem(file=file, complaint=f"cannot be read: {reason}")) from None
    if len(body) > MAX_BYTES:
        raise ConfigError(Problem(file=file, complaint=f"not readable: larger than {MAX_BYTES >> 20} MiB"))
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{body[error.start]:02x}"
        complaint = f"found {found}; expected UTF-8 text"
        raise ConfigError(Problem(file=file, line=line, complaint=complaint, found=found, allowed="UTF-8")) from None


def _settings(
    document: Document,
    source: Path | None,
    file: str,
    sections: Sequence[Section],
    lenient: LenientDocument | None = None,
    below: _UserDocument | None = None,
) -> Settings:
    own_values = values = document.values
    if below is not None:
        values = _over(values, _with_absolute_paths(below.values, below.source.parent), sections)
    checked, issues = checked_sections(values, sections, lenient=lenient is not None)
    named_tables = {name: tables for name, tables in checked.items() if isinstance(tables, dict)}
    tools = checked.pop(TOOLS.name, None)
    tools = tools if isinstance(tools, ToolsSettings) else ToolsSettings()
    memory = checked.pop(MEMORY.name, None)
    memory = memory if isinstance(memory, MemoryDefaults) else MemoryDefaults()
    root = checked.pop(ROOT.name, None)
    root = root if isinstance(root, RootDefaults) else RootDefaults()
    top, more = checked.pop(TOP, None), checked.pop(DEFAULTS, None)
    top = top if isinstance(top, TopSettings) else TopSettings()
    defaults = run_defaults(top, more if isinstance(more, MoreDefaults) else MoreDefaults())
    profiles = _tables(checked.pop("profiles", None), RunDefaults)
    folder = source.parent if source is not None else Path()
    modules = module_files(tools.modules, folder)
    issues += module_issues(modules)
    agents = _tables(checked.pop(AGENTS.name, None), AgentSettings)
    providers = _tables(checked.pop("providers", None), ProviderSettings)
    risk_profiles = _tables(checked.pop(RISK_PROFILES.name, None), RiskSettings)
    mcp_servers = _tables(checked.pop(MCP_SERVERS.name, None), McpServerSettings)
    server_tools = _tables(checked.pop(SERVER_TOOLS.name, None), ServerToolSettings)
    runtime_profiles = _tables(checked.pop(RUNTIME_PROFILES.name, None), RuntimeSettings)
    if values:  # of an empty file nothing refers to anything
        issues += unsupported_options(risk_profiles)
        issues += backend_issues((MEMORY.name, "backend"), memory.backend)
        # By the written names: a reference to a table with an error in it is not an error itself.
        issues += reference_issues(
            agents,
            providers,
            {section: _names(values, section) for section in (AGENTS.name, RISK_PROFILES.name, RUNTIME_PROFILES.name)},
        )
        issues += default_agent_issues(
            {(DEFAULTS,): defaults.agent, **{("profiles", name): each.agent for name, each in profiles.items()}},
            _names(values, AGENTS.name),
        )
        for section in sections:
            for name, table in named_tables.get(section.name, {}).items():
                found = section.cross_key_errors(table)
                issues += [Issue(path=(section.name, name, key), message=message) for key, message in found]
            path = tuple(section.name.split(".")) if section.name else ()
            table = checked.get(section.name) if path else top
            if _has_section(path, values) and isinstance(table, Struct):
                found = (*section.cross_key_errors(table), *section.unknown_providers(table, tuple(providers)))
                issues += [
                    Issue(path=(*path, key), message=message, is_complete=section.has_complete_messages)
                    for key, message in found
                ]
    issues += lenient.errors if lenient is not None else ()
    if errors := [issue for issue in issues if not issue.is_warning]:
        raise ConfigError(*_sorted_problems(errors, file, document))
    if below is not None:  # what stands in the user's file was reported with that file
        issues = [issue for issue in issues if _at(own_values, tuple(map(str, issue.path))) is not None]
    references = [issue for issue in _tool_references(agents, risk_profiles) if _is_written(issue.path, own_values)]
    user_settings = below.settings if below is not None else Settings()
    return Settings(
        agents=agents,
        providers=providers,
        mcp_servers=mcp_servers,
        server_tools=server_tools,
        risk_profiles=risk_profiles,
        runtime_profiles=runtime_profiles,
        warnings=(
            *user_settings.warnings,
            *(_sorted_problems(issues, file, document) if lenient is None else lenient.warnings(issues, file)),
        ),
        tool_references=(*_sorted_problems(references, file, document), *user_settings.tool_references),
        tool_modules=modules,
        tool_options=replace(
            tools.options(),
            memory=memory.backend_over(tools.memory),
            protected=tuple(
                dict.fromkeys(
                    (
                        *map(os.path.abspath, (*filter(None, (source,)), *modules)),
                        *user_settings.tool_options.protected,
                    )
                )
            ),
        ),
        memory=memory,
        root=root,
        unusable_provider=_unusable_provider(root.provider, {*providers, *_wires(sections)}, file, document),
        sections={name: value for name, value in checked.items() if isinstance(value, Struct)},
        source=source,
        user_source=None if below is None else below.source,
        user_tables=_tables_below(own_values, below.values) if below is not None else frozenset(),
        defaults=(*_file_defaults(defaults, file), *user_settings.defaults),
        profiles=profiles,
    )


def _file_defaults(defaults: RunDefaults, file: str) -> tuple[FileDefaults, ...]:
    return () if defaults == RunDefaults() else (FileDefaults(defaults, file),)


def _tables_below(own: Mapping[str, object], below: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    """Section and name of the tables that only the user's file has."""
    sections = (AGENTS.name, RISK_PROFILES.name, MCP_SERVERS.name)
    return frozenset((name, table) for name in sections for table in {*_names(below, name)} - {*_names(own, name)})


def _wires(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield from section.choices.get("wire", ())


def _unusable_provider(name: str | None, known: Collection[str], file: str, document: Document) -> Problem | None:
    """The error of a run that takes the provider of the file, if there is no such provider here."""
    if name is None or name in known:
        return None
    allowed = ", ".join(sorted(known))
    message = f"{name} is not supported; set it to one of: {allowed}, or give --provider W --model M"
    issue = Issue(path=(ROOT.name, "provider"), message=message, found=name, allowed=allowed)
    (problem,) = _sorted_problems([issue], file, document)
    return problem


def _tool_references(agents: Mapping[str, AgentSettings], risk_profiles: Mapping[str, RiskSettings]) -> Iterator[Issue]:
    """Every tool name in agents and risk profiles, as `found`."""
    lists = [((AGENTS.name, alias, "tools"), agent.tools or ()) for alias, agent in agents.items()]
    for profile, risk in risk_profiles.items():
        keys = ("allowed_tools", "excluded_tools", "auto_approve", "always_ask")
        lists += [((RISK_PROFILES.name, profile, key), getattr(risk, key)) for key in keys]
    for path, names in lists:
        yield from (Issue(path=(*path, index), message="", found=name) for index, name in enumerate(names))


def _is_written(path: KeyPath, values: Mapping[str, object]) -> bool:
    """Whether the value is from the file, not a default."""
    section, name, key = map(str, path[:3])
    table = _at(values, (section, name))
    return isinstance(table, dict) and key in table


def _has_section(path: KeyPath, values: object) -> bool:
    """Whether the file has this section; a section that is left out has its defaults, which need no check."""
    if not path:
        return values is not None
    return isinstance(values, dict) and _has_section(path[1:], cast("dict[str, object]", values).get(str(path[0])))


def _names(values: Mapping[str, object], section: str) -> list[str]:
    tables = values.get(section)
    return list(cast("dict[str, object]", tables)) if isinstance(tables, dict) else []


def _tables(section: Struct | dict[str, Struct] | None, kind: type[S]) -> dict[str, S]:
    tables = section if isinstance(section, dict) else {}
    return {name: table for name, table in tables.items() if isinstance(table, kind)}


def _sorted_problems(issues: Sequence[Issue], file: str, document: Document) -> list[Problem]:
    """The issues as problems with their keys and lines in the file, in the order of the file."""
    problems = [
        Problem(
            file=file,
            line=document.nearest_line(path),
            key=dotted(path),
            complaint=issue.message,
            found=issue.found,
            allowed=issue.allowed,
            is_complete=issue.is_complete,
        )
        for issue, path in ((issue, document.origin(issue.path)) for issue in issues)
    ]
    return sorted(problems, key=lambda problem: problem.line or 0)


def user_folder() -> Path:
    """The folder of the user's settings: `$RETINUE_CONFIG_HOME`, else the platform's folder for settings."""
    if folder := os.environ.get(USER_FOLDER):
        return Path(os.path.expanduser(folder)).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "retinue"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home()) / "retinue"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "retinue"


def user_file() -> Path | None:
    """The user's settings file, or None."""
    try:
        folder = user_folder()
    except RuntimeError:  # a user without a home folder
        return None
    name = file_in(folder, prefix=f"{folder}/")
    return None if name is None else folder / name


def searched_folders(cwd: Path, agents_write: Collection[str] = ()) -> list[Path]:
    """The current folder and those above it up to the root of its repository, the nearest first.

    The root is the outermost folder that has `.git` or is one of `agents_write`, in which agents may write: an agent
    can create or remove `.git` in its workspace, and must not gain by it, as the settings limit what it may do.
    """
    folders = [cwd, *cwd.parents]
    ends = [index for index, each in enumerate(folders) if _is_own(each / ".git") or str(each) in agents_write]
    return folders[: max(ends, default=0) + 1]


def project_file(cwd: Path, folders: list[Path]) -> Path | None:
    """The settings file in the nearest of these folders, or None; relative to `cwd` if it is there.

    A file above the current folder that belongs to another user is ignored with a warning: in a shared folder such as
    `/tmp`, another user may have put it there.
    """
    for folder in folders:
        name = file_in(folder, prefix="" if folder == cwd else f"{folder}/")
        if name is None:
            continue
        if folder == cwd:
            return Path(name)
        if _is_own(folder / name):
            return folder / name
        log.warning("%s is ignored: it belongs to another user; --config takes it nevertheless", folder / name)
    return None


def file_in(folder: Path, *, prefix: str = "") -> str | None:
    """The name of the settings file in a folder, or None; `prefix` is put before names in messages."""
    existing = [name for name in SETTINGS_FILES if os.path.lexists(folder / name)]
    if len(existing) > 1:
        complaint = f"{' and '.join(existing)} both exist; keep one of them"
        raise ConfigError(Problem(file=f"{prefix}{existing[0]}", complaint=complaint))
    return existing[0] if existing else None


def _is_own(path: Path) -> bool:
    """Whether something has this path, and belongs to this user or to root."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return sys.platform == "win32" or found.st_uid in (os.geteuid(), 0)
