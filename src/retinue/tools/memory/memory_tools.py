"""The memory tools: an agent stores, recalls and forgets memories under its own name, beyond the end of a run.

A memory belongs to the identity of the run, which no argument can change. Memories of other agents can be read if the
run was granted them, and never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.commands import Decision
from retinue.core.errors import BadInput, ToolError
from retinue.core.ports import CallContext, Clock, KeyValue, Tool, ToolResult
from retinue.tools.dependencies import MemoryTables, ToolDependencies
from retinue.tools.memory import backend, markdown, sqlite
from retinue.tools.memory.markdown import MarkdownMemory
from retinue.tools.memory.postgres import PostgresMemory
from retinue.tools.memory.sqlite import SqliteMemory
from retinue.tools.memory.workspace import WorkspaceMemory
from retinue.tools.path_walk import Workspaces
from retinue.tools.threads import in_thread

BACKENDS = ("sqlite", "postgres", "markdown", "workspace")
NONE = "none"
"""The backend of an agent without memory."""

CATEGORIES = ("core", "daily", "conversation")
"""The categories that have a meaning; any other short name is a custom one."""
SEARCH_MODES = ("bm25", "embedding", "hybrid")

MAX_KEY_CHARACTERS = 256
MAX_CONTENT_CHARACTERS = 100_000
MAX_LIMIT = 100
SECONDS = 60.0
"""Deadline of a call; only a backend with many concurrent writers takes long."""

_CATEGORY = re.compile(r"[\w-]{1,64}")
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

MemoryFields: TypeAlias = Mapping[str, object]


NO_WORKSPACES: Mapping[str, str] = {}


def open_memory(
    kind: str,
    home: Path | None,
    workspaces: Mapping[str, str] = NO_WORKSPACES,
    *,
    folder: Path | None = None,
    with_state_folder: bool = True,
    opened_workspaces: Workspaces | None = None,
    tables: MemoryTables | None = None,
) -> backend.MemoryBackend:
    """The memory backend of that kind in the state folder `home`, or in memory if that is None.

    The kind `workspace` stores in the workspaces of agents: those in `workspaces`, else `folder`, by default the
    current one. With `with_state_folder`, what agents have in Markdown files of the state folder is read, too. With
    `tables`, those of a PostgreSQL store, the kind `sqlite` stores there; the kind `postgres` needs them.

    >>> open_memory("clay", None)
    Traceback (most recent call last):
    retinue.core.errors.BadInput: memory backend 'clay': expected one of: sqlite, postgres, markdown, workspace
    """
    match kind:
        case "sqlite" | "postgres" if tables is not None:
            return PostgresMemory(tables)
        case "postgres":
            raise BadInput(
                "the memory backend postgres is in the database of the store, and the store is none: name one with "
                "--store, RETINUE_STORE or [store] url, as postgresql://USER@HOST/DATABASE"
            )
        case "sqlite":
            return SqliteMemory(home and home / sqlite.FILE)
        case "markdown":
            return MarkdownMemory(home / markdown.FOLDER) if home else SqliteMemory(None)
        case "workspace":
            if home is None:
                return SqliteMemory(None)
            folders = {agent: Path(path) for agent, path in workspaces.items() if path}
            earlier = MarkdownMemory(home / markdown.FOLDER) if with_state_folder else None
            return WorkspaceMemory(folders, folder or Path.cwd(), earlier, opened_workspaces)
        case _:
            raise BadInput(f"memory backend {kind!r}: expected one of: {', '.join(BACKENDS)}")


def memories_in_state_folder(home: Path) -> list[backend.MemoryBackend]:
    """The memory backends that have stored something in a state folder; creates none."""
    files = {"sqlite": sqlite.FILE, "markdown": markdown.FOLDER}
    return [open_memory(kind, home) for kind, name in files.items() if _exists(home / name)]


def _exists(path: Path) -> bool:
    """Whether a file or folder exists; an unreadable parent raises, where `Path.exists` may return False."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def tools(dependencies: ToolDependencies) -> Sequence[Tool]:
    """`memory_store`, `memory_recall` and `memory_forget`."""
    return memory_tools(_configured_memory(dependencies), dependencies.key_value, dependencies.clock)


def _configured_memory(dependencies: ToolDependencies) -> backend.MemoryBackend:
    """The configured backend; a router if some agents have another one."""
    by_agent = dependencies.memories
    kinds = (kind for kind in (dependencies.memory, *by_agent.values()) if kind != NONE)
    opened = dependencies.opened_workspaces
    backends = {
        kind: open_memory(
            kind,
            dependencies.home,
            dependencies.workspaces,
            opened_workspaces=opened,
            tables=dependencies.memory_tables,
        )
        for kind in dict.fromkeys(kinds)
    }
    default = backends.get(dependencies.memory) or backend.NoMemory()
    if not by_agent:
        return default
    return backend.RoutedMemory(
        default, {agent: backends.get(kind) or backend.NoMemory() for agent, kind in by_agent.items()}
    )


def memory_tools(memory: backend.MemoryBackend, key_value: KeyValue, clock: Clock) -> Sequence[Tool]:
    return (
        MemoryStoreTool(memory, key_value, clock),
        MemoryRecallTool(memory),
        MemoryForgetTool(memory, key_value, clock),
    )


def _text(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


def _parameters(required: Sequence[str] = (), **properties: dict[str, object]) -> str:
    """The JSON Schema of a tool's parameters."""
    schema = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    return msgspec.json.encode(schema).decode()


class _Changes(Tool):
    """Base of the tools that store and forget: actions, which recovery repeats after a crash."""

    kind: ToolKind = "keyed"
    acts = True
    timeout = SECONDS
    stoppable = False

    def __init__(self, memory: backend.MemoryBackend, key_value: KeyValue, clock: Clock) -> None:
        self._memory = memory
        self._key_value = key_value
        self._clock = clock


class MemoryStoreTool(_Changes):
    spec = ToolSpec(
        "memory_store",
        "Remember a fact, a preference or a note beyond this conversation. The same key again replaces what was there.",
        _parameters(
            required=["key", "content"],
            key=_text(f"What to find it by, at most {MAX_KEY_CHARACTERS} characters."),
            content=_text(f"What to remember, at most {MAX_CONTENT_CHARACTERS} characters."),
            category=_text(
                "core (lasting facts), daily (notes of the day), conversation (context of a talk), or a name of your "
                "own. core by default."
            ),
        ),
    )

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        fields = _fields(arguments)
        key, content, category = _key(fields), _content(fields), _category(fields)
        first = await _first_attempt(self._key_value, context, _Attempt(self._clock.now()))
        note = backend.Note(
            agent=context.identity,
            key=key,
            content=content,
            category=category,
            at=first.at,
            run_id=context.run_id,
            session_id=context.session_id,
        )
        await in_thread(self._memory.store, note, again=context.again)
        return ToolResult(f"Stored memory: {key}")


class MemoryRecallTool(Tool):
    spec = ToolSpec(
        "memory_recall",
        "Recall what was remembered. With a query the best fitting memories come first, with how well they fit; "
        "without one, the newest.",
        _parameters(
            query=_text("Words to look for, in keys and contents."),
            limit={
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LIMIT,
                "default": 5,
                "description": "How many memories at most.",
            },
            since=_text("Only what was stored at or after this time, e.g. 2025-03-01T00:00:00Z."),
            until=_text("Only what was stored at or before this time, e.g. 2025-03-31T23:59:59Z."),
            search_mode={
                "type": "string",
                "enum": SEARCH_MODES,
                "description": "Memories are searched by words (bm25), whichever of these is asked for.",
            },
        ),
    )
    kind: ToolKind = "pure"
    timeout = SECONDS
    stoppable = False

    def __init__(self, memory: backend.MemoryBackend) -> None:
        self._memory = memory

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        search = _search(_fields(arguments), (context.identity, *context.memory_from))
        return ToolResult(listing(await in_thread(self._memory.recall, search)))


class MemoryForgetTool(_Changes):
    spec = ToolSpec(
        "memory_forget",
        "Forget something that was remembered: what is outdated, wrong, or should not have been kept.",
        _parameters(required=["key"], key=_text("The key that it was stored under.")),
    )

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        key = _key(_fields(arguments))
        exists = await in_thread(self._memory.find, context.identity, key) is not None
        first = await _first_attempt(self._key_value, context, _Attempt(self._clock.now(), exists))
        if not first.exists:
            return ToolResult(f"No memory found with key: {key}")
        written_by = first.at if context.again else None
        await in_thread(self._memory.forget, context.identity, key, written_by=written_by)
        return ToolResult(f"Forgot memory: {key}")


def listing(results: Sequence[backend.Recalled]) -> str:
    """Memories as a model reads them.

    >>> listing([])
    'No memories found.'
    """
    if not results:
        return "No memories found."
    return "\n".join([f"Found {len(results)} memories:", *(_line(memory, score) for memory, score in results)])


def _line(memory: backend.Memory, score: float | None) -> str:
    percentage = "" if score is None else f" [{max(1, round(score * 100))}%]"
    return f"- [{memory.category}] {memory.key}: {memory.content}{percentage}"


# ---- repetition after a crash ----------------------------------------------------------------------------------------


class _Attempt(Struct, frozen=True, array_like=True):
    """When a call was made, and whether its memory existed."""

    at: float
    exists: bool = True


async def _first_attempt(key_value: KeyValue, context: CallContext, now: _Attempt) -> _Attempt:
    """The first attempt of a call: `now`, or the one before a crash.

    It is stored before anything changes: a call that recovery repeats has the same result, and keeps later writes.
    """

    def decide(_: Mapping[str, bytes]) -> Decision:
        return Decision(msgspec.json.encode(now))

    answer = await key_value.change("memory", decide, key=context.key)
    assert isinstance(answer, bytes)
    return msgspec.json.decode(answer, type=_Attempt)


# ---- the model's arguments -------------------------------------------------------------------------------------------


def _fields(arguments: str) -> MemoryFields:
    try:
        decoded: object = msgspec.json.decode(arguments if arguments.strip() else "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolError(f"Arguments must be one JSON object: {error}") from error
    if not isinstance(decoded, dict):
        raise ToolError("Arguments must be one JSON object.")
    return cast("dict[str, Any]", decoded)


def _key(fields: MemoryFields) -> str:
    key = fields.get("key")
    if not isinstance(key, str) or not key.strip():
        raise ToolError("Missing 'key' parameter")
    if len(key) > MAX_KEY_CHARACTERS:
        raise ToolError(f"'key' has {len(key)} characters; at most {MAX_KEY_CHARACTERS} are allowed.")
    return key


def _content(fields: MemoryFields) -> str:
    content = fields.get("content")
    if not isinstance(content, str):
        raise ToolError("Missing 'content' parameter")
    if len(content) > MAX_CONTENT_CHARACTERS:
        raise ToolError(
            f"'content' has {len(content)} characters; at most {MAX_CONTENT_CHARACTERS} can be stored under one key. "
            "Shorten it, or store parts of it under several keys."
        )
    return content


def _category(fields: MemoryFields) -> str:
    category = fields.get("category")
    if category is None:
        return backend.DEFAULT_CATEGORY
    if not isinstance(category, str) or not _CATEGORY.fullmatch(category):
        raise ToolError(
            f"Invalid 'category': expected {', '.join(CATEGORIES)}, or a name of up to 64 letters, digits, _ and -."
        )
    return category


def _search(fields: MemoryFields, agents: tuple[str, ...]) -> backend.MemorySearch:
    query, limit, mode = fields.get("query") or "", fields.get("limit"), fields.get("search_mode")
    if not isinstance(query, str):
        raise ToolError("Invalid 'query': expected words to look for.")
    limit = 5 if limit is None else limit
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ToolError(f"Invalid 'limit': expected a whole number from 1 to {MAX_LIMIT}.")
    if mode is not None and mode not in SEARCH_MODES:
        raise ToolError(f"Invalid 'search_mode': expected one of: {', '.join(SEARCH_MODES)}.")
    since, until = _timestamp(fields, "since"), _timestamp(fields, "until")
    if since is not None and until is not None and since >= until:
        raise ToolError("'since' must be before 'until'")
    return backend.MemorySearch(agents=agents, query=query, limit=min(limit, MAX_LIMIT), since=since, until=until)


def _timestamp(fields: MemoryFields, name: str) -> float | None:
    given = fields.get(name)
    if given is None:
        return None
    try:
        if not isinstance(given, str) or not _RFC_3339.fullmatch(given):
            raise ValueError(given)
        return datetime.fromisoformat(given.upper()).timestamp()
    except (ValueError, OverflowError) as error:
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        raise ToolError(
            f"Invalid '{name}' date: {text}. Expected RFC 3339 format, e.g. 2025-03-01T00:00:00Z"
        ) from error
