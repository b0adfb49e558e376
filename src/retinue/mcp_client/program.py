"""What is started for an MCP server outside the sandbox: a program, arguments and a folder that no agent can prepare.

Such a program has all rights of the user. Interpreters and package runners obey what lies in the folder where they
start (`node_modules`, `.npmrc`, `pyproject.toml`, a module that they import), so it counts as the program does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.text import clean_line
from retinue.local.private_folder import create_private
from retinue.local.programs import folder_of_agents, on_path, why_untrusted
from retinue.mcp_client.server_config import McpServer

MISSING = "there is no program of this name on PATH"
WRITTEN = "where agents may write"
ADVICE = "move it to a folder in which no agent may write, or set sandbox = true for the server"

RUNNERS = frozenset(
    {
        *("bun", "bunx", "deno", "java", "node", "npm", "npx", "perl", "php", "pnpm", "python", "python3", "ruby"),
        *("bash", "dash", "pipx", "sh", "tsx", "uv", "uvx", "yarn", "zsh"),
        *("cargo", "dotnet", "env", "go", "hatch", "make", "pdm", "poetry"),
    }
)
"""Programs that run what an argument names, which can be a folder. Of others, a folder is data that they work on."""

SUBCOMMANDS = frozenset({"dlx", "exec", "run", "tool", "x"})
CODE_OPTIONS = frozenset(
    {
        *("--cwd", "--dir", "--directory", "--from", "--import", "--loader", "--package", "--prefix", "--project"),
        *("--require", "--spec", "--with", "--with-editable", "-C", "-I", "-p", "-r"),
    }
)
"""Options of runners whose value can be a folder with code."""

VALUE_OPTIONS = frozenset({"-W", "-X"})
"""Options of Python with a value: what follows that is the first argument."""

CODE_VARIABLES = frozenset(
    {
        *("CLASSPATH", "NODE_PATH", "PERL5LIB", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "RUBYLIB"),
        *("DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    }
)
"""Environment variables with folders or files from which programs take code."""

LANGUAGES = frozenset({"bun", "deno", "java", "node", "perl", "php", "python", "ruby", "tsx"})
"""Runners whose code in an argument is no shell command."""

ENTERS = frozenset({".", "cd", "pushd", "source"})
"""Commands of a shell after which what lies in a folder is run."""

MAX_NESTED = 5
"""Shell commands in words of shell commands that are read."""

_IS_CODE = re.compile(r"[\s;&|()'\"`$<>]")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))")
_FILE_URL = re.compile(r"(?:^|[\s+@])file:(?://(?:localhost)?)?(?P<path>[^?#]+)")
_JOINED = re.compile(r"(?P<option>-[A-Za-z])(?P<path>[./~].*)", re.DOTALL)


class TrustBoundary(Struct, frozen=True):
    """What agents can have prepared: all that lies in the folders where they may write.

    `home` is the state folder, if there is one: private folders are made there.
    """

    agents_write: tuple[str, ...] = ()
    home: Path | None = None

    def reason(self, path: str) -> str:
        """Why what lies at a path must not be run; empty if it may be."""
        return "" if _is_of_own_environment(path) else why_untrusted(path, agents_write=self.agents_write)

    def agents_reach(self, path: str | Path) -> str:
        """The folder of agents in which a path lies; empty if there is none."""
        return folder_of_agents(str(path), agents_write=self.agents_write)


def _is_of_own_environment(path: str) -> bool:
    """Whether a path lies in the virtual environment of this process, which is read-only for agents."""
    return sys.prefix != sys.base_prefix and os.path.abspath(path).startswith(f"{sys.prefix}/")


@contextmanager
def starting_folder(server: McpServer, boundary: TrustBoundary) -> Generator[str]:
    """The folder in which a program starts: `cwd`, the folder of its settings file, or an empty one for this block.

    Raises `BadInput` for a `cwd` in which agents may write.
    """
    if server.cwd:
        chosen = os.path.abspath(os.path.join(server.folder, os.path.expanduser(server.cwd)))
        if root := boundary.agents_reach(chosen):
            raise BadInput(
                f"its cwd {clean_line(chosen)} lies in {clean_line(root)}, {WRITTEN}: name another folder, or set "
                "sandbox = true for the server"
            )
        yield chosen
    elif server.folder and not boundary.agents_reach(server.folder):
        yield server.folder
    else:
        made = _empty_folder(boundary)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _empty_folder(boundary: TrustBoundary) -> str:
    """An empty folder, with none of an agent above it: package managers look for their settings in those above, too.

    Raises `BadInput` if agents may write in all folders where it could be made.
    """
    above: list[Path] = []
    if boundary.home is not None:
        create_private(boundary.home)
        above.append(boundary.home)
    above += [Path(folder) for folder in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if folder]
    usable = [folder for folder in above if folder.is_dir() and not boundary.agents_reach(folder)]
    if not usable:
        raise BadInput("there is no folder to start it in where no agent may write: set its cwd, or sandbox = true")
    return tempfile.mkdtemp(prefix="mcp-", dir=usable[0])


def program_of(server: McpServer, boundary: TrustBoundary) -> str:
    """The path of the program of a server, where neither an agent nor another user can have placed it.

    A relative path with a folder is relative to the folder of the settings file. Raises `BadInput`.
    """
    if not os.path.dirname(server.command):
        found = on_path(server.command, agents_write=boundary.agents_write)
        if not found.path:
            reasons = "; ".join(found.passed_over or (MISSING,))
            raise BadInput(f"{clean_line(server.command)} cannot be started: {reasons}")
        return found.path
    path = os.path.abspath(os.path.join(server.folder, os.path.expanduser(server.command)))
    if os.path.lexists(path) and (reason := boundary.reason(path)):
        raise BadInput(f"{clean_line(path)} is not started: {reason}; {ADVICE}")
    return path


def sandboxed_program_of(server: McpServer, boundary: TrustBoundary) -> str:
    """The path of a program for the sandbox, where one of an agent can do no more than the agent."""
    command = os.path.expanduser(server.command)
    return command if os.path.dirname(command) else program_of(server, boundary)


def check_arguments(server: McpServer, folder: str, boundary: TrustBoundary) -> None:
    """Raise `BadInput` if an argument names a file that agents may write, or a folder of theirs whose code is run.

    A file that is not there yet counts, because an agent could make it.
    """
    is_runner = _name_of(server.command) in RUNNERS
    before, is_first = "", True
    for word in server.args:
        option, value = _option_of(word)
        path = os.path.expanduser(value)
        code = is_runner and (is_first or before in CODE_OPTIONS or option in CODE_OPTIONS)
        for place in _named_places(path, folder, server.folder):
            if os.path.isdir(place) and not code:
                continue
            if root := boundary.agents_reach(place):
                raise BadInput(f"its argument {clean_line(word)[:100]} lies in {clean_line(root)}, {WRITTEN}: {ADVICE}")
            if os.path.isfile(place) and (reason := boundary.reason(place)):
                raise BadInput(f"its argument {clean_line(word)[:100]} is not used: {reason}")
        is_value = before in VALUE_OPTIONS or (before.startswith("-") and os.path.isdir(path))
        is_first = is_first and (is_value or word.startswith("-") or word in SUBCOMMANDS)
        if _name_of(word) in RUNNERS and not os.path.isdir(path):  # as in `timeout 60 python FOLDER`
            is_runner = is_first = True
        before = word


def _option_of(word: str) -> tuple[str, str]:
    """The option of an argument, if any, and what can be a path: its value, or the path of a `file:` address in it.

    >>> _option_of("--from=file:///srv/x"), _option_of("-I/srv/lib"), _option_of("x @ file:///srv/a%20b")
    (('--from', '/srv/x'), ('-I', '/srv/lib'), ('', '/srv/a b'))
    """
    option, value = "", word
    if joined := _JOINED.fullmatch(word):
        option, value = joined["option"], joined["path"]
    elif word.startswith("-") and "=" in word:
        option, _, value = word.partition("=")
    if url := _FILE_URL.search(value):
        value = unquote(url["path"])
    return option, value


def check_code(server: McpServer, boundary: TrustBoundary) -> None:
    """Raise `BadInput` if code, shell commands or variables in an argument name what agents may write.

    Shell commands are read word by word. In code of another language, any name of a folder of agents counts. Names that
    are put together when the code runs are not seen.
    """
    environment = server.environment()
    runner = _name_of(server.command)
    for word in server.args:
        _check_assignment(word, boundary)
        if _name_of(word) in RUNNERS:
            runner = _name_of(word)
        elif runner in LANGUAGES and _IS_CODE.search(word) and not os.path.isabs(word):
            for root in dict.fromkeys((*boundary.agents_write, *map(os.path.realpath, boundary.agents_write))):
                if root != "/" and re.search(rf"{re.escape(root)}(?![\w.-])", _expanded(word, environment)):
                    raise _code_refused(word, root, root)
        elif runner in RUNNERS and _IS_CODE.search(word):
            _check_shell(word, environment, boundary)


def _check_shell(text: str, environment: Mapping[str, str], boundary: TrustBoundary, depth: int = 0) -> None:
    before = ""
    for word in _shell_words(text):
        _check_assignment(word, boundary)
        if set_here := _ASSIGNMENT.fullmatch(word):
            environment = {**environment, set_here["name"]: _expanded(set_here["value"], environment)}
        option, value = _option_of(word)
        place = os.path.expanduser(_expanded(value, environment))
        enters = before in ENTERS or before in CODE_OPTIONS or option in CODE_OPTIONS or _name_of(before) in RUNNERS
        if os.path.isabs(place) and (enters or not os.path.isdir(place)) and (root := boundary.agents_reach(place)):
            raise _code_refused(text, place, root)
        if depth < MAX_NESTED and word != text and _IS_CODE.search(word):
            _check_shell(word, environment, boundary, depth + 1)
        if not (before in ENTERS and word.startswith("-")):  # as in `cd -P FOLDER`
            before = word


def _shell_words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>`\n")
    lexer.commenters = ""
    lexer.whitespace_split = True
    lexer.whitespace = " \t\r"
    try:
        return list(lexer)
    except ValueError:  # a shell would not take it either, or it is no shell command
        return text.split()


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda found: environment.get(found["braced"] or found["plain"], ""), text)


def _check_assignment(word: str, boundary: TrustBoundary) -> None:
    """Raise `BadInput` for `PYTHONPATH=FOLDER`, as `env` and shells read it."""
    if (found := _ASSIGNMENT.fullmatch(word)) and found["name"] in CODE_VARIABLES:
        _check_code_path(found["name"], os.path.expanduser(found["value"]), boundary)


def _code_refused(word: str, place: str, root: str) -> BadInput:
    return BadInput(
        f"its argument {clean_line(word)[:100]} names {clean_line(place)}, which lies in {clean_line(root)}, "
        f"{WRITTEN}: {ADVICE}"
    )


def check_variables(server: McpServer, boundary: TrustBoundary) -> None:
    """Raise `BadInput` if a variable has programs take code from where agents may write."""
    environment = server.environment()
    for name in sorted(CODE_VARIABLES & environment.keys()):
        _check_code_path(name, environment[name], boundary)


def _check_code_path(name: str, value: str, boundary: TrustBoundary) -> None:
    for part in filter(os.path.isabs, value.split(os.pathsep)):
        if root := boundary.agents_reach(part):
            raise BadInput(
                f"its {name} names {clean_line(part)}, which lies in {clean_line(root)}, {WRITTEN}: {ADVICE}"
            )


def _name_of(command: str) -> str:
    name = os.path.basename(command)
    return name.rstrip("0123456789.") or name


def _named_places(path: str, folder: str, configured: str) -> Iterator[str]:
    """What an argument can name: a path, or a file of the folder where it starts or of the settings file.

    A relative path is meant from the folder of the settings file, even if the program starts elsewhere because agents
    write there: then the error says so, where the program would only say that there is no such file.
    """
    if os.path.isabs(path):
        yield path
    elif path:
        for above in dict.fromkeys(filter(None, (folder, configured))):
            if os.path.isfile(place := os.path.normpath(os.path.join(above, path))):
                yield place


def boundary_of(agents_write: Sequence[str], workspace: str, home: Path | None) -> TrustBoundary:
    """The boundary for a run in this workspace: agents may write there, and in the current folder, too."""
    return TrustBoundary((*dict.fromkeys((os.getcwd(), os.path.abspath(workspace), *agents_write)),), home)
