"""Flags that several commands share, so that each means the same and is explained the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

ANSWERS = "Who answers"
LIMITS = "How much it may use"
OUTPUT = "What is shown"

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
    typer.Option("--config", metavar="FILE", help="A settings file in place of ./retinue.toml."),
]
JsonFlag = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.", rich_help_panel=OUTPUT)]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="No progress.", rich_help_panel=OUTPUT)]
VerboseFlag = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", metavar="", help="Show what runs were asked, and tracebacks of bugs.", rich_help_panel=OUTPUT
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A run's id, or 4 or more characters of its beginning or end.")
]
