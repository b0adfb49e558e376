"""A name of a class, a type or a file means one thing in the whole source, unless a reason is given here."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/retinue"

SCHEMAS = "web/bodies.py"
"""Its classes are the schemas of the HTTP API, whose names clients see; the code always writes `bodies.Run`."""

WIRE = "the same part of each wire"
VENDOR = "an object of a vendor's protocol, under the vendor's name"
DIALECT = "the same part of sibling dialects"
SETTING = "a type of settings; each section has its own bounds"
STORE = "the same part of each store"

SHARED_TYPES = {
    "CancelTask": DIALECT,
    "CancelTool": DIALECT,
    "Connect": "how each transport of the MCP server makes a connection",
    "Count": SETTING,
    "Decoder": WIRE,
    "Dollars": SETTING,
    "Encoder": WIRE,
    "Event": VENDOR,
    "FileCheck": "the check of one caller, for agent files and for files of MCP servers",
    "FromZero": "an offset, in the arguments of sibling tools",
    "ListTool": DIALECT,
    "Message": VENDOR,
    "MessageArguments": DIALECT,
    "Migration": STORE,
    "Name": SETTING,
    "NameArgument": "the argument of sibling commands",
    "NoArguments": DIALECT,
    "OrderStep": WIRE,
    "PrunedStore": STORE,
    "Response": VENDOR,
    "Row": STORE,
    "Seconds": SETTING,
    "SendTool": DIALECT,
    "SpawnArguments": DIALECT,
    "SpawnTool": DIALECT,
    "Status": DIALECT,
    "SubagentTool": DIALECT,
    "TokenCounts": WIRE,
    "Tokens": SETTING,
    "WaitArguments": DIALECT,
    "WaitTool": DIALECT,
}
"""Names of several classes or types, each with the reason for it."""

COMMAND = "the command, and what it shows or changes"
SECTION = "the section of the settings, and what it configures"
PORT = "an interface, and its implementations or what checks them"
PUBLIC = "a public module, and the internal one that it shows"
LAYER = "one subject in several layers: rules, decisions, or a face"

SHARED_FILES = {
    "agents.py": SECTION,
    "answers.py": "every text that a model or client reads",
    "approvals.py": COMMAND,
    "attachments.py": LAYER,
    "commands.py": "commands of a store and of chat",
    "compaction.py": LAYER,
    "connection.py": "the connection to a server, and that of a client",
    "context.py": "what a call, a dialect or the engine works with; `retinue context`",
    "daemon.py": COMMAND,
    "dialect.py": DIALECT,
    "errors.py": PUBLIC,
    "events.py": PUBLIC,
    "file.py": "the format of a file: a script, a recording",
    "follow.py": COMMAND,
    "hooks.py": PORT,
    "http.py": "HTTP as each package speaks it",
    "live.py": "what runs do now, on a terminal and on the page",
    "markdown.py": "Markdown as output, and as a format of memories",
    "mcp.py": SECTION,
    "mcp_servers.py": SECTION,
    "memory.py": SECTION,
    "messages.py": PUBLIC,
    "model_options.py": SECTION,
    "program.py": "a program that is started: an MCP server, an agent",
    "program_settings.py": DIALECT,
    "provider.py": PORT,
    "prune.py": STORE,
    "queries.py": STORE,
    "registry.py": "what is known by name: dialects, runs",
    "request.py": WIRE,
    "requests.py": DIALECT,
    "response.py": WIRE,
    "retention.py": LAYER,
    "rows.py": "rows of a table",
    "run.py": COMMAND,
    "search.py": "search in runs, and in the web",
    "server.py": "the server of a package",
    "server_tools.py": LAYER,
    "service.py": "what a server or daemon does, without its transport",
    "session.py": "a session of the Agent Client Protocol, at each end",
    "settings.py": SECTION,
    "spawn.py": DIALECT,
    "sse.py": "server-sent events, as read and as written",
    "store.py": PORT,
    "table.py": "a table: of jobs, of workers, or as printed",
    "tool.py": PORT,
    "tools.py": SECTION,
    "tracing.py": PORT,
    "transcript.py": LAYER,
    "transfer.py": STORE,
    "trust.py": COMMAND,
    "validation.py": "checks of arguments, and of settings",
    "vendors.py": "facts about vendors: addresses, batches",
    "vertex.py": WIRE,
    "worker.py": SECTION,
    "workspace.py": PORT,
    "worktrees.py": COMMAND,
}
"""Names of several files, each with what they share."""


def types_of(source: str) -> Iterator[str]:
    """The public classes and type aliases that a module defines.

    >>> list(types_of("class Run: ...\\nclass _Row: ...\\nNames: TypeAlias = tuple[str, ...]\\nSeconds = float"))
    ['Run', 'Names', 'Seconds']
    >>> list(types_of("LIMIT = 3\\nif TYPE_CHECKING:\\n    Rows = list[str]\\nelse:\\n    Rows = list\\nlog = Log()"))
    ['Rows']
    """
    yield from dict.fromkeys(name for name in _defined(ast.parse(source).body) if name[0].isupper())


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if "TypeAlias" in ast.dump(annotation):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.isupper():
                if not isinstance(value, ast.Call):  # a type variable is local to its module
                    yield name
            case ast.If() | ast.Try():
                yield from _defined(node.body)
                yield from _defined(node.orelse)
            case _:
                pass


@pytest.fixture(scope="module")
def types() -> dict[str, list[str]]:
    """The files that define each type, without the schemas of the HTTP API."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name != SCHEMAS:
            for defined in types_of(path.read_text()):
                files[defined].append(name)
    assert len(files) > 1000  # the source is where it is expected
    return files


def test_the_name_of_a_class_or_type_has_one_meaning(types: dict[str, list[str]]) -> None:
    found = {name: files for name, files in types.items() if len(files) > 1 and name not in SHARED_TYPES}

    assert not found, "rename one, or give the reason in SHARED_TYPES"


def test_every_reason_for_a_shared_type_is_needed(types: dict[str, list[str]]) -> None:
    assert [name for name in SHARED_TYPES if len(types[name]) < 2] == []


def test_the_name_of_a_file_has_one_meaning() -> None:
    names = Counter(path.name for path in SOURCE.rglob("*.py"))
    shared = {name for name, count in names.items() if count > 1 and name != "__init__.py"}

    assert shared - SHARED_FILES.keys() == set(), "rename one, or give the reason in SHARED_FILES"
