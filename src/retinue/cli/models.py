"""`retinue models`: ask the providers which models they offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from retinue.cli import completion
from retinue.cli.event_loop import perform
from retinue.cli.options import ConfigFlag, JsonFlag, option
from retinue.cli.output.terminal import answer_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.app.model_lists import AskedProvider
    from retinue.providers.model_list import ListedModel


def models(
    provider: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROVIDER]",
            help="A wire, a local server or a provider of the settings.",
            autocompletion=completion.providers,
        ),
    ] = None,
    every: Annotated[bool, option("--all", help="Include models that are not for chats, such as embeddings.")] = False,
    config: ConfigFlag = None,
    json: JsonFlag = False,
) -> int:
    """List the models of every provider that is set up, with context window and price.

    Asks the servers: providers of the settings, vendors whose key is set, and model servers on this machine. Prices are
    dollars per million tokens; ? is unknown. Exit status: 0 if a server answered, else 1.
    """
    from retinue.app.model_lists import ask_providers, provider_row
    from retinue.app.settings_file import load_settings
    from retinue.providers.catalog import canonical_name

    settings = load_settings(config)
    asked: list[AskedProvider] = []

    async def main() -> int:
        only = None if provider is None else canonical_name(provider, settings.providers)
        asked.extend(await ask_providers(settings, only=only, every=every))
        return 0 if any(not each.error for each in asked) else 1

    code = perform(main())
    if json:
        answer_json([provider_row(each) for each in asked])
        return code
    rows = [_Row(each.config.name, model) for each in asked for model in each.models]
    if rows:
        _table(rows)
    for each in asked:
        if each.error:
            say(f"{each.config.name}: {each.error}")
        elif not each.models:
            say(f"{each.config.name}: no models at {each.config.base_url}")
    if not asked:
        say("no provider is set up: see retinue doctor")
    return code


class _Row(NamedTuple):
    provider: str
    model: ListedModel


def _table(rows: Sequence[_Row]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[_Row]] = [
        Column(title="MODEL", cell=lambda row: f"{row.provider}:{row.model.name}", shrinks=True, keeps_end=True),
        Column(title="CONTEXT", cell=lambda row: _tokens(row.model.window), right=True),
        Column(title="INPUT $/M", cell=lambda row: _price(row.model, "input"), right=True),
        Column(title="OUTPUT $/M", cell=lambda row: _price(row.model, "output"), right=True),
    ]
    print_table(rows, columns)


def _tokens(window: int | None) -> str:
    return "?" if window is None else f"{window:,}"


def _price(model: ListedModel, side: str) -> str:
    return "?" if model.rates is None else f"{getattr(model.rates, side):g}"
