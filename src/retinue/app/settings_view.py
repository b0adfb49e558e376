"""The settings as they were read, section by section, without values that may be secret.

Keys, headers and passwords never appear: of a header and of a body only the names of their fields are shown, of a key
the name of its variable and whether it is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct

from retinue.config.settings import Settings

HIDDEN = "(not shown)"

_SECRET_NAME = re.compile(r"(secret|token|passw|credential|authorization|cookie|(^|_)key$|(^|_)auth$)", re.IGNORECASE)
_PUBLIC_NAME = re.compile(r"(_env$|^env$|tokens|max_|token_limit|context)", re.IGNORECASE)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class SectionView(Struct, frozen=True, kw_only=True):
    """A section with the keys that differ from their defaults; values are JSON without secrets."""

    name: str
    values: dict[str, Any]


class SettingsView(Struct, frozen=True, kw_only=True):
    """The files that were read, and their sections."""

    files: tuple[str, ...]
    sections: tuple[SectionView, ...]
    warnings: tuple[str, ...]


def settings_view(settings: Settings, environ: Mapping[str, str]) -> SettingsView:
    """The settings without secrets; `environ` says which variables are set."""
    files = tuple(str(path) for path in (settings.source, settings.user_source) if path is not None)
    sections = [SectionView(name=name, values=values) for name, values in _sections(settings, environ) if values]
    return SettingsView(
        files=files, sections=tuple(sections), warnings=tuple(str(warning) for warning in settings.warnings)
    )


def _sections(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for place in settings.defaults:
        yield f"defaults of {place.origin}", _values(place.values, environ)
    tables: tuple[tuple[str, Mapping[str, Struct]], ...] = (
        ("providers", settings.providers),
        ("agents", settings.agents),
        ("mcp_servers", settings.mcp_servers),
        ("risk_profiles", settings.risk_profiles),
        ("runtime_profiles", settings.runtime_profiles),
        ("profiles", settings.profiles),
    )
    for section, named in tables:
        for name, table in named.items():
            yield f"{section}.{name}", _values(table, environ)
    if settings.tool_modules:
        yield "tools", {"modules": [str(path) for path in settings.tool_modules]}
    for name, section in settings.sections.items():
        yield name, _values(section, environ)


def _values(section: Struct, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a section that differ from their defaults."""
    hints = get_type_hints(type(section), include_extras=True)
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value is None or value in ((), {}, frozenset[str]()) or value == default:
            continue
        found[field.name] = _shown(field.name, value, is_secret=_is_secret(hints.get(field.name)), environ=environ)
    return found


def _shown(name: str, value: object, *, is_secret: bool, environ: Mapping[str, str]) -> Any:
    if name.endswith("_env") and isinstance(value, str):
        return f"{value} ({'set' if environ.get(value) else 'not set'})" if _is_variable(value) else HIDDEN
    if name == "env" and isinstance(value, tuple | list):
        return [each if _is_variable(each) else HIDDEN for each in cast("list[object]", value)]
    if name == "args" and isinstance(value, tuple | list):  # a program may take a key as an argument
        return f"{len(cast('list[object]', value))} arguments {HIDDEN}"
    if name == "url" and isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping) and (is_secret or name in ("headers", "extra_headers", "extra_body")):
        return dict.fromkeys(map(str, cast("Mapping[object, object]", value)), HIDDEN)
    if is_secret or (_SECRET_NAME.search(name) and not _PUBLIC_NAME.search(name) and not isinstance(value, bool | int)):
        return HIDDEN
    return _plain(cast("object", value), lambda key, each: _shown(key, each, is_secret=False, environ=environ), environ)


def _plain(value: object, show: Callable[[str, object], Any], environ: Mapping[str, str]) -> Any:
    match value:
        case bool() | int() | float() | None:
            return value
        case str():
            return without_credentials(value) if _ADDRESS.match(value) else value
        case Path():
            return str(value)
        case Struct():
            return _values(value, environ)
        case _ if isinstance(value, Mapping):
            return {str(key): show(str(key), each) for key, each in cast("Mapping[object, object]", value).items()}
        case _ if isinstance(value, tuple | list | set | frozenset):
            return [_plain(each, show, environ) for each in cast("tuple[object, ...]", value)]
        case _:
            return str(value)


def without_credentials(address: str) -> str:
    """An address without user, password and query.

    >>> without_credentials("postgresql://me:secret@db:5432/runs?sslmode=require")
    'postgresql://db:5432/runs'
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return HIDDEN
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None


def _is_secret(hint: object) -> bool:
    """Whether the annotation of a key, or a part of it, is marked as secret."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        marks = (each.extra for each in metadata if isinstance(each, Meta))
        return any(bool(extra and extra.get("secret")) for extra in marks) or _is_secret(inner)
    return any(_is_secret(each) for each in get_args(hint))
