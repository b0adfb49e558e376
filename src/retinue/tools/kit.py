"""What the built-in tools are made of: everything that reaches outside the process is handed in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from retinue.core.ports import Clock, Shelf, Tool
from retinue.core.programs import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Handed to whoever makes built-in tools.

    `home` is the state folder (None keeps everything in memory); no tool may show it to a model. `web_search` names the
    engine that searches.
    """

    sandbox: Sandbox
    shelf: Shelf
    clock: Clock
    home: Path | None = None
    web_search: str = "ddgs"


MakesTools: TypeAlias = Callable[[Kit], Sequence[Tool]]
"""Makes the tools of one file; a file's function of this kind is called `tools`."""
