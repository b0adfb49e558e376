"""The preset `coding`: what programs of an agent find in a Python or Node project, besides the system.

That is the project's virtual environment and `node_modules/.bin`, before the folders of the system; the interpreter
that the environment was made with, and the node of the user, read-only; and a home folder with the user's git identity.

Agents may write in the project, also in its virtual environment. So no link or file there decides what else is open:
only a folder that is an installation of Python or Node is, and an agent cannot make one outside its folders. Nothing of
the project is started outside the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.core.policy import DEFAULT_COMMANDS, Policy
from retinue.local.programs import find_program, why_untrusted

HOME = "/tmp/home"
"""The home folder of programs in the sandbox; as all of /tmp it is new for each command."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/nix/store", "/gnu/store")
"""Folders that every program sees."""
ENVIRONMENTS = (".venv", "venv")
MAX_LINKS = 40
GIT_SECONDS = 5.0
MAX_NAME = 200

COMMANDS = (
    *DEFAULT_COMMANDS,
    *("pytest", "tox", "nox", "coverage", "ruff", "black", "isort", "mypy", "pyright", "basedpyright", "pre-commit"),
    *("uv", "poetry", "pdm", "hatch", "make", "npx", "yarn", "pnpm", "tsc", "eslint", "prettier", "jest", "vitest"),
    *("mkdir", "cp", "mv", "touch", "diff", "sort", "uniq", "cut", "tr", "tree", "which", "basename", "dirname", "rg"),
    *("file", "stat", "sed", "true", "false", "test", "printf"),
    *(f"{folder}/bin/{program}" for folder in ENVIRONMENTS for program in ("python", "python3", "pytest", "pip")),
)

POLICY = Policy(allowed_commands=COMMANDS, shell_timeout_secs=600, max_actions_per_hour=500)
"""What a run may do; approvals are needed as without the preset."""

TOOLS = ("shell", "file_read", "file_write", "file_edit", "bash_find", "grep")
"""The tools of a run for which none are named."""


class Toolchain(Struct, frozen=True):
    """Folders of programs for one project, first ones first, and installations that they need, which are read-only."""

    environment: str = ""
    """The virtual environment; empty if the project has none."""
    programs: tuple[str, ...] = ()
    installations: tuple[str, ...] = ()


class CodingPreset:
    """Toolchains of the projects of this process, each found once, and the git identity of the user."""

    def __init__(self, agents_write: Sequence[str] = ()) -> None:
        self._agents_write = tuple(agents_write)
        self._toolchains: dict[str, Toolchain] = {}
        self._git: bytes | None = None

    def toolchain(self, workspace: str) -> Toolchain:
        """The toolchain of a project folder; an environment that is made later is found, too."""
        folder = os.path.realpath(workspace or os.curdir)
        known = self._toolchains.get(folder)
        if known is None or (not known.environment and _environment_in(folder)):
            known = self._toolchains[folder] = find_toolchain(folder, os.environ, (folder, *self._agents_write))
        return known

    def environment(self, workspace: str, system_path: str) -> dict[str, str]:
        """The variables of a program in a project, but for its home."""
        found = self.toolchain(workspace)
        variables = {"PATH": os.pathsep.join((*found.programs, system_path))}
        return variables | ({"VIRTUAL_ENV": found.environment} if found.environment else {})

    def home_files(self) -> Mapping[str, bytes]:
        """The files of the home folder: git settings with the user's name and address, where git knows them."""
        if self._git is None:
            git = find_program("git", agents_write=(os.getcwd(), *self._agents_write)).path
            self._git = git_settings(git_identity(git, os.environ))
        return {f"{HOME}/.gitconfig": self._git}


def find_toolchain(folder: str, environ: Mapping[str, str], agents_write: Sequence[str]) -> Toolchain:
    """The toolchain of a project folder, with the interpreters of the user where the project has none."""
    environment = _environment_in(folder)
    active = environ.get("VIRTUAL_ENV", "")
    programs: list[str] = []
    installations: list[str] = []
    if (
        not environment
        and _is_environment(active)
        and not why_untrusted(f"{active}/pyvenv.cfg", agents_write=agents_write)
    ):
        environment = os.path.realpath(active)
        installations.append(environment)
    if environment:
        programs.append(f"{environment}/bin")
        installations += _installations(f"{environment}/bin/python", _is_python, agents_write)
    programs.append(f"{folder}/node_modules/.bin")
    for name, is_installation in (("python3", _is_python), ("node", _is_node)):
        found = find_program(name, agents_write=agents_write).path
        for installation in _installations(found, is_installation, agents_write) if found else ():
            installations.append(installation)
            programs.append(f"{installation}/bin")
    return Toolchain(environment, tuple(dict.fromkeys(programs)), tuple(dict.fromkeys(installations)))


def _environment_in(folder: str) -> str:
    return next((path for name in ENVIRONMENTS if _is_environment(path := f"{folder}/{name}")), "")


def _is_environment(folder: str) -> bool:
    return (
        os.path.isabs(folder)
        and not os.path.islink(folder)
        and os.path.isfile(f"{folder}/pyvenv.cfg")
        and os.path.lexists(f"{folder}/bin/python")
    )


def _installations(program: str, is_installation: Callable[[str], bool], agents_write: Sequence[str]) -> list[str]:
    """The installations on the way from a program to the file that it is a link to.

    Each is a folder with `bin` in which a program of that kind is, that no agent and no other user can have made, and
    that is not one of the system, which is open anyway.
    """
    found: list[str] = []
    for step in _links(program):
        folder = os.path.dirname(os.path.dirname(step))
        if (
            folder not in found
            and not any(folder == place or folder.startswith(f"{place}/") for place in SYSTEM)
            and is_installation(folder)
            and not why_untrusted(f"{os.path.realpath(folder)}/bin", agents_write=agents_write)
        ):
            found.append(folder)
    return found


def _links(path: str) -> Iterator[str]:
    """A path and what it links to, one link after the other."""
    for _ in range(MAX_LINKS):
        yield path
        if not os.path.islink(path):
            real = os.path.realpath(path)
            if real != path:
                yield real
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _is_python(folder: str) -> bool:
    """Whether a folder is the prefix of a Python: `bin/python3`, and the standard library with `os.py`."""
    if folder.count("/") < 2 or not os.path.isfile(f"{folder}/bin/python3"):
        return False
    return any(path.is_file() for path in Path(folder).glob("lib/python3*/os.py"))


def _is_node(folder: str) -> bool:
    """Whether a folder is the prefix of a Node: `bin/node`, and npm or the header files."""
    return (
        folder.count("/") >= 2
        and os.path.isfile(f"{folder}/bin/node")
        and (os.path.isdir(f"{folder}/lib/node_modules/npm") or os.path.isdir(f"{folder}/include/node"))
    )


def git_identity(git: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Name and address of the user for commits, by variables or the user's git settings; empty where unknown."""
    name, email = (
        environ.get(f"GIT_AUTHOR_{what.upper()}", "") or (_git_setting(git, f"user.{what}") if git else "")
        for what in ("name", "email")
    )
    return name, email


def _git_setting(git: str, name: str) -> str:
    """One setting of the user; read outside of every repository, so that none decides it."""
    import subprocess  # here: a run without programs does not need it

    try:
        asked = subprocess.run(
            [git, "config", "--global", "--includes", "--get", name],
            cwd="/",
            env={key: os.environ[key] for key in ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL") if key in os.environ},
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode("utf-8", "replace").rstrip("\n") if asked.returncode == 0 else ""


def git_settings(identity: tuple[str, str]) -> bytes:
    r"""A git settings file with name and address, each on one line.

    >>> git_settings(('Ada "A" L', "ada@example.org")).decode()
    '[user]\n\tname = "Ada \\"A\\" L"\n\temail = "ada@example.org"\n'
    """
    lines = [f'\t{key} = "{_quoted(value)}"\n' for key, value in zip(("name", "email"), identity, strict=True) if value]
    return "".join(("[user]\n", *lines)).encode()


def _quoted(value: str) -> str:
    plain = re.sub(r"[\x00-\x1f\x7f]", " ", value)[:MAX_NAME]
    return plain.replace("\\", "\\\\").replace('"', '\\"')
