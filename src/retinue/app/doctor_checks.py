"""The checks of `retinue doctor`; each is independent, so that a failing one hides no other."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from retinue.app.launch.model_choice import ModelChoice, choose_model
from retinue.app.model_lists import AskedProvider, ask_provider, ask_providers
from retinue.app.open import STORE, default_home, open_read_only, writable_folders
from retinue.app.settings_file import load_settings, provider_configs
from retinue.app.state_folder import chosen_url, shown_url
from retinue.app.store_files import LongWork, WorkStopped, check_store
from retinue.app.tool_modules import load_tools
from retinue.app.validation import unknown_in_settings
from retinue.config.precedence import VARIABLES, Flags
from retinue.config.settings import FILE, Settings
from retinue.core.errors import RetinueError
from retinue.core.text import plural
from retinue.net.http import UnknownProxy, named_proxies
from retinue.providers.catalog import LOCAL_SERVERS, api_key_variables
from retinue.providers.model_list import has_list
from retinue.tools.settings_trust import recorded_roots
from retinue.version import __version__

FIXED_SQLITE = (3, 51, 3)
"""The first SQLite version in which two simultaneous writers cannot corrupt a write-ahead log."""

MIN_FREE = 10_000_000
"""Free bytes on disk below which the check fails."""


CHECK_SECONDS = 2.0
"""Seconds of the quick check of the store."""


ASK_SECONDS = 5.0
"""How long one provider may take to list its models."""

VERDICT = "verdict"
"""The name of the last finding: ready, or the next thing to do."""


class Finding(Struct, frozen=True):
    """The result of one check."""

    name: str
    found: str
    broken: bool = False


async def run_checks() -> list[Finding]:
    """The results of all checks, in the order in which they are printed."""
    settings, about_settings = _settings()
    asked = await ask_providers(settings, seconds=ASK_SECONDS)
    findings = [
        Finding("retinue", __version__),
        Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("sqlite", _sqlite()),
        _package("aiohttp", "the HTTP client of web tools and of proxies", needed=True),
        _event_loop(),
        *await _state(),
        *_disk(default_home()),
        about_settings,
        *_tools(settings),
        await _sandbox(settings),
        *(Finding(f"key {name}", "set" if there else "not set") for name, there in _keys(settings).items()),
        *_variables(),
        *_proxies(),
        *(_provider(each) for each in asked),
        *_no_server(asked),
    ]
    return [*findings, await _verdict(findings, settings, asked)]


def _sqlite() -> str:
    if sqlite3.sqlite_version_info >= FIXED_SQLITE:
        return f"{sqlite3.sqlite_version}; a lock file serialises the commits of all processes"
    return (
        f"{sqlite3.sqlite_version}; before 3.51.3 two simultaneous writers could corrupt its log; a lock file "
        "serialises commits and checkpoints of all processes: nothing to do"
    )


def _package(name: str, what_for: str, *, needed: bool) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, f"not installed ({what_for})", broken=needed)


def _event_loop() -> Finding:
    """The event loop of commands, which `cli/event_loop.py` chooses."""
    found = _package("uvloop", "a faster event loop; optional", needed=False)
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return Finding(found.name, f"{found.found}; commands run on the event loop of {loop}")


async def _state() -> list[Finding]:
    home = default_home()
    if (url := chosen_url()) is not None:
        return await _named_store(url)
    if not _is_used(home):
        obstacle = _obstacle(home)
        return [Finding("state", f"{home} ({obstacle or 'nothing there yet'})", broken=bool(obstacle))]
    size = sum(_size(path) for path in home.rglob("*"))
    try:
        async with open_read_only() as client:
            runs, unfinished = await client.count(), await client.count(unfinished=True)
    except RetinueError as error:
        return [Finding("state", f"{home}: {error}", broken=True)]
    summary = plural(runs, "run") + (f", {unfinished} unfinished" if unfinished else "")
    where = f"{home} ({size / 1_000_000:.1f} MB)"
    if client.unwritable is not None:
        where += f": read-only: {client.unwritable}"
    return [
        Finding("state", where, broken=client.unwritable is not None),
        Finding("runs", summary),
        await asyncio.to_thread(_store_check, home),
    ]


async def _named_store(url: str) -> list[Finding]:
    """The store that `--store`, `RETINUE_STORE` or the settings name."""
    try:
        shown = shown_url(url)
        async with open_read_only() as client:
            runs, unfinished = await client.count(), await client.count(unfinished=True)
    except RetinueError as error:
        return [Finding("store", f"{error}", broken=True)]
    return [
        Finding("store", shown),
        Finding("runs", plural(runs, "run") + (f", {unfinished} unfinished" if unfinished else "")),
    ]


def _store_check(home: Path) -> Finding:
    """The quick part of `retinue store check`, for a bounded time."""
    try:
        checked = check_store(LongWork(seconds=CHECK_SECONDS), quick=True, home=home)
    except WorkStopped:
        found = f"not checked within {CHECK_SECONDS:g} s: it is large; retinue store check takes its time"
        return Finding("store", found)
    except RetinueError as error:
        return Finding("store", f"{error}", broken=True)
    damages = [damage for report in checked.reports for damage in report.damages]
    if damages:
        found = f"damaged: {damages[0].what}; see retinue store check, and retinue store repair"
        return Finding("store", found, broken=True)
    return Finding("store", "no damage found (quick check; retinue store check looks at every row)")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed meanwhile, as the logs of a database are
        return 0


def _is_used(home: Path) -> bool:
    return os.path.lexists(home / STORE)


def _obstacle(home: Path) -> str:
    """Why nothing can be stored in the folder; empty if nothing prevents it."""
    there = _nearest(home)
    if not os.path.isdir(there):
        return f"state cannot be stored: {there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"state cannot be stored: {there} is not writable"
    return ""


def _disk(home: Path) -> list[Finding]:
    """A finding if the disk is nearly full; the errors of SQLite do not say so."""
    try:
        left = shutil.disk_usage(_nearest(home)).free
    except OSError:
        return []
    if left >= MIN_FREE:
        return []
    return [
        Finding(
            "disk", f"{left / 1_000_000:.1f} MB are free on the disk of the state folder: free some space", broken=True
        )
    ]


def _nearest(home: Path) -> Path:
    return next(path for path in (home, *home.absolute().parents) if os.path.lexists(path))


def _settings() -> tuple[Settings, Finding]:
    try:
        settings = load_settings()
    except RetinueError as error:
        return Settings(), Finding("settings", str(error), broken=True)
    files = [str(file) for file in (settings.source, settings.user_source) if file is not None]
    if not files:
        return settings, Finding("settings", f"no {FILE} here; retinue init writes one")
    facts = f"{plural(len(settings.agents), 'agent')}, {plural(len(settings.providers), 'provider')}"
    return settings, Finding("settings", f"{' and '.join(files)} {'is' if len(files) == 1 else 'are'} valid ({facts})")


def _tools(settings: Settings) -> list[Finding]:
    try:
        own = [tool.spec.name for tool in load_tools(settings.tool_modules)]
    except RetinueError as error:
        return [Finding("tools", str(error), broken=True)]
    return [
        Finding("tools", ", ".join(own) if settings.tool_modules else "no modules in the settings"),
        *(Finding("tool name", str(unknown), broken=True) for unknown in unknown_in_settings(settings, own)),
    ]


async def _sandbox(settings: Settings) -> Finding:
    """Whether programs of agents run in a sandbox, checked by trying to escape, and of which programs it consists."""
    from retinue.sandbox.probe import sandbox_verdict

    if settings.tool_options.sandbox == "off":
        return Finding("sandbox", "off by the settings: programs of agents run without one")
    configured = writable_folders(settings.core_agents(), settings.policy)
    probed = await sandbox_verdict((*configured, *recorded_roots(default_home())))
    if probed.sandbox is None:
        return Finding("sandbox", probed.text)
    used = ", ".join(program.path for program in probed.programs)
    passed_over = (reason for program in probed.programs for reason in program.passed_over)
    return Finding("sandbox", "; ".join((f"{probed.text} ({used})", *passed_over)))


def _keys(settings: Settings) -> dict[str, bool]:
    named = {
        each.api_key_env: bool(os.environ.get(each.api_key_env))
        for each in provider_configs(settings)
        if each.api_key_env
    }
    return api_key_variables() | named


def _proxies() -> list[Finding]:
    try:
        named = named_proxies()
    except UnknownProxy as unknown:
        return [Finding("proxy", str(unknown), broken=True)]
    return [Finding("proxy", ", ".join(f"{proxy} ({variable})" for variable, proxy in named.items()))] if named else []


def _variables() -> list[Finding]:
    """The variables that choose a model, where they are set; their values are no secrets."""
    named = {name: os.environ[name] for name in VARIABLES.values() if os.environ.get(name)}
    return [Finding(name, value) for name, value in named.items()]


def _provider(asked: AskedProvider) -> Finding:
    config = asked.config
    key = f", key in {config.api_key_env}" if config.api_key_env else ""
    where = f" at {config.base_url}" if config.base_url else ""
    found = asked.error or plural(len(asked.models), "model")
    return Finding(f"provider {config.name}", f"{found}{where if not asked.error else ''}{key}")


def _no_server(asked: list[AskedProvider]) -> list[Finding]:
    if any(each.config.name in LOCAL_SERVERS for each in asked):
        return []
    return [Finding("local servers", f"none responds ({', '.join(LOCAL_SERVERS)})")]


async def _verdict(findings: list[Finding], settings: Settings, asked: list[AskedProvider]) -> Finding:
    """Ready, or the next thing to do: what is broken first, then the model."""
    broken = next((finding for finding in findings if finding.broken), None)
    if broken is not None:
        return Finding(VERDICT, f"not ready: {broken.name}: {broken.found}", broken=True)
    try:
        chosen = await choose_model(Flags(), settings, agent=settings.default_agent)
    except RetinueError as error:
        return Finding(VERDICT, f"not ready: {error}", broken=True)
    answered = next((each for each in asked if _is_same(each, chosen)), None)
    if answered is None and has_list(chosen.provider_config):
        answered = await ask_provider(chosen.provider_config, settings, seconds=ASK_SECONDS)
    if answered is not None and answered.error and has_list(answered.config):
        return Finding(VERDICT, f"not ready: {answered.config.name}: {answered.error}", broken=True)
    names = [model.name for model in answered.models] if answered is not None else []
    is_listed = not names or any(name.startswith(chosen.model) for name in names)
    note = "" if is_listed else "; the server does not list this model, see retinue models"
    return Finding(VERDICT, f"ready: {chosen}{note}")


def _is_same(asked: AskedProvider, chosen: ModelChoice) -> bool:
    config = chosen.provider_config
    return (asked.config.base_url, asked.config.api_key_env) == (config.base_url, config.api_key_env)
