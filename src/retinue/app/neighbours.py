"""Lets files next to a tool module be imported: by that module and by one another, and by nobody else.

The folder is often one that agents write to. On `sys.path` it would also answer whoever looks for a package that is not
installed, and run there what an agent has left under that name.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType


class _Neighbours(MetaPathFinder):
    """The last to be asked, so that nothing in those folders hides what is installed."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the module is, if somebody who lives next to it asks; parts of packages are found without this."""
        if path is not None:
            return None
        here = inspect.currentframe()
        asker = os.path.realpath(_asking_file(here.f_back if here is not None else None))
        at_home = (folder for folder in self.folders if asker.startswith(folder + os.sep))
        return next((spec for folder in at_home if (spec := PathFinder.find_spec(fullname, [folder]))), None)


def _asking_file(frame: FrameType | None) -> str:
    """The file whose code imports something; what Python itself does in between is passed over."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


_NEIGHBOURS = _Neighbours()


def let_be_imported(folder: str) -> None:
    """Let files in that folder import one another from now on."""
    if _NEIGHBOURS not in sys.meta_path:
        sys.meta_path.append(_NEIGHBOURS)
    if folder not in _NEIGHBOURS.folders:
        _NEIGHBOURS.folders.append(folder)
