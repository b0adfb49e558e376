"""What `retinue doctor` looks at: each question alone, so that one that cannot be answered spoils no other."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from retinue.app.compose import default_home, open_archive
from retinue.app.modules import load_tools
from retinue.app.sections import contacts, load_settings
from retinue.app.wires import LOCAL, contact, keys_found
from retinue.cli.servers import answering
from retinue.cli.words import many
from retinue.config.settings import FILE, Settings
from retinue.core.errors import RetinueError
from retinue.version import __version__

WITHOUT_THE_BUG = (3, 51, 3)
"""The first SQLite in which two connections that write at the same instant cannot damage a write-ahead log."""


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    found: str
    broken: bool = False


async def examine() -> list[Finding]:
    """Everything, in the order in which people read it."""
    settings, about_settings = _settings()
    return [
        Finding("retinue", __version__),
        Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("sqlite", _sqlite()),
        _package("aiohttp", "asks models over HTTP", needed=True),
        _package("uvloop", "makes streams cheaper; optional", needed=False),
        *await _state(),
        about_settings,
        _tools(settings),
        await _sandbox(settings),
        *(Finding(f"key {name}", "set" if there else "not set") for name, there in _keys(settings).items()),
        Finding("local servers", await _servers(settings)),
    ]


def _sqlite() -> str:
    if sqlite3.sqlite_version_info >= WITHOUT_THE_BUG:
        return f"{sqlite3.sqlite_version}; commits of all processes take turns by a lock file"
    return (
        f"{sqlite3.sqlite_version}; before 3.51.3 two writers at once could damage its log, so commits and checkpoints "
        "of all processes take turns by a lock file: nothing to do"
    )


def _package(name: str, what_for: str, *, needed: bool) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, f"not installed ({what_for})", broken=needed)


async def _state() -> list[Finding]:
    home = default_home()
    if not (home / "retinue.db").exists():
        return [Finding("state", f"{home} (nothing there yet)", broken=not _can_be_made(home))]
    size = sum(_size(path) for path in home.rglob("*"))
    try:
        async with open_archive() as archive:
            runs = await archive.list(everyone=True)
    except RetinueError as error:
        return [Finding("state", f"{home}: {error}", broken=True)]
    unfinished = sum(view.outcome is None for view in runs)
    told = many(len(runs), "run") + (f", {unfinished} unfinished" if unfinished else "")
    return [Finding("state", f"{home} ({size / 1_000_000:.1f} MB)"), Finding("runs", told)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone meanwhile, as logs of a database are
        return 0


def _can_be_made(home: Path) -> bool:
    there = next((path for path in (home, *home.absolute().parents) if path.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK)


def _settings() -> tuple[Settings, Finding]:
    try:
        settings = load_settings()
    except RetinueError as error:
        return Settings(), Finding("settings", str(error), broken=True)
    if settings.source is None:
        return settings, Finding("settings", f"no {FILE} here; retinue init writes one")
    facts = f"{many(len(settings.agents), 'agent')}, {many(len(settings.providers), 'provider')}"
    return settings, Finding("settings", f"{settings.source} is valid ({facts})")


def _tools(settings: Settings) -> Finding:
    if not settings.tool_modules:
        return Finding("tools", "no modules in the settings")
    try:
        tools = load_tools(settings.tool_modules)
    except RetinueError as error:
        return Finding("tools", str(error), broken=True)
    return Finding("tools", ", ".join(tool.spec.name for tool in tools))


async def _sandbox(settings: Settings) -> Finding:
    """Whether programs that agents start are fenced in; found out by trying to get out."""
    from retinue.sandbox.probe import verdict

    if settings.tool_options.sandbox == "off":
        return Finding("sandbox", "off by the settings: programs of agents run without one")
    words = await verdict()
    return Finding("sandbox", words.text, broken=False)


def _keys(settings: Settings) -> dict[str, bool]:
    named = {
        each.api_key_env: bool(os.environ.get(each.api_key_env)) for each in contacts(settings) if each.api_key_env
    }
    return keys_found() | named


async def _servers(settings: Settings) -> str:
    settled = {each.name: each for each in contacts(settings)}
    servers = await answering([settled.get(name) or contact(name) for name in LOCAL])
    listed = (f"{each.contact.name} at {each.contact.base_url} ({many(len(each.models), 'model')})" for each in servers)
    return ", ".join(listed) or f"none answers ({', '.join(LOCAL)})"
