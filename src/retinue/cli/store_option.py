"""The flag `--store` of every command that uses a store, and the store of the settings where it is not given."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

VARIABLE = "RETINUE_STORE"
WITHOUT_STORE = ("call", "buzz", "tools", "init", "demo", "copy")
"""Commands that use no store, or name theirs in another way."""


def add_store_option(app: typer.Typer) -> None:
    """Give the commands of an application the flag `--store`."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if name not in WITHOUT_STORE:
            command.cls = StoreCommand
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            add_store_option(inner)
            if inner.registered_callback is not None:
                group.cls = StoreGroup


class StoreCommand(TyperCommand):
    """A command with the flag `--store`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_option())

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the chosen store."""
        with _chosen_store(ctx):
            return super().invoke(ctx)


class StoreGroup(TyperGroup):
    """A group of commands that is a command itself, with the flag `--store`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_option())

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the chosen store."""
        with _chosen_store(ctx):
            return super().invoke(ctx)


def _option() -> TyperOption:
    return TyperOption(
        param_decls=["--store"],
        metavar="URL",
        help="The store: sqlite:PATH or postgresql://USER@HOST/DATABASE. [RETINUE_STORE]",
        expose_value=False,
        callback=_remember,
    )


def _remember(context: typer.Context, _: object, value: str | None) -> None:
    if value is not None:
        context.meta[VARIABLE] = value


@contextmanager
def _chosen_store(context: Any) -> Generator[None]:
    """Put the address of the store into the environment, for this process and those that it starts."""
    before = os.environ.get(VARIABLE)
    url = context.meta.get(VARIABLE) or before
    if not url:
        from retinue.app.settings_file import store_in_settings

        url = store_in_settings(context.params.get("config"))
    if url:
        from retinue.app.store_url import choose_url

        choose_url(url)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
