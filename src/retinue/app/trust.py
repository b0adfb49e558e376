"""Files that a person accepts with `retinue trust`: a settings file, its modules and those beside these, JSON files."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from retinue.app.settings_file import TRANSLATIONS
from retinue.app.settings_sections import SECTIONS
from retinue.app.state_folder import default_home
from retinue.config.agent_files.folders import agent_files_in
from retinue.config.settings import load
from retinue.core.errors import BadInput
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.local.bounded_file import read_bounded
from retinue.tools.settings_trust import MAX_FILE, accept_content, is_accepted, last_accepted, modules_in


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """A file that is refused as it is; `before` is its content that was accepted last, or None."""

    path: Path
    content: bytes
    before: bytes | None

    def changes(self) -> list[str]:
        """The lines of the file, or of its difference to what was accepted before; they are not made printable."""
        lines = self.content.decode("utf-8", "replace").splitlines()
        if self.before is None:
            return lines
        old = self.before.decode("utf-8", "replace").splitlines()
        return list(unified_diff(old, lines, "accepted", "now", lineterm=""))


def unaccepted_files(paths: Sequence[Path], *, cwd: Path, home: Path | None = None) -> list[Unaccepted]:
    """The files among these that are refused as they are; without paths, the settings file of the folder `cwd`.

    A settings file stands for its modules, too, a Python file for those beside it, a folder for its settings file or,
    if it has none, for its agent files.
    Raises `BadInput` for a path that is not there, and `ConfigError` for a settings file that cannot be parsed.
    """
    home = home or default_home()
    found: list[Unaccepted] = []
    for path in dict.fromkeys(_expanded(paths or _settings_in(cwd), cwd)):
        try:
            content = read_bounded(path, MAX_FILE, only_file=True)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
        if not is_accepted(path, content, home):
            _check_encoding(path, content)
            found.append(Unaccepted(path, content, last_accepted(path, home)))
    return found


def _check_encoding(path: Path, content: bytes) -> None:
    """Raise `BadInput` for a module in another encoding than UTF-8: in some, a line break can stand in a comment."""
    if path.suffix != ".py":
        return
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise BadInput(f"{path} cannot be read by Python: {error}") from None
    if not encoding.startswith("utf-8"):
        raise BadInput(
            f"{path} is in {encoding}: what is shown would not be what Python reads; accepted are files in UTF-8"
        )


def accept_files(files: Iterable[Unaccepted], *, home: Path | None = None) -> None:
    """Obey these files from now on, with the content that they had when they were read; raises `OSError`."""
    for file in files:
        accept_content(file.path, file.content, home or default_home())


def accept_written(path: Path, content: bytes, *, home: Path | None = None) -> None:
    """Obey a file that a command of the person has just written; raises `OSError`."""
    home = home or default_home()
    if not is_accepted(path, content, home):
        accept_content(path, content, home)


def _settings_in(folder: Path) -> list[Path]:
    found = [folder / name for name in SETTINGS_FILES if (folder / name).is_file()]
    found = found or [Path(path) for path in agent_files_in(folder)]
    if not found:
        raise BadInput(f"there is no settings file in {folder}: name a file")
    return found


def _expanded(paths: Iterable[Path], cwd: Path) -> Iterable[Path]:
    for path in paths:
        whole = Path(os.path.abspath(cwd / path))
        for file in _settings_in(whole) if whole.is_dir() else [whole]:
            yield file
            if file.suffix == ".py":
                yield from modules_in(file.parent)
            elif file.suffix not in (".md", ".json") and (file.name in SETTINGS_FILES or not whole.is_dir()):
                for module in load(file, cwd=cwd, sections=SECTIONS, translations=TRANSLATIONS).tool_modules:
                    yield module
                    yield from modules_in(module.parent)
