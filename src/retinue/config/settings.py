"""Finds the settings file, reads it, and gives back frozen values, or says everything that is wrong with it at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.config.agents import AGENTS, AgentSettings, misnamed
from retinue.config.document import Document, Reader
from retinue.config.key_paths import KeyPath, dotted
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES, RiskSettings, RuntimeSettings, without_effect
from retinue.config.providers import ProviderSettings
from retinue.config.sections import Section
from retinue.config.toml import read_toml
from retinue.config.tool_names import named_tools
from retinue.config.tools import TOOLS, ToolsSettings, missing_modules, module_files
from retinue.config.validation import Complaint, check
from retinue.core.agent import Agent
from retinue.core.errors import ConfigError, Problem
from retinue.tools.dependencies import ToolOptions

S = TypeVar("S", bound=Struct)

FILE = "retinue.toml"
FILES = (FILE, "retinue.yaml", "retinue.yml")
"""The settings file of a folder: one of these."""


def _read_yaml(text: str, file: str) -> Document:
    from retinue.config.yaml import read_yaml  # most people have TOML, and need not wait for this

    return read_yaml(text, file)


READERS: dict[str, Reader] = {".toml": read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
"""Who reads which kind of file. A file without a kind, such as a pipe, is TOML."""


class Settings(Struct, frozen=True, kw_only=True):
    """What the user settled.

    `agents` and `providers` are in the order of the file. `tool_modules` are whole paths. `sections` has the other
    sections that were declared, by name, with their defaults where the file has none. `source` is the file, None
    if there is none.
    """

    agents: Mapping[str, AgentSettings] = {}
    providers: Mapping[str, ProviderSettings] = {}
    tool_modules: tuple[Path, ...] = ()
    tool_options: ToolOptions = ToolOptions()
    sections: Mapping[str, Struct] = {}
    risk_profiles: Mapping[str, RiskSettings] = {}
    runtime_profiles: Mapping[str, RuntimeSettings] = {}
    source: Path | None = None
    warnings: tuple[Problem, ...] = ()
    """What stands in the file and is left out of account."""
    tools_named: tuple[Problem, ...] = ()
    """Every place where the file names a tool, which is `found` there; nobody has complained yet."""

    def section(self, name: str, kind: type[S]) -> S:
        """A section of that name and type, or its defaults."""
        found = self.sections.get(name)
        return found if isinstance(found, kind) else kind()

    def core_agents(self) -> tuple[Agent, ...]:
        """The agents as the engine knows them; those that are switched off are none."""
        return tuple(self._core_agent(name, settled) for name, settled in self.agents.items() if settled.enabled)

    def _core_agent(self, name: str, settled: AgentSettings) -> Agent:
        folder = self.source.parent if self.source is not None else Path()
        risk = self.risk_profiles.get(settled.risk_profile or "", RiskSettings())
        runtime = self.runtime_profiles.get(settled.runtime_profile or "", RuntimeSettings())
        has_a_profile = settled.risk_profile is not None or settled.runtime_profile is not None
        return settled.agent(
            name,
            policy=risk.policy(runtime, folder) if has_a_profile else None,
            runtime=runtime.profile(risk),
            folder=folder,
        )


def load(path: str | Path | None = None, *, cwd: Path, sections: Sequence[Section]) -> Settings:
    """The settings in `path`, or in `retinue.toml` or `retinue.yaml` in the folder `cwd` if there is one.

    Raises `ConfigError` for a file that is not there, cannot be read or is wrong, with every mistake that was found.
    """
    named = path is not None
    if path is None:
        path = _found_in(cwd)
    if path is None:
        return _settings({}, None, FILE, sections)
    source = Path(os.path.abspath(cwd / path))
    _check_kind(source, str(path), named=named)
    document = _read(source, str(path))
    return _settings(document.values, source, str(path), sections, document)


def _found_in(cwd: Path) -> str | None:
    there = [name for name in FILES if os.path.lexists(cwd / name)]
    if len(there) > 1:
        raise ConfigError(Problem(file=there[0], complaint=f"{' and '.join(there)} are both here; keep one of them"))
    return there[0] if there else None


def _check_kind(source: Path, shown: str, *, named: bool) -> None:
    """Refuse what has no end, or would be waited for: a pipe is read only where somebody named it."""
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):
        return  # whoever reads it says why it cannot be read
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
    raise ConfigError(Problem(file=shown, complaint=f"found {found}; expected a file", found=found))


def _read(source: Path, shown: str) -> Document:
    return READERS.get(source.suffix.lower(), read_toml)(_text(source, shown), shown)


def _text(source: Path, shown: str) -> str:
    try:
        body = source.read_bytes()
    except FileNotFoundError:
        raise ConfigError(Problem(file=shown, complaint="there is no such file", found="nothing")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(Problem(file=shown, complaint=f"cannot be read: {reason}")) from None
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{body[error.start]:02x}"
        raise ConfigError(
            Problem(
                file=shown, line=line, complaint=f"found {found}; expected UTF-8 text", found=found, allowed="UTF-8"
            )
        ) from None


def _settings(
    values: Mapping[str, object],
    source: Path | None,
    shown: str,
    sections: Sequence[Section],
    document: Document | None = None,
) -> Settings:
    checked, complaints = check(values, sections)
    everything = {name: tables for name, tables in checked.items() if isinstance(tables, dict)}
    tools = checked.pop(TOOLS.name, None)
    tools = tools if isinstance(tools, ToolsSettings) else ToolsSettings()
    modules = tools.modules
    folder = source.parent if source is not None else Path()
    complaints += missing_modules(modules, folder)
    agents = _tables(checked.pop(AGENTS.name, None), AgentSettings)
    providers = _tables(checked.pop("providers", None), ProviderSettings)
    risk_profiles = _tables(checked.pop(RISK_PROFILES.name, None), RiskSettings)
    runtime_profiles = _tables(checked.pop(RUNTIME_PROFILES.name, None), RuntimeSettings)
    complaints += without_effect(risk_profiles)
    # By what is written: whoever names a table with a mistake in it is not to blame for that.
    complaints += misnamed(
        agents,
        providers,
        {section: _names(values, section) for section in (AGENTS.name, RISK_PROFILES.name, RUNTIME_PROFILES.name)},
    )
    for section in sections:
        for name, table in everything.get(section.name, {}).items():
            complaints += [
                Complaint(path=(section.name, name, key), text=text) for key, text in section.mistakes(table)
            ]
        if isinstance(settled := checked.get(section.name), Struct):
            found = (*section.mistakes(settled), *section.strangers(settled, tuple(providers)))
            complaints += [
                Complaint(path=(*section.name.split("."), key), text=text, is_complete=section.has_complete_complaints)
                for key, text in found
            ]
    mistakes = [each for each in complaints if not each.is_warning]
    if mistakes:
        raise ConfigError(*_in_order(mistakes, shown, document))
    return Settings(
        agents=agents,
        providers=providers,
        risk_profiles=risk_profiles,
        runtime_profiles=runtime_profiles,
        warnings=tuple(_in_order(complaints, shown, document)),
        tools_named=tuple(
            _in_order(
                [
                    Complaint(path=path, text="", found=name)
                    for path, name in named_tools(agents, risk_profiles)
                    if _is_written(path, values)
                ],
                shown,
                document,
            )
        ),
        tool_modules=module_files(modules, folder),
        tool_options=replace(
            tools.options(),
            protected=tuple(map(os.path.abspath, (*filter(None, (source,)), *module_files(modules, folder)))),
        ),
        sections={name: value for name, value in checked.items() if isinstance(value, Struct)},
        source=source,
    )


def _is_written(path: KeyPath, values: Mapping[str, object]) -> bool:
    """Whether the file says so, and not a default."""
    section, name, key = map(str, path[:3])
    return key in cast("dict[str, dict[str, object]]", values[section])[name]


def _names(values: Mapping[str, object], section: str) -> list[str]:
    tables = values.get(section)
    return list(cast("dict[str, object]", tables)) if isinstance(tables, dict) else []


def _tables(found: Struct | dict[str, Struct] | None, kind: type[S]) -> dict[str, S]:
    tables = found if isinstance(found, dict) else {}
    return {name: table for name, table in tables.items() if isinstance(table, kind)}


def _in_order(complaints: Sequence[Complaint], shown: str, document: Document | None) -> list[Problem]:
    """Problems as a reader of the file comes across them."""
    problems = [
        Problem(
            file=shown,
            line=None if document is None else document.nearest_line(each.path),
            key=dotted(each.path),
            complaint=each.text,
            found=each.found,
            allowed=each.allowed,
            is_complete=each.is_complete,
        )
        for each in complaints
    ]
    return sorted(problems, key=lambda problem: problem.line or 0)
