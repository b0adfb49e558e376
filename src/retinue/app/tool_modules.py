"""Takes tools out of the user's own Python files. That runs their code; what goes wrong is told without a traceback."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeGuard

from retinue.core.agent import ToolSpec
from retinue.core.errors import ConfigError, Problem, RetinueError
from retinue.core.ports import Tool, ToolLike, as_tool


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
        caller_spec = os.path.realpath(_asking_file(here.f_back if here is not None else None))
        at_home = (folder for folder in self.folders if caller_spec.startswith(folder + os.sep))
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


def load_tools(paths: Iterable[Path]) -> tuple[Tool, ...]:
    """The tools in these files, in the order in which they are written; a file may hand on another's by importing them.

    Raises `ConfigError` with all that is wrong: a file that is not there, that cannot be imported or has no tools, and
    two tools of one name. Files next to a module can be imported by it. What it prints goes to stderr.
    """
    tools: dict[str, tuple[ToolLike, Path]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            found = list(_tools_in(_imported(path)))
        except ConfigError as error:
            problems += error.problems
            continue
        if not found:
            complaint = "there are no tools in it; decorate a function with @retinue.tool"
            problems.append(Problem(file=str(path), complaint=complaint))
        for tool in found:
            name = tool.spec.name
            known, where = tools.setdefault(name, (tool, path))
            if known is not tool:
                complaint = f"a second tool is named {name}; the first is in {where}: rename one of them"
                problems.append(Problem(file=str(path), complaint=complaint, found=name))
    if problems:
        raise ConfigError(*problems)
    return tuple(as_tool(tool) for tool, _ in tools.values())


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(Problem(file=str(path), complaint="there is no such file", found="nothing"))
    # The name is the file's own, so that two files called tools.py do not meet, and neither meets an installed package.
    name = f"retinue_tools_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:16]}"
    spec = spec_from_file_location(name, path, loader=_FromSource(name, str(path)) if path.suffix == ".py" else None)
    if spec is None or spec.loader is None:
        raise ConfigError(Problem(file=str(path), complaint="not a Python file (.py)"))
    module = module_from_spec(spec)
    let_be_imported(str(path.resolve().parent))
    sys.modules[name] = module  # dataclasses and annotations look for their module there
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for answers
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_failure(path, error)) from error
    return module


class _FromSource(SourceFileLoader):
    """Loads what stands in the file, and never what was compiled of it before: others may have put that there."""

    def path_stats(self, path: str | bytes | os.PathLike[str]) -> Mapping[str, Any]:
        """Nothing: who cannot tell how old the file is cannot take a compiled one for it, and leaves none behind."""
        raise OSError


def _failure(path: Path, error: BaseException) -> Problem:
    own = os.path.abspath(path)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    if isinstance(error, SyntaxError) and error.filename == own:
        lines.append(error.lineno)
    words = str(error) if isinstance(error, RetinueError) else traceback.format_exception_only(error)[-1]
    last = (words.strip() or type(error).__name__).splitlines()[-1]
    return Problem(
        file=str(path), line=lines[-1] if lines else None, complaint=f"cannot be imported: {last}", found=last
    )


def _tools_in(module: ModuleType) -> Iterator[ToolLike]:
    for thing in {id(thing): thing for thing in vars(module).values()}.values():
        if _is_tool(thing):
            yield thing


def _is_tool(thing: object) -> TypeGuard[ToolLike]:
    try:
        if isinstance(thing, type) or not isinstance(getattr(thing, "spec", None), ToolSpec):
            return False
        return all(hasattr(thing, name) for name in ("kind", "risk", "timeout", "waits", "stoppable", "call"))
    except Exception:  # a stand-in for something that is not there yet: no tool
        return False
