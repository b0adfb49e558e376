"""Flags that several commands share, with one meaning and one help text; and the options made of them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from retinue.cli import completion
from retinue.dialects.registry import DEFAULT

if TYPE_CHECKING:
    from retinue.app.launch.start import LimitOptions
    from retinue.app.run_spec import DetachedApprovals
    from retinue.core.agent import Output
    from retinue.core.model_options import ModelOptions
    from retinue.tools.dependencies import Preset

ANSWERS = "Model"
LIMITS = "Limits"
OUTPUT = "Output"
RIGHTS = "Permissions"
TAG = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
MAX_AMOUNT = 1_000_000_000
"""The highest amount of dollars or seconds, as in the settings."""


def option(
    *names: str,
    help: str,
    metavar: str = "",
    panel: str | None = None,
    min: float | None = None,
    max: float | None = None,
    completed: Callable[..., list[Any]] | None = None,
) -> Any:
    """A typer option; `metavar` is empty for a flag without a value. `completed` has its values for a shell."""
    return typer.Option(
        *names, metavar=metavar, help=help, rich_help_panel=panel, min=min, max=max, autocompletion=completed
    )


def agent_flag(help: str) -> Any:
    """`--agent`, with a help text that says what the command does with it."""
    return option("--agent", metavar="NAME", help=help, completed=completion.agents)


def max_turns_flag(help: str) -> Any:
    """`--max-turns`: replies of the model, for what the help text says."""
    return option("--max-turns", metavar="N", min=1, help=help, panel=LIMITS)


def max_tokens_flag(help: str) -> Any:
    """`--max-tokens`: tokens, for what the help text says."""
    return option("--max-tokens", metavar="N", min=1, help=help, panel=LIMITS)


def max_cost_flag(help: str) -> Any:
    """`--max-cost`: dollars, for what the help text says."""
    return option("--max-cost", metavar="USD", min=0, help=help, panel=LIMITS)


def timeout_flag(help: str) -> Any:
    """`--timeout`: seconds, for what the help text says."""
    return option("--timeout", metavar="S", min=0, help=help, panel=LIMITS)


ProviderFlag = Annotated[
    str | None,
    option(
        "--provider",
        metavar="W",
        help="A wire (openai-chat, anthropic, ...), a local server (ollama, lmstudio, llamacpp, vllm) or a provider of "
        "the settings. [RETINUE_PROVIDER]",
        panel=ANSWERS,
        completed=completion.providers,
    ),
]
BaseUrlFlag = Annotated[
    str | None,
    option(
        "--base-url",
        metavar="URL",
        help="The provider's address, as in https://host/v1. [RETINUE_BASE_URL]",
        panel=ANSWERS,
    ),
]
ApiKeyEnvFlag = Annotated[
    str | None,
    option(
        "--api-key-env",
        metavar="NAME",
        help="The environment variable that holds the key. [RETINUE_API_KEY_ENV]",
        panel=ANSWERS,
    ),
]
ModelFlag = Annotated[
    str | None,
    option("--model", metavar="M", help="The model's name, or PROVIDER:NAME. [RETINUE_MODEL]", panel=ANSWERS),
]
ConfigFlag = Annotated[
    str | None, option("--config", metavar="FILE", help="A settings file, TOML or YAML, in place of retinue.toml.")
]
AgentsFlag = Annotated[
    list[str] | None,
    option(
        "--agents",
        metavar="DIR",
        help="A folder with agent files of Claude Code, Codex, OpenCode, Gemini CLI or Copilot. Repeatable.",
    ),
]
ProfileFlag = Annotated[
    str | None, option("--profile", metavar="NAME", help="Defaults of the settings to use: [profiles.NAME].")
]
DialectFlag = Annotated[
    list[str] | None,
    option(
        "--dialect",
        completed=completion.dialects,
        metavar="D",
        help=f"Delegation tools to offer, or none. Repeatable. [{DEFAULT} if the settings have agents, else none]",
    ),
]
ToolsFlag = Annotated[
    str | None,
    option(
        "--tools",
        metavar="a,b",
        help="Tools to offer, and the only ones of runs below; see retinue tools.",
        completed=completion.tools,
    ),
]
McpConfigFlag = Annotated[
    list[str] | None,
    option(
        "--mcp-config",
        metavar="FILE",
        help="A JSON file with MCP servers, as Claude Code, Cursor and VS Code have one. Repeatable.",
    ),
]
ThinkFlag = Annotated[bool, option("--think", help="Request extended thinking, where the model supports it.")]
EffortFlag = Annotated[
    str | None,
    option(
        "--effort",
        metavar="E",
        help="How much the model thinks: none, minimal, low, medium, high, xhigh or max. [the model's]",
        panel=ANSWERS,
    ),
]
TemperatureFlag = Annotated[
    float | None,
    option(
        "--temperature",
        metavar="T",
        min=0,
        max=2,
        help="How freely the model chooses its words, from 0 to 2. [the provider's]",
        panel=ANSWERS,
    ),
]
TopPFlag = Annotated[
    float | None,
    option(
        "--top-p",
        metavar="P",
        min=0,
        max=1,
        help="The share of likely words to choose from, from 0 to 1. [the provider's]",
        panel=ANSWERS,
    ),
]
MaxOutputTokensFlag = Annotated[
    int | None,
    option("--max-output-tokens", metavar="N", min=1, help="Tokens of one reply. [the provider's]", panel=ANSWERS),
]
NoSandboxFlag = Annotated[
    bool, option("--no-sandbox", help="Let programs of shell, terminal and python_execute run without a sandbox.")
]
PresetFlag = Annotated[
    str | None,
    option(
        "--preset",
        metavar="coding",
        help="For work on a Python or Node project: programs find .venv/bin and node_modules/.bin first, may read the "
        "Python and the Node that these need, and have a home with your git name and address. Adds file tools, the "
        "shell, and commands such as pytest, make and npx with 600 s each. Approvals and the network are as without.",
    ),
]
UnpricedFlag = Annotated[
    str | None,
    option(
        "--unpriced",
        metavar="ok",
        help="Start with --max-cost although the price of a model is unknown: the limit does not bind then.",
        panel=LIMITS,
    ),
]
OutputSchemaFlag = Annotated[
    str | None,
    option(
        "--output-schema",
        metavar="FILE",
        help="Require a JSON answer that matches the JSON Schema in this file.",
        panel=OUTPUT,
    ),
]
OutputJsonFlag = Annotated[bool, option("--output-json", help="Require a JSON object as the answer.", panel=OUTPUT)]
JsonFlag = Annotated[bool, option("--json", help="Print JSON.", panel=OUTPUT)]
QuietFlag = Annotated[bool, option("--quiet", "-q", help="Print no progress.", panel=OUTPUT)]
PlainFlag = Annotated[
    bool,
    option("--plain", help="Print the answer as it is, without Markdown, colours and redrawing.", panel=OUTPUT),
]
VerboseFlag = Annotated[
    bool, option("--verbose", "-v", help="Show the tasks of runs, and tracebacks of internal errors.", panel=OUTPUT)
]
ApprovalsFlag = Annotated[
    str | None,
    option(
        "--approvals",
        metavar="ask|wait|deny",
        help="Calls that need approval: ask here, wait for retinue approve or deny, or deny them. "
        "[ask on a terminal, else deny]",
        panel=RIGHTS,
    ),
]
YesFlag = Annotated[bool, option("--yes", "-y", help="Approve every call that only needs approval.", panel=RIGHTS)]
ContinueFlag = Annotated[
    bool, option("--continue", "-c", help="Continue the last conversation of this folder, with its session.")
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A run's id, or 4 or more characters of its beginning or end.",
        autocompletion=completion.runs,
    ),
]


def countable(flag: str, number: float | None, *, zero: bool = True) -> float | None:
    """The value of a flag, checked to be finite and in range."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{flag}: found {number}; expected a finite number")
    if number is not None and (number > MAX_AMOUNT or (number == 0 and not zero)):
        least = "from 0 to" if zero else "above 0 and up to"
        raise typer.BadParameter(f"{flag}: found {number:g}; expected a number {least} {MAX_AMOUNT}")
    return number


def limits_of(
    max_turns: int | None, max_tokens: int | None, max_cost: float | None, timeout: float | None = None
) -> LimitOptions:
    """The limits of these flags, checked."""
    from retinue.app.launch.start import LimitOptions

    return LimitOptions(
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_cost=countable("--max-cost", max_cost),
        timeout=countable("--timeout", timeout, zero=False),
    )


def accepts_unpriced(unpriced: str | None) -> bool:
    """Whether `--unpriced ok` is given; raises for any other value."""
    if unpriced not in (None, "ok"):
        raise typer.BadParameter(f"--unpriced {unpriced!r}: expected ok")
    return unpriced == "ok"


def model_options_of(
    effort: str | None,
    temperature: float | None,
    top_p: float | None,
    max_output_tokens: int | None,
    batch_hours: float | None = None,
) -> ModelOptions:
    """The options of a run's requests; typer has checked the ranges, and NaN is in none."""
    from retinue.core.model_options import EFFORTS, Effort, ModelOptions

    chosen: Effort | None = next((each for each in EFFORTS if each == effort), None)
    if effort is not None and chosen is None:
        raise typer.BadParameter(f"--effort {effort!r}: expected one of: {', '.join(EFFORTS)}")
    return ModelOptions(
        effort=chosen,
        temperature=temperature,
        top_p=top_p,
        max_output_tokens=max_output_tokens,
        batch_hours=batch_hours,
    )


def utf8(given: str, what: str) -> str:
    """The text, checked to be UTF-8: a command line and a pipe can hold any bytes."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{what} is not UTF-8 text") from None
    return given


def required_output(schema: str | None, any_object: bool) -> Output | None:
    """The form of the answer that `--output-schema` or `--output-json` requires; None if neither is given."""
    exclude({"--output-schema": schema is not None, "--output-json": any_object})
    if schema is None and not any_object:
        return None
    from retinue.app.structured_output import make_output

    if schema is not None and schema.lstrip().startswith("{"):
        raise typer.BadParameter("--output-schema: expected the name of a file; write the JSON Schema into one")
    return make_output(dict if schema is None else Path(schema))


def split_names(names: str | None) -> tuple[str, ...] | None:
    """The names in a flag that takes them separated by commas.

    >>> split_names("grep, file_read,"), split_names(""), split_names(None)
    (('grep', 'file_read'), (), None)
    """
    return None if names is None else tuple(name.strip() for name in names.split(",") if name.strip())


def dialects_of(named: list[str] | None) -> tuple[str, ...] | None:
    """The dialects in repeated flags; `none` alone is the empty tuple, no flag is None.

    >>> dialects_of(["mine", "mine"]), dialects_of(["none"]), dialects_of(None)
    (('mine',), (), None)
    """
    if not named:
        return None
    names = tuple(dict.fromkeys(named))
    if "none" in names and len(names) > 1:
        raise typer.BadParameter("--dialect none and another dialect exclude each other")
    return () if names == ("none",) else names


def tools_of(names: str | None, *, agent: str | None) -> tuple[str, ...] | None:
    """The tools in `--tools`; without the flag those of the agent (None), or none without an agent."""
    tools = split_names(names)
    return () if tools is None and agent is None else tools


def preset_of(name: str | None) -> Preset | None:
    """The preset in `--preset`."""
    from retinue.tools.dependencies import PRESETS

    if name is not None and name not in PRESETS:
        raise typer.BadParameter(f"unknown preset {name!r}; expected {' or '.join(PRESETS)}", param_hint="--preset")
    return next((preset for preset in PRESETS if preset == name), None)


def tags_of(tags: list[str] | None) -> tuple[str, ...]:
    """The tags in `--tag`; raises for one that the settings would not accept either."""
    for tag in tags or ():
        if not TAG.fullmatch(tag):
            raise typer.BadParameter(
                f"--tag: found {tag!r}; expected 1 to 64 of the characters a-z, A-Z, 0-9, ., _, :, / and -"
            )
    return tuple(tags or ())


def exclude(flags: dict[str, bool]) -> None:
    given = [flag for flag, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other")


Form: TypeAlias = Literal["text", "json", "sse"]
"""How an outcome is printed: the answer alone, as a JSON object, or not at all because it was streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How progress and the answer of a run are printed."""

    json: bool = False
    sse: bool = False
    brief: bool = False
    tree: bool = False
    quiet: bool = False
    verbose: bool = False
    plain: bool = False
    structured: bool = False
    """Whether the answer is JSON, which is printed at the end."""

    def __post_init__(self) -> None:
        exclude({"--sse": self.sse, "--json": self.json, "--quiet": self.quiet})
        exclude({"--tree": self.tree, "--brief": self.brief})
        if self.tree and not self.sse:
            raise typer.BadParameter("--tree needs --sse")

    @property
    def form(self) -> Form:
        return "json" if self.json else "sse" if self.sse else "text"


ApprovalsMode: TypeAlias = Literal["ask", "wait", "deny"]

MODES: tuple[ApprovalsMode, ...] = ("ask", "wait", "deny")


@dataclass(frozen=True, slots=True)
class ApprovalOptions:
    """How calls are handled that need approval."""

    mode: ApprovalsMode
    yes: bool = False

    @property
    def detached(self) -> DetachedApprovals:
        """The same options for a background process, which cannot ask."""
        return "yes" if self.yes else "deny" if self.mode == "deny" else "wait"


def approval_options(mode: str | None, *, yes: bool, detach: bool = False) -> ApprovalOptions:
    """The options in `--approvals` and `--yes`; by default `ask` on a terminal, `wait` if detached, else `deny`."""
    if mode is not None and mode not in MODES:
        raise typer.BadParameter(f"--approvals {mode!r}: expected one of: {', '.join(MODES)}")
    if mode is not None and yes:
        raise typer.BadParameter("--yes and --approvals exclude each other")
    on_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if mode == "ask" and detach:
        raise typer.BadParameter("--detach and --approvals ask exclude each other: use --approvals wait")
    if mode == "ask" and not on_terminal:
        raise typer.BadParameter("--approvals ask needs a terminal on stdin and stderr: use --approvals wait")
    if mode is None:
        return ApprovalOptions("deny" if not on_terminal else "wait" if detach else "ask", yes)
    return ApprovalOptions(next(each for each in MODES if each == mode), yes)
