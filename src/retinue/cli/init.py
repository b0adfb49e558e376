"""`retinue init`: write a settings file with every setting explained and commented out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from retinue.cli.options import option
from retinue.cli.output.terminal import say
from retinue.core.errors import BadInput


def init(force: Annotated[bool, option("--force", help="Overwrite an existing file.")] = False) -> int:
    """Write ./retinue.toml with every setting explained and commented out."""
    from retinue.app.settings_sections import SECTIONS
    from retinue.app.trust import accept_written
    from retinue.config.settings import FILE
    from retinue.config.template import template
    from retinue.core.settings_file_names import SETTINGS_FILES

    path = Path(FILE)
    if other := next((name for name in SETTINGS_FILES if name != FILE and Path(name).exists()), None):
        raise BadInput(f"{other} exists, and a folder has only one settings file: rename or remove it first")
    text = template(SECTIONS)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
        accept_written(path.absolute(), text.encode())
    except FileExistsError:
        raise BadInput(f"{FILE} exists; use --force to overwrite it") from None
    except OSError as error:
        raise BadInput(f"{FILE} cannot be written: {error.strerror}") from None
    say(f"wrote {FILE}; remove the # of a line to use it")
    return 0
