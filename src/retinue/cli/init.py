"""`retinue init`: write a settings file with every setting explained and commented out."""

from __future__ import annotations

from typing import Annotated

import typer


def init(
    force: Annotated[bool, typer.Option("--force", metavar="", help="Write over a file that is there.")] = False,
) -> int:
    """Write ./retinue.toml with every setting there is, explained and commented out."""
    from pathlib import Path

    from retinue.app.settings_file import SECTIONS
    from retinue.cli.output.terminal import say
    from retinue.config.settings import FILE, FILES
    from retinue.config.template import template
    from retinue.core.errors import BadInput

    path = Path(FILE)
    if other := next((name for name in FILES if name != FILE and Path(name).exists()), None):
        raise BadInput(f"{other} is here already, and only one settings file can be; rename it first")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template(SECTIONS))
    except FileExistsError:
        raise BadInput(f"{FILE} is here already; --force writes over it") from None
    except OSError as error:
        raise BadInput(f"{FILE} cannot be written: {error.strerror}") from None
    say(f"wrote {FILE}; remove the # of a line to use it")
    return 0
