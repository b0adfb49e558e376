"""Writes the reference pages that follow from the code: the command line, and what each dialect promises.

`make docs` runs it. A test fails when a page says something else than the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from retinue.app.tables import DIALECTS, make_dialect
from retinue.cli.main import app
from retinue.core.ports import Tool
from retinue.dialects import promises
from retinue.dialects.desk import Desk
from retinue.dialects.promises import Promise

REFERENCE = Path(__file__).parent / "reference"
MADE = "This page is made from the code by `make docs`."


def pages() -> dict[Path, str]:
    """Every generated page, by its file."""
    made = {REFERENCE / "cli.md": command_line_page()}
    for name in DIALECTS:
        made[REFERENCE / "dialects" / f"{name}.md"] = dialect_page(name)
    return made


# ---- the command line -----------------------------------------------------------------------------------------------


def command_line_page() -> str:
    """The tree of commands, each with its arguments and flags."""
    root = cast("TyperGroup", typer.main.get_command(app))
    root.name = "retinue"
    opening = f"# Command line\n\n{MADE} `retinue COMMAND --help` tells the same."
    return "\n\n".join([opening, *_commands(root, ())]) + "\n"


def _commands(command: TyperCommand | TyperGroup, above: tuple[str, ...]) -> Iterator[str]:
    names = (*above, command.name or "")
    below = [each for each in command.commands.values() if not each.hidden] if isinstance(command, TyperGroup) else []
    yield from _command(command, names, below)
    for each in below:
        yield from _commands(cast("TyperCommand | TyperGroup", each), names)


def _command(command: TyperCommand | TyperGroup, names: tuple[str, ...], below: Iterable[Any]) -> Iterator[str]:
    yield f"## {' '.join(names)}"
    yield _filled(command.help or "")
    parameters = [cast("Any", each) for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    words = [*names, *(["[OPTIONS]"] if len(parameters) > len(arguments) else [])]
    words += [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
    if isinstance(command, TyperGroup):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    yield _block(" ".join(words))
    if below:
        yield _table(("command", "what it does"), ([f"`{each.name}`", _first_line(each.help or "")] for each in below))
    if arguments:
        yield _table(("argument", "meaning"), ([f"`{each.metavar}`", each.help or ""] for each in arguments))
    for panel, options in _panels(parameters):
        yield _table((panel or "option", "meaning"), ([_flags(each), _meaning(each)] for each in options))
    if command.epilog:
        lines = [line for line in command.epilog.splitlines() if line]
        yield _block("\n".join(line.removeprefix("Example: ") for line in lines if line != "Examples:"))


def _panels(parameters: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Options by the group in which help shows them, those without one first."""
    found: dict[str, list[Any]] = {"": []}
    for each in parameters:
        if each.param_type_name == "option":
            found.setdefault(each.rich_help_panel or "", []).append(each)
    return [(panel, options) for panel, options in found.items() if options]


def _flags(option: Any) -> str:
    value = "" if option.is_flag or not option.metavar else f" {option.metavar}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _meaning(option: Any) -> str:
    return f"{option.help} Required." if option.required else option.help


# ---- dialects -------------------------------------------------------------------------------------------------------


def dialect_page(name: str) -> str:
    """A dialect's tools with their parameters, and its promises."""
    module = import_module(DIALECTS[name].partition(":")[0])
    listed: tuple[Promise, ...] = import_module(f"{promises.__name__}.{name}").PROMISES
    # Nobody works at this desk: the tools are only looked at.
    tools = make_dialect(name, cast("Desk", Mock(spec_set=Desk, **dict.fromkeys(Desk.__annotations__, Mock())))).tools()
    parts = [
        f"# The dialect {name}",
        f'{MADE} Choose the dialect with `--dialect {name}`, or with `dialects=["{name}"]` in Python.',
        _first_line(module.__doc__ or ""),
        "## Tools",
        *(part for tool in tools.values() for part in _tool(tool)),
        "## Promises",
        "Each has an id, the section of the dialect's published document that says so, and a test that proves it.",
        _table(("id", "section", "promise"), ([f"`{each.id}`", each.section, _spans(each.text)] for each in listed)),
    ]
    return "\n\n".join(parts) + "\n"


def _tool(tool: Tool) -> Iterator[str]:
    schema = msgspec.json.decode(tool.spec.parameters, type=dict[str, Any])
    required: list[str] = schema.get("required", [])
    yield f"### {tool.spec.name}"
    yield _filled(tool.spec.description)
    yield _table(
        ("parameter", "type", "required", "meaning"),
        (
            [f"`{name}`", _type(about), "yes" if name in required else "", about.get("description", "")]
            for name, about in cast("dict[str, dict[str, Any]]", schema["properties"]).items()
        ),
    )


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    return f"array of {_type(schema['items'])}" if schema.get("type") == "array" else str(schema.get("type", ""))


def _spans(text: str) -> str:
    """Code that has a backtick in it needs blanks around, or Markdown does not see its end."""
    return re.sub(r"``(\S.*?`)``", r"`` \1 ``", text)


# ---- Markdown -------------------------------------------------------------------------------------------------------


def _table(titles: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _block(text: str) -> str:
    return f"```text\n{text}\n```"


def _filled(text: str) -> str:
    """Paragraphs, one line each."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def main() -> None:
    """Write the pages, and remove those of dialects that are gone."""
    made = pages()
    for stale in set((REFERENCE / "dialects").glob("*.md")) - made.keys():
        stale.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(REFERENCE.parent.parent), file=sys.stderr)


if __name__ == "__main__":
    main()
