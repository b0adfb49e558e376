"""An import inside a function, outside of the command line, has a reason; all others are at the top of their module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/retinue"

COMMAND_LINE = ("cli/", "__main__.py")
"""A command imports what it needs in its function, so that `retinue --help` stays quick."""

EXTRA = "comes with an extra, and need not be installed"
PLATFORM = "exists on some platforms only"
SLOW = "takes long to import, and most programs do without it"
CHOSEN = "one of several; only the chosen one is loaded"
RARE = "needed by few programs, each of which pays for it alone"

REASONS = {
    "aiohappyeyeballs": SLOW,
    "aiohttp": "for requests through a proxy alone",
    "anyio": EXTRA,
    "difflib": "for a message about a wrong name",
    "fastjsonschema": "for answers with a schema alone",
    "fcntl": PLATFORM,
    "grp": PLATFORM,
    "httpx2": EXTRA,
    "importlib": SLOW,
    "ipaddress": SLOW,
    "mcp": EXTRA,
    "opentelemetry": EXTRA,
    "procrastinate": EXTRA,
    "psycopg": EXTRA,
    "pwd": PLATFORM,
    "pydantic": EXTRA,
    "requests": EXTRA,
    "resource": PLATFORM,
    "retinue.app": "a part of starting, which is needed only with settings, memories, agent programs or approvals",
    "retinue.config.yaml": CHOSEN,
    "retinue.core.server_tools": RARE,
    "retinue.dialects.base": "every program reads names of dialects, only one with dialects makes them",
    "retinue.local": CHOSEN,
    "retinue.mcp_client.connection": EXTRA,
    "retinue.mcp_server.sdk_streams": EXTRA,
    "retinue.net.event_stream": CHOSEN,
    "retinue.providers.batch": RARE,
    "retinue.providers.scripted": CHOSEN,
    "retinue.recording": RARE,
    "retinue.sandbox": CHOSEN,
    "retinue.store": CHOSEN,
    "retinue.telemetry": RARE,
    "retinue.tools": RARE,
    "shlex": RARE,
    "subprocess": SLOW,
}
"""The modules and packages that functions import, each with the reason why no module imports it at its top."""


def local_imports(source: str) -> Iterator[str]:
    """The modules that the functions of a module import; for a name of a package, its submodule if it is one.

    >>> list(local_imports("import os\\ndef ids():\\n    from uuid import uuid4\\n    import retinue.core, json"))
    ['uuid', 'retinue.core', 'json']
    >>> list(local_imports("def copy():\\n    from retinue.store.sqlite import transfer"))
    ['retinue.store.sqlite.transfer']
    """
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield from dict.fromkeys(_module_of(node, alias.name) for alias in node.names)


def _module_of(node: ast.ImportFrom, name: str) -> str:
    package = node.module or ""
    folder = SOURCE.parent.joinpath(*package.split("."))
    is_submodule = (folder / f"{name}.py").is_file() or (folder / name).is_dir()
    return f"{package}.{name}" if is_submodule else package


def reason_for(module: str) -> str:
    """The entry of a module: its own name, or that of a package above it; empty if there is none.

    >>> reason_for("retinue.store.sqlite"), reason_for("fcntl"), reason_for("json")
    ('retinue.store', 'fcntl', '')
    """
    return next((name for name in REASONS if module == name or module.startswith(f"{name}.")), "")


def test_every_import_inside_a_function_has_a_reason() -> None:
    used: set[str] = set()
    unexplained: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(COMMAND_LINE):
            for module in local_imports(path.read_text()):
                used.add(reason_for(module))
                if not reason_for(module):
                    unexplained.append(f"{name}: {module}")

    assert unexplained == [], "move it to the top, or give the reason in REASONS"
    assert REASONS.keys() - used == set(), "a reason that is no longer needed"
