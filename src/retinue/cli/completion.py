"""Values that a shell completes: dialects, agents, tools, providers, sessions, and ids of runs.

A shell asks while a person types: an error completes nothing, and prints nothing.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TypeVar

import typer

from retinue.core.text import clean_line

if TYPE_CHECKING:
    from retinue.app.read_only import ReadOnlyClient
    from retinue.config.settings import Settings

T = TypeVar("T")

MAX_RUNS = 50
"""Newest runs whose ids are completed."""

SHORT = 8
TASK_WIDTH = 60
"""Characters of a short id, from its end as in tables, and of a task beside it."""


def dialects(incomplete: str) -> list[str]:
    """Names of dialects, and `none`."""
    from retinue.dialects.registry import names

    return _beginning(incomplete, (*names(), "none"))


def tools(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tools, built in and of the modules of the settings, for the last name of a list separated by commas.

    Modules are not imported: a person who types in a folder has not said that its code may run.
    """
    from retinue.tools.builtin import NAMES

    def own(settings: Settings) -> list[str]:
        from retinue.app.tool_modules import tool_names_in
        from retinue.local.bounded_file import MIB, read_bounded

        sources = (read_bounded(path, MIB, only_file=True) for path in settings.tool_modules)
        return [name for source in sources for name in tool_names_in(source)]

    before, comma, last = incomplete.rpartition(",")
    known = (name for listed in NAMES.values() for name in listed)
    return [f"{before}{comma}{name}" for name in _beginning(last, (*_settings(context, own), *known))]


def providers(context: typer.Context, incomplete: str) -> list[str]:
    """Names of wires, local servers and providers of the settings."""
    from retinue.providers.catalog import WIRES

    return _beginning(incomplete, (*WIRES, *_settings(context, lambda settings: settings.providers)))


def agents(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the agents of the settings, and of files in their folders and in those of `--agents`."""
    return _beginning(incomplete, _settings(context, lambda settings: settings.agents))


def sessions(incomplete: str) -> list[str]:
    """Names of sessions."""

    async def read(client: ReadOnlyClient) -> list[str]:
        return [str(row["session_id"]) for row in await client.sessions.list()]

    return _beginning(incomplete, _stored(read))


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of the newest runs, each with its task: whole ones, and short ones as tables show them."""

    async def read(client: ReadOnlyClient) -> list[tuple[str, str]]:
        views = await client.list(limit=MAX_RUNS)
        return [
            (shown, " ".join(clean_line(view.task).split())[:TASK_WIDTH])
            for view in views
            for shown in (view.run_id[-SHORT:], view.run_id)
        ]

    fitting = [(run_id, task) for run_id, task in _stored(read) if run_id.startswith(incomplete)]
    # A whole id is for a person who pasted its beginning.
    return [each for each in fitting if len(each[0]) == SHORT] or fitting


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(map(clean_line, names)) if name.startswith(incomplete)]


def _settings(context: typer.Context, names: Callable[[Settings], Iterable[str]]) -> list[str]:
    """Names in the settings that the line says, or that are found; warnings print nothing."""
    from retinue.app.settings_file import load_settings

    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            settings = load_settings(context.params.get("config"), agent_folders=context.params.get("agents") or ())
            return list(names(settings))
    except Exception:
        return []


def _stored(read: Callable[[ReadOnlyClient], Awaitable[list[T]]]) -> list[T]:
    import asyncio

    from retinue.app.open import open_read_only

    async def main() -> list[T]:
        async with open_read_only() as client:
            return await read(client)

    try:
        return asyncio.run(main())
    except Exception:
        return []
