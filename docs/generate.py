"""Writes the reference pages that follow from the code: command line, policies, tools, dialects, settings, Python.

It also writes the descriptions of built-in tools with which runs begin.

`make docs` runs it. A test fails when a page and the code disagree.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

import retinue
from retinue.app.open import builtin_tools
from retinue.cli.main import app
from retinue.config.agent_files.translation import TOOLS
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES
from retinue.config.template import description_and_example, fields_of, toml
from retinue.core.agent import Agent
from retinue.core.attachments import AUDIO_TYPES, IMAGE_TYPES, PDF
from retinue.core.compaction import CHARACTERS_PER_TOKEN
from retinue.core.errors import PolicyError
from retinue.core.model_options import ModelOptions
from retinue.core.policy import DEFAULT_AUTO_APPROVE, Policy, narrow
from retinue.core.ports import Request, Tool
from retinue.core.server_tools import SERVER_TOOL_KINDS
from retinue.core.usage import dollar_text
from retinue.dialects import registry
from retinue.providers.anthropic.request import Encoder as AnthropicEncoder
from retinue.providers.bedrock.request import Encoder as BedrockEncoder
from retinue.providers.catalog import CLAUDE_MODELS, WIRES
from retinue.providers.gemini.request import Encoder as GeminiEncoder
from retinue.providers.message_encoder import MessageEncoder
from retinue.providers.openai_chat.request import Encoder as ChatEncoder
from retinue.providers.openai_responses.request import Encoder as ResponsesEncoder
from retinue.providers.scripted import Line, Script, ScriptedProvider, says
from retinue.testing.harness import dialect_context
from retinue.tools.builtin import DESCRIBED, DESCRIPTIONS, described
from retinue.web.openapi import document

sys.path.insert(0, str(Path(__file__).parent.parent))
from docs.python_reference import errors_page, events_page, python_page
from docs.settings_reference import settings_page
from tests.dialects.promise import Promise

REFERENCE = Path(__file__).parent / "reference"
FORMATS: dict[str, Sequence[str]] = {"images": IMAGE_TYPES, "PDF": (PDF,), "audio": AUDIO_TYPES}
ENCODERS: dict[str, MessageEncoder] = {
    "anthropic, vertexai-anthropic": AnthropicEncoder(),
    "openai-chat, vendors on it, local servers": ChatEncoder(),
    "openai, openai-responses": ResponsesEncoder(),
    "gemini 2": GeminiEncoder("unsigned"),
    "gemini from 3 on": GeminiEncoder("signed"),
    "bedrock": BedrockEncoder(),
}

MADE = "This page is made from the code by `make docs`."


def pages() -> dict[Path, str]:
    """Every generated page, by its file."""
    made = {
        REFERENCE / "agent-files.md": agent_files_page(),
        REFERENCE / "cli.md": command_line_page(),
        REFERENCE / "delegation-cost.md": delegation_cost_page(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "events.md": events_page(),
        REFERENCE / "openapi.json": openapi_file(),
        REFERENCE / "policy.md": policy_page(),
        REFERENCE / "python.md": python_page(),
        REFERENCE / "settings.md": settings_page(),
        REFERENCE / "tools.md": tools_page(),
        REFERENCE / "wires.md": wires_page(),
        DESCRIPTIONS: described(tool for tool in builtin_tools() if tool.spec.name in DESCRIBED),
    }
    for name in registry.names():
        made[REFERENCE / "dialects" / f"{name}.md"] = dialect_page(name)
    return made


def openapi_file() -> str:
    """The OpenAPI document of `retinue serve`."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


# ---- agent files -----------------------------------------------------------------------------------------------------


def agent_files_page() -> str:
    """How names of tools and models in agent files are translated."""
    tools = [f"| `{name}` | {', '.join(f'`{each}`' for each in own) or 'not needed'} |" for name, own in TOOLS.items()]
    models = [f"| `{alias}` | `anthropic:{model}` |" for alias, model in CLAUDE_MODELS.items()]
    return "\n".join(
        [
            f"# Names in agent files\n\n{MADE} [Agent files](../how-to/agent-files.md) says how to use them.",
            "\n## Tools\n",
            "Case, `_` and `-` do not matter. Tools that start agents come from the dialect of a run.\n",
            "| in a file | tools of Retinue |\n|---|---|",
            *tools,
            "\n## Models\n",
            "| in a file | model |\n|---|---|",
            *models,
            "| `inherit`, nothing | the model of the parent run |\n",
        ]
    )


# ---- wires ----------------------------------------------------------------------------------------------------------


def server_tool_lines() -> list[str]:
    """Which tools of their own the vendors have, with the options and the prices that are known."""
    names = [name for name, wire in WIRES.items() if wire.server_tools and name not in ("openai",)]
    lines = [
        "",
        "## Server tools",
        "",
        "Tools that [a vendor runs](../how-to/server-tools.md), with the options that the wire sends.",
        "",
        f"| tool | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for kind in (*SERVER_TOOL_KINDS, "mcp"):
        cells: list[str] = []
        for name in names:
            options = WIRES[name].server_tools.get(kind)
            cells.append("" if options is None else ", ".join(f"`{each}`" for each in sorted(options)) or "yes")
        lines.append(f"| {'remote MCP servers' if kind == 'mcp' else f'`server:{kind}`'} | {' | '.join(cells)} |")
    priced = {f"`{tool}` at {name}": price for name in names for tool, price in WIRES[name].server_tool_prices.items()}
    listed = "; ".join(f"{tool} {dollar_text(price)}" for tool, price in priced.items())
    return [*lines, "", f"Charged for one use, unless `price` says otherwise: {listed}."]


def wire_features(name: str) -> dict[str, bool]:
    """What a wire has, by the names of the table."""
    wire = WIRES[name]
    options = {f"`{option}`": option in wire.supports for option in ModelOptions.__struct_fields__}
    return options | {
        "`bearer`": wire.takes_bearer,
        "`prompt_cache_key` by default": wire.caches_by_key,
        "prices of `service_tier`": bool(wire.tiers),
        "thinking in `<think>` tags": wire.kind == "local",
        "temperature above 1": wire.max_temperature > 1,
        "list of models": bool(wire.models_path),
    }


def wires_page() -> str:
    """Which option works on which wire, and the vendors by name."""
    names = [name for name, wire in WIRES.items() if wire.kind in ("vendor", "local")]
    columns: dict[tuple[bool, ...], list[str]] = {}
    for name in names:  # one column for wires that have the same
        columns.setdefault((WIRES[name].kind == "local", *wire_features(name).values()), []).append(name)
    lines = [
        "# Features of the wires",
        "",
        MADE,
        "",
        "Options of [requests](../how-to/model-options.md) by wire. A wire that lacks an option refuses it by name.",
        "",
        f"| option | {' | '.join(map(', '.join, columns.values()))} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for feature in wire_features("openai"):
        cells = ["yes" if wire_features(first)[feature] else "" for first, *_ in columns.values()]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    lines += server_tool_lines()
    lines += ["", *_media_rows()]
    lines += [
        "",
        "## Vendors by name",
        "",
        "The default address, the variable of the key, the model where none is named, and whether prices are known.",
        "",
        "| name | address | variable of the key | model | prices |",
        "|---|---|---|---|---|",
    ]
    for name, wire in WIRES.items():
        if wire.kind == "vendor":
            priced = "of this vendor" if wire.prices else "of the models' vendors"
            cells = [wire.base_url or wire.base_url_example, wire.api_key_env, wire.default_model]
            shown = " | ".join(f"`{cell}`" if cell else "none" for cell in cells)
            lines.append(f"| `{name}` | {shown} | {priced} |")
    return "\n".join(lines) + "\n"


def _media_rows() -> Iterator[str]:
    """Which images and files each wire sends, and where those of a result go."""
    yield "## Images and files"
    yield ""
    yield "In messages and in results of tools. See [images and files](../how-to/images.md)."
    yield ""
    yield f"| | {' | '.join(ENCODERS)} |"
    yield f"|---|{'---|' * len(ENCODERS)}"
    for format, types in FORMATS.items():
        cells = [_taken(types, encoder.media_types) for encoder in ENCODERS.values()]
        yield f"| {format} | {' | '.join(cells)} |"
    for format, types in FORMATS.items():
        cells = [_place_in_result(types, encoder) for encoder in ENCODERS.values()]
        yield f"| {format} of a tool's result | {' | '.join(cells)} |"


def _taken(types: Iterable[str], taken: Collection[str]) -> str:
    found = [each.partition("/")[2] for each in types if each in taken]
    return "yes" if len(found) == len(tuple(types)) else ", ".join(found)


def _place_in_result(types: Sequence[str], encoder: MessageEncoder) -> str:
    if not encoder.media_types.intersection(types):
        return "named"
    return "in the result" if encoder.result_media_types.intersection(types) else "in a message after it"


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


# ---- tools -----------------------------------------------------------------------------------------------------------

KINDS = {
    "pure": "looks, and is called again after a crash",
    "idempotent": "does the same when it is called again, and is",
    "keyed": "finds after a crash what it had begun",
    "once": "is never called twice: after a crash the model reads that it may have happened",
}


def tools_page() -> str:
    """The built-in tools with their arguments."""
    opening = (
        f"# Tools\n\n{MADE} [Tools](../how-to/tools.md) tells how they are given to agents. Whether a call needs a "
        "person depends on its risk and on the [policy](policy.md) of the agent; where calls differ, it is the largest."
    )
    kinds = _table(("kind", "what it means"), ([f"`{kind}`", words] for kind, words in KINDS.items()))
    return "\n\n".join([opening, kinds, *(_builtin(tool) for tool in builtin_tools())]) + "\n"


def _builtin(tool: Tool) -> str:
    schema = msgspec.json.decode(tool.spec.parameters)
    facts = f"Kind `{tool.kind}`, risk {tool.risk}" + (f", at most {tool.timeout:g} s." if tool.timeout else ".")
    rows = [
        [
            f"`{name}`",
            _kind_of(field),
            "" if name in schema.get("required", ()) else _shown_default(field),
            _words(field),
        ]
        for name, field in schema["properties"].items()
    ]
    table = [_table(("argument", "type", "default", "meaning"), rows)] if rows else []
    return "\n\n".join([f"## {tool.spec.name}", tool.spec.description, facts, *table])


def _kind_of(field: dict[str, Any]) -> str:
    options = field.get("anyOf") or [field]
    if chosen := [value for option in options for value in option.get("enum", ()) if value is not None]:
        return " or ".join(f"`{value}`" for value in chosen)
    return " or ".join(str(option.get("type", "anything")) for option in options if option.get("type") != "null")


def _shown_default(field: dict[str, Any]) -> str:
    found = field.get("default")
    return "none" if found in (None, "") else f"`{found}`"


def _words(field: dict[str, Any]) -> str:
    return " ".join(str(field.get("description", "")).split()).replace("|", "\\|")


# ---- policies -------------------------------------------------------------------------------------------------------

POLICY_OPENING = """\
A policy is everything that an agent may do. In the settings it comes from two tables that an agent names, its
`risk_profile` and its `runtime_profile`; in Python it is `retinue.Policy`, with the same names (`level` is `autonomy`
there). See [Approvals](../how-to/approvals.md) for calls that need a person.

- `retinue.open(policy=...)` is the ceiling of everything that is started there; an agent with a policy of its own has
  what both allow. A run that asks for more (`spawn(policy=...)`) is refused with `retinue.PolicyError`, which has the
  `field`, what was `asked` for and what is `allowed`; the words are below.
- A child has its parent's policy, cut by its own if it has one. So has a fork. A run that is resumed is cut once
  more, by the settings of that day. Nothing ever widens it.
- The tools given for a run (`--tools`, or `tools=` of a run in Python) bound its whole tree, whatever a policy allows.
- `delegate` of the dialect `zeroclaw` gives an agent with profiles of its own the rights of these, which may be more
  than its caller's; an agent without profiles has no more than its caller. With `delegation_ceiling = "caller"` in the
  caller's `[runtime_profiles]` no target has more than its caller, nor have the agents to which it delegates; with
  `"target"` every target has its own rights.
- It is enforced where a call is made, from whatever run, and not by hiding tools alone.
- The two limits on stretches of time (actions an hour, cost a day) are counted for each agent by name, in the store:
  all its runs share them, in all processes, and what its children use counts for it as well. They bind where a
  policy was given: for the retinue, for the run, or for its agent. Without any, the other limits of `Policy()`
  hold, and nothing is counted.

An action is a call that changes something: it writes a file, runs a command, stores a memory. Tools say so themselves
(`@retinue.tool(acts=True)`). The last one of an hour is followed by `Rate limit exceeded: action budget exhausted`.
Actions are counted by the store, in the transaction that allows one: of processes that act at the same instant, as many
actions are made as the limit has left, and the others are refused.

A name in one of the lists of tools that no tool has does nothing. It is told when a run starts, and `retinue doctor`
calls it broken."""

NOTES = {
    "allowed_roots": """\
A root that does not exist is nothing until it does. A root whose path leads through a link in a folder that an agent
may write (a workspace, another root) is not open: an agent could have made the link. Write down the folder itself.""",
    "forbidden_paths": """\
In the settings a relative path starts at their folder. In Python it starts at the workspace: it is closed there, and
in the workspaces of the runs above, so that a child in another workspace is bound as its parent is. A child that
repeats it in a policy of its own keeps what it means for its parent. A path that is a link, or leads through one,
closes the link, what it leads to now, and what it led to when retinue first saw it.""",
    "allowed_commands": """\
The list holds for every command of a line, and for what a command is told to start (`find -exec`, `xargs`, `env`,
`timeout`). A name in the list is that of an installed program; one by its path is allowed if the list has that path.
Words of the shell itself that start nothing (`cd`, `test`, `printf`, `export`, `read`, `set -e`, `wait`) need not be in
it. A line that cannot be read with certainty is refused: one with a substitution, a here-document whose end is not in
quotes (`<<'EOF'`), or one that sets a variable by which programs are found. A program of the list that runs code of its
own (`python`, `node`, `npm`, `awk`, `git` with a hook or an alias) does what that code says: what it can reach is for
the [sandbox](../explanation/sandbox.md) to say.""",
}
"""What is worth more than a sentence."""

MORE_THAN_THE_PARENT: dict[str, tuple[Any, Any]] = {
    "autonomy": ("supervised", "full"),
    "workspace_only": (True, False),
    "allowed_roots": (["/srv"], ["/secrets"]),
    "allowed_roots_read_only": (["/srv"], ["/etc"]),
    "allowed_roots_write_only": (["/srv"], ["/etc"]),
    "forbidden_paths": (["/etc/secrets"], []),
    "allowed_commands": (["ls"], ["rm"]),
    "shell_env_passthrough": ([], ["AWS_SECRET_ACCESS_KEY"]),
    "shell_timeout_secs": (30, 600),
    "max_actions_per_hour": (100, 200),
    "max_cost_per_day_cents": (500, 1000),
    "block_high_risk_commands": (True, False),
    "require_approval_for_medium_risk": (True, False),
    "allowed_tools": (["file_read"], ["shell"]),
    "excluded_tools": (["shell"], []),
    "auto_approve": ([], ["shell"]),
    "always_ask": (["shell"], []),
}
"""For each field what a parent has, and what a child asks for that is more."""


def policy_page() -> str:
    """Every field of a policy: what it means, its default, an example, and how asking for more is refused."""
    parts = ["# Policies", MADE, POLICY_OPENING, "## Fields"]
    for field in Policy.__struct_fields__:
        parts += _policy_field(field)
    return "\n\n".join(parts) + "\n"


def _policy_field(field: str) -> Iterator[str]:
    key = "level" if field == "autonomy" else field
    section = RISK_PROFILES if key in RISK_PROFILES.type.__struct_fields__ else RUNTIME_PROFILES
    assert section.named is not None
    about, example = description_and_example(next(each.type for each in fields_of(section.type) if each.name == key))
    yield f"### {field}"
    yield f"{about} By default {_default(field)}."
    if field in NOTES:
        yield NOTES[field]
    yield f"```toml\n[{section.name}.{section.named.example}]\n{key} = {toml(example)}\n```"
    has, asks = MORE_THAN_THE_PARENT[field]
    try:
        narrow(Policy(**{field: has}), Policy(**{field: asks}))
    except PolicyError as refused:
        yield f"A child that asks for more is refused: `{refused}`."


def _default(field: str) -> str:
    match field, getattr(Policy(), field):
        case "auto_approve", _:
            return f"none; a profile in the settings has {_listed(DEFAULT_AUTO_APPROVE)}"
        case "allowed_commands", commands:
            return f"{_listed(each for each in commands if each != 'free')}, and on Linux `free`"
        case "allowed_tools", _:
            return "all of them"
        case _, tuple():
            return "none"
        case _, default:
            return f"`{default}`".lower()


def _listed(entries: Iterable[str]) -> str:
    return ", ".join(f"`{entry}`" for entry in entries)


# ---- dialects -------------------------------------------------------------------------------------------------------


def dialect_page(name: str) -> str:
    """A dialect's tools with their parameters, and its promises."""
    package = import_module(registry.PACKAGES[name])
    listed: tuple[Promise, ...] = import_module(f"tests.dialects.{name}.promises").PROMISES
    tools = registry.entry(name).make(dialect_context()).tools()
    parts = [
        f"# The dialect {name}",
        f'{MADE} Choose the dialect with `--dialect {name}`, or with `dialects=["{name}"]` in Python.',
        _first_line(package.__doc__ or ""),
        f"Its tools and its part of the system text add about {_added(name).total} tokens to every request of a run "
        "that is offered them; [see the others](../delegation-cost.md).",
        "## Tools",
        *(part for tool in tools.values() for part in _tool(tool)),
        "## Promises",
        "Each has an id, the section of the dialect's published document that says so, and a test that proves it.",
        _table(("id", "section", "promise"), ([f"`{each.id}`", each.section, _spans(each.text)] for each in listed)),
    ]
    return "\n\n".join(parts) + "\n"


class Added(NamedTuple):
    """Tokens that a dialect adds to each request of the root, by the estimate of the engine."""

    tools: int
    system: int

    @property
    def total(self) -> int:
        return self.tools + self.system


@cache
def _added(name: str) -> Added:
    """Measured in a request of a run: what it offers differs from a bare dialect's tools, by names and models."""
    sent: list[Request] = []

    def answer(request: Request) -> Line:
        sent.append(request)
        return says("Done.")

    async def ask() -> None:
        async with retinue.open(
            providers={"anthropic": ScriptedProvider(Script().play("main", answer))},
            model="anthropic:claude-sonnet-4-5",
            dialects=(name,),
            agents=[Agent(name="researcher", description="Finds sources")],
            home=retinue.MEMORY,
        ) as r:
            await r.run("Hello.")

    asyncio.run(ask())
    (request,) = sent
    return Added(
        tools=sum(len(spec.parameters) + len(spec.description) for spec in request.tools) // CHARACTERS_PER_TOKEN,
        system=len(request.system) // CHARACTERS_PER_TOKEN,
    )


def delegation_cost_page() -> str:
    """What the tools of each dialect add to every request."""
    costs = {name: _added(name) for name in registry.names()}
    rows = [
        [f"[`{name}`](dialects/{name}.md)", f"{cost.tools:,}", f"{cost.system:,}", f"{cost.total:,}"]
        for name, cost in costs.items()
    ]
    parts = [
        "# What delegation costs",
        f"{MADE} A run that is offered the tools of a dialect sends their descriptions with every request, whether it "
        "delegates or not. `retinue run` and `retinue chat` therefore offer them only if `--dialect` or `dialects` of "
        "the settings name a dialect, or if the settings have agents to delegate to. In a chat, `/subagents on` and "
        "the settings of `xzatoma` switch them on as well ([how](../how-to/chat.md#delegation)).",
        "Tokens in every request of the root, measured in a request with one agent and a model of Anthropic, by the "
        f"estimate of {CHARACTERS_PER_TOKEN} characters a token. More agents, tools and providers are more names to "
        "list. A vendor's cache makes the repeated part cheaper.",
        _table(("dialect", "tools", "system text", "together"), rows),
        "`--dialect none` adds nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def _tool(tool: Tool) -> Iterator[str]:
    schema = msgspec.json.decode(tool.spec.parameters, type=dict[str, Any])
    required: list[str] = schema.get("required", [])
    yield f"### {tool.spec.name}"
    yield _filled(tool.spec.description)
    parameters = cast("dict[str, dict[str, Any]]", schema["properties"])
    if not parameters:
        yield "It has no parameters."
        return
    yield _table(
        ("parameter", "type", "required", "meaning"),
        (
            [f"`{name}`", _type(about), "yes" if name in required else "", about.get("description", "")]
            for name, about in parameters.items()
        ),
    )


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return " or ".join(cast("list[str]", kind))
    return f"array of {_type(schema['items'])}" if kind == "array" else str(kind)


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
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
