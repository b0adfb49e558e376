"""Flags that several commands share, so that each means the same and is explained the same everywhere."""

from __future__ import annotations

import math
from typing import Annotated

import typer

ANSWERS = "Who answers"
LIMITS = "How much it may use"
OUTPUT = "What is shown"
RIGHTS = "What it may do"
MOST = 1_000_000_000
"""Dollars or seconds, as in the settings."""

ProviderFlag = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="W",
        help="A wire (openai-chat, anthropic, ...), a local server (ollama, lmstudio, llamacpp, vllm) or a provider of "
        "the settings. [RETINUE_PROVIDER]",
        rich_help_panel=ANSWERS,
    ),
]
BaseUrlFlag = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="Its address, as in https://host/v1. [RETINUE_BASE_URL]",
        rich_help_panel=ANSWERS,
    ),
]
ApiKeyEnvFlag = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="The environment variable that holds the key. [RETINUE_API_KEY_ENV]",
        rich_help_panel=ANSWERS,
    ),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="M", help="The model's name, or PROVIDER:NAME. [RETINUE_MODEL]", rich_help_panel=ANSWERS
    ),
]
ConfigFlag = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A settings file, TOML or YAML, in place of ./retinue.toml."),
]
NoSandboxFlag = Annotated[
    bool,
    typer.Option(
        "--no-sandbox", metavar="", help="Let programs of shell, terminal and python_execute run without a sandbox."
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.", rich_help_panel=OUTPUT)]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="No progress.", rich_help_panel=OUTPUT)]
BriefFlag = Annotated[
    bool,
    typer.Option(
        "--brief", "-b", metavar="", help="With --sse: neither calls nor their results.", rich_help_panel=OUTPUT
    ),
]
VerboseFlag = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", metavar="", help="Show what runs were asked, and tracebacks of bugs.", rich_help_panel=OUTPUT
    ),
]
ApprovalsFlag = Annotated[
    str | None,
    typer.Option(
        "--approvals",
        metavar="ask|wait|deny",
        help="When a call needs a person: ask here, wait for retinue approve or deny from another terminal, or refuse "
        "it. [ask on a terminal, else deny]",
        rich_help_panel=RIGHTS,
    ),
]
YesFlag = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", metavar="", help="Approve every call that only needs approval.", rich_help_panel=RIGHTS
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A run's id, or 4 or more characters of its beginning or end.")
]


def countable(flag: str, number: float | None, *, zero: bool = True) -> float | None:
    """What a flag was given, if it is an amount that can be spent."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{flag}: {number} is not a number that can be counted to")
    if number is not None and (number > MOST or (number == 0 and not zero)):
        least = "from 0 to" if zero else "above 0 and up to"
        raise typer.BadParameter(f"{flag}: found {number:g}; expected a number {least} {MOST}")
    return number


def listed(names: str | None) -> tuple[str, ...] | None:
    """What a flag was given that takes names with commas.

    >>> listed("grep, file_read,"), listed(""), listed(None)
    (('grep', 'file_read'), (), None)
    """
    return None if names is None else tuple(name.strip() for name in names.split(",") if name.strip())


def dialects_of(named: list[str] | None) -> tuple[str, ...] | None:
    """The dialects that flags name; `none` alone stands for none of them.

    >>> dialects_of(["mine", "mine"]), dialects_of(["none"]), dialects_of(None)
    (('mine',), (), None)
    """
    if not named:
        return None
    names = tuple(dict.fromkeys(named))
    if "none" in names and len(names) > 1:
        raise typer.BadParameter("--dialect none and another dialect exclude each other")
    return () if names == ("none",) else names
