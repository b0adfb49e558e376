"""Load tools from the user's Python files. This runs their code; failures are reported without a traceback."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeGuard

from retinue.app.state_folder import default_home
from retinue.core.agent import ToolSpec
from retinue.core.errors import ConfigError, Problem, RetinueError
from retinue.core.ports import Tool, ToolLike, as_tool


class _SiblingFinder(MetaPathFinder):
    """Finds modules next to a tool module; the last finder, so that such a file never hides an installed package."""

    def __init__(self) -> None:
        self.folders: dict[str, Path | None] = {}
        """The folders of tool modules, each with the state folder by whose records files in it are accepted."""
        self.found: dict[str, str] = {}
        """The modules and packages that were found there, each with that folder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module with this name in the folder of the importing file; submodules are found without this."""
        if path is not None:
            return None
        here = inspect.currentframe()
        importer = os.path.realpath(_importing_file(here.f_back if here is not None else None))
        folders = [folder for folder in self.folders if importer.startswith(folder + os.sep)]
        return next((spec for folder in folders if (spec := self.find_in(fullname, [folder], folder))), None)

    def find_in(self, fullname: str, path: Sequence[str], folder: str) -> ModuleSpec | None:
        """The module on this path, which is in a folder of tool modules, with a loader that checks its source."""
        spec = PathFinder.find_spec(fullname, path)
        if spec is None:
            return None
        self.found[fullname] = folder
        if spec.origin is None:  # a folder without a file of its own
            return spec
        if not isinstance(spec.loader, SourceFileLoader):
            complaint = "a compiled module next to a tool module is not imported; expected a Python file (.py)"
            raise ConfigError(Problem(file=spec.origin, complaint=complaint))
        spec.loader = _SourceLoader(fullname, spec.origin, self.folders[folder])
        spec.cached = None
        return spec


class _SubmoduleFinder(MetaPathFinder):
    """Finds the parts of packages next to a tool module; the first finder, because others would not check them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The part of a package that was found next to a tool module.

        The path says nothing about that: the folder of a package may be a link that an agent made.
        """
        folder = _SIBLINGS.found.get(fullname.rpartition(".")[0])
        return None if path is None or folder is None else _SIBLINGS.find_in(fullname, path, folder)


def _importing_file(frame: FrameType | None) -> str:
    """The file whose code runs the import; frames of the import system itself are skipped."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


_SIBLINGS = _SiblingFinder()


def allow_sibling_imports(folder: str, home: Path | None = None) -> None:
    """Let files in this folder import each other from now on."""
    if _SIBLINGS not in sys.meta_path:
        sys.meta_path.append(_SIBLINGS)
        sys.meta_path.insert(0, _SubmoduleFinder())
    _SIBLINGS.folders[folder] = home


def load_tools(paths: Iterable[Path], *, home: Path | None = None) -> tuple[Tool, ...]:
    """The tools in these files, in the order of their definition; a file may re-export imported tools of another.

    Raises `ConfigError` with all problems: a file that is missing, cannot be imported or has no tools, and two tools of
    one name, or a file where agents may write that is not accepted according to the state folder `home`. A module can
    import the files next to it, which are held to the same rule. What it prints goes to stderr.
    """
    tools: dict[str, tuple[ToolLike, Path]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            things = {id(thing): thing for thing in vars(_import_file(path, home)).values()}
        except ConfigError as error:
            problems += error.problems
            continue
        found = [thing for thing in things.values() if _is_tool(thing)]
        if not found:
            complaint = "it defines no tools; decorate a function with @retinue.tool"
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


def _import_file(path: Path, home: Path | None) -> ModuleType:
    if not path.is_file():
        raise ConfigError(Problem(file=str(path), complaint="there is no such file", found="nothing"))
    # The name is derived from the path, so that two files tools.py do not collide, nor one with an installed package.
    name = f"retinue_tools_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:16]}"
    loader = _SourceLoader(name, str(path), home) if path.suffix == ".py" else None
    spec = spec_from_file_location(name, path, loader=loader)
    if loader is None or spec is None:
        raise ConfigError(Problem(file=str(path), complaint="not a Python file (.py)"))
    module = module_from_spec(spec)
    allow_sibling_imports(str(path.resolve().parent), home)
    sys.modules[name] = module  # dataclasses and annotations look up their module there
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for answers
            loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_failure(path, error)) from error
    return module


class _SourceLoader(SourceFileLoader):
    """Loads the source file, never a compiled one: another user may have written that."""

    def __init__(self, fullname: str, path: str, home: Path | None) -> None:
        super().__init__(fullname, path)
        self._home = home

    def get_data(self, path: str | bytes | os.PathLike[str]) -> bytes:
        """The source, if it lies where no agent may write or is accepted; raises `ConfigError` otherwise."""
        from retinue.tools.settings_trust import check_trusted

        with open(path, "rb") as file:
            source = file.read()
            check_trusted(Path(os.fsdecode(path)), file.fileno(), source, self._home or default_home())
        return source

    def path_stats(self, path: str | bytes | os.PathLike[str]) -> Mapping[str, Any]:
        """Raise, so that no compiled file is read or written: without the age of the source, it cannot be matched."""
        raise OSError


def tool_names_in(source: bytes) -> list[str]:
    """The names of the tools that a module defines with a decorator, read from its source: none of it runs.

    >>> tool_names_in(b"@retinue.tool\\ndef look(): ...\\n@tool(name='pick')\\nasync def choose(): ...\\ndef no(): ...")
    ['look', 'pick']
    """
    names: list[str] = []
    parsed = ast.parse(source).body
    for defined in (each for each in parsed if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)):
        for decorator in defined.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
            if ast.unparse(call.func).rpartition(".")[2] == "tool":
                named = [each.value for each in call.keywords if each.arg == "name"]
                names += [str(each.value) for each in named if isinstance(each, ast.Constant)] or [defined.name]
    return names


def _failure(path: Path, error: BaseException) -> Problem:
    own = os.path.abspath(path)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    if isinstance(error, SyntaxError) and error.filename == own:
        lines.append(error.lineno)
    text = str(error) if isinstance(error, RetinueError) else traceback.format_exception_only(error)[-1]
    last = (text.strip() or type(error).__name__).splitlines()[-1]
    return Problem(
        file=str(path), line=lines[-1] if lines else None, complaint=f"cannot be imported: {last}", found=last
    )


def _is_tool(thing: object) -> TypeGuard[ToolLike]:
    try:
        if isinstance(thing, type) or not isinstance(getattr(thing, "spec", None), ToolSpec):
            return False
        return all(hasattr(thing, name) for name in ("kind", "risk", "timeout", "waits", "stoppable", "call"))
    except Exception:  # a lazy proxy whose target cannot be loaded is not a tool
        return False
