"""The table of dialects and their registrations.

Code above `retinue.dialects` imports no dialect by name; it asks this module. A dialect's package is imported when its
registration is first needed: its attribute `DIALECT`, a `DialectEntry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from retinue.core.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from retinue.dialects.base import Dialect, DialectEntry, NamedPrompt
    from retinue.dialects.context import DialectContext
    from retinue.engine import RunView
    from retinue.telemetry.rust_log import Programs

C = TypeVar("C")

PACKAGES: dict[str, str] = {
    "spec": "retinue.dialects.spec",
    "xzatoma": "retinue.dialects.xzatoma",
    "meerkat": "retinue.dialects.meerkat",
    "buzzllm": "retinue.dialects.buzzllm",
    "zeroclaw": "retinue.dialects.zeroclaw",
    "native": "retinue.dialects.native",
    "codex": "retinue.dialects.codex",
    "claude": "retinue.dialects.claude",
}
"""The package of each dialect, by the dialect's name."""

GROUP = "retinue.dialects"
"""The group of entry points with which other packages offer dialects."""

DEFAULT = "spec"
"""The dialect of a run that names none."""

CHAT = "xzatoma"
"""The dialect in which a chat delegates unless it names another; it has the capability `chat`."""

MCP = "native"
"""The dialect that an MCP server offers unless it is given others."""

CRON = "zeroclaw"
"""The dialect of scheduled jobs; it has the capability `cron`."""

REPLAY = "xzatoma"
"""The dialect whose conversations `retinue replay` shows; it has the capability `transcripts`."""

CALL = "buzzllm"
"""The dialect whose contract `retinue call` implements; it has the capability `processes`."""


def names() -> tuple[str, ...]:
    """Every dialect, in the order of the table."""
    return tuple(PACKAGES)


def entry(name: str) -> DialectEntry:
    """The registration of a dialect; raises `UnknownName`."""
    if name not in PACKAGES:
        raise UnknownName("dialect", name, (*names(), *installed()))
    return import_module(PACKAGES[name]).DIALECT


def installed() -> dict[str, str]:
    """The dialects of other packages: names and places of the entry points of the group `retinue.dialects`."""
    from importlib.metadata import entry_points  # reads every installed package: only for an unknown name

    return {found.name: found.value for found in entry_points(group=GROUP)}


def make(name: str, dialect_context: DialectContext, settings: object = None) -> Dialect:
    """A dialect of this package, or one that another package has installed; raises `UnknownName` or `BadInput`."""
    if name in PACKAGES or (place := installed().get(name)) is None:
        return entry(name).make(dialect_context, settings)
    module, _, attribute = place.partition(":")
    try:
        found = getattr(import_module(module), attribute)
        dialect = found() if isinstance(found, type) else found
    except Exception as error:
        raise BadInput(f"the dialect {name!r} ({place}) cannot be loaded: {type(error).__name__}: {error}") from error
    from retinue.dialects.base import Dialect

    if not isinstance(dialect, Dialect) or dialect.name != name:
        raise BadInput(f"the entry point {name!r} ({place}) is not a retinue.Dialect with the name {name!r}")
    return dialect


def entries() -> Iterator[DialectEntry]:
    """Every registration, in the order of the table."""
    return map(entry, PACKAGES)


def having(capability: Callable[[DialectEntry], C | None]) -> Iterator[C]:
    """One capability of each dialect that has it, such as `having(lambda dialect: dialect.transcripts)`."""
    return (value for dialect in entries() if (value := capability(dialect)) is not None)


def tool_names() -> tuple[str, ...]:
    """The tools of all dialects, each name once."""
    return tuple(dict.fromkeys(name for dialect in entries() for name in dialect.tool_names))


def root_tools(dialects: Iterable[str]) -> tuple[str, ...]:
    """The tools that these dialects give to a root run which is started from the command line without a list.

    The name of an unknown dialect adds none: the start of the run reports it.

    >>> root_tools(["xzatoma"]), root_tools(["spec"])
    (('fetch', 'grep', 'file_ops', 'terminal'), ())
    """
    known = [entry(dialect) for dialect in dialects if dialect in PACKAGES]
    return tuple(dict.fromkeys(name for dialect in known for name in dialect.root_tools))


def rust_programs() -> Programs:
    """The programs in Rust that dialects come from, and the dialects' loggers, for `RUST_LOG`."""
    from retinue.telemetry.rust_log import Programs  # here, like `NamedPrompt` below

    known = tuple(entries())
    return Programs(
        names=tuple(dialect.crate for dialect in known if dialect.crate),
        loggers=tuple(name for dialect in known for name in dialect.loggers),
    )


def prompt_named(system: str) -> NamedPrompt:
    """The system prompt that a dialect registered under this name; any other text is itself a prompt without tools.

    >>> prompt_named("codesearch").tools, prompt_named("You dig.").tools
    (('bash_find', 'bash_ripgrep', 'bash_read'), ())
    """
    from retinue.dialects.base import NamedPrompt  # here, because every command imports this module for its constants

    return next((dialect.prompts[system] for dialect in entries() if system in dialect.prompts), NamedPrompt(system))


def cancelled_notice(tree: Iterable[RunView]) -> str | None:
    """A line about tasks that were still running when the root of their tree ended; None when there were none."""
    runs = tuple(tree)
    present = [entry(name) for name in dict.fromkeys(view.dialect for view in runs) if name in PACKAGES]
    notices = [dialect.cancelled_notice.load()(runs) for dialect in present if dialect.cancelled_notice is not None]
    return "\n".join(notice for notice in notices if notice) or None
