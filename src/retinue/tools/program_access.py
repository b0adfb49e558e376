"""Sandbox mounts and environment of a program that a run starts, derived from the run's policy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct

from retinue.core.errors import ToolError
from retinue.core.policy import WorkspaceRights
from retinue.core.ports import CallContext, Ended, Program
from retinue.local.programs import why_untrusted
from retinue.tools.coding import HOME as CODING_HOME
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files import SETTINGS
from retinue.tools.path_walk import Descriptor, Located, locate, open_roots, spelled, without_roots

MIB = 1024 * 1024
SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/tmp"
GIT_SETTINGS: Mapping[str, str] = {
    "safe.bareRepository": "explicit",
    "core.fsmonitor": "false",
    "diff.autoRefreshIndex": "false",
}
"""Settings that git has in every program, in a script too: a repository in a folder of another name than `.git` is not
used, no program is asked which files have changed, and `git diff` writes no index, which would start a hook."""


class Mounts(Struct, frozen=True):
    """Working folder of a program, and the folders that it can access; `hidden` wins over both others.

    Every path was resolved once. `descriptors` has the open folder or file of each, until `close`.
    """

    folder: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    opened: Mapping[str, Descriptor] = {}

    @property
    def descriptors(self) -> Mapping[str, int]:
        return {path: descriptor.number for path, descriptor in self.opened.items()}

    def close(self) -> None:
        for descriptor in self.opened.values():
            descriptor.close()


def mounts_of(
    context: CallContext | WorkspaceRights, dependencies: ToolDependencies, *, folder: str = "", writes: bool = True
) -> Mounts:
    """The mounts for a program of this run, see `_mounts`; an error of the operating system becomes a `ToolError`."""
    try:
        return _mounts(context, dependencies, folder, writes=writes)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ToolError(f"the folders of the program cannot be opened: {reason}") from error


def _mounts(
    context: CallContext | WorkspaceRights, dependencies: ToolDependencies, folder: str, *, writes: bool
) -> Mounts:
    """The mounts for a program of this run; without `writes`, all of them are read-only. The caller closes them.

    A write-only root is left out: a program that may create files in it also sees what is there. With `workspace_only`
    switched off, the whole system is readable, and no more is writable than before. Settings files in a writable folder
    are read-only.
    """
    policy, workspaces = context.policy, dependencies.opened_workspaces
    workspace = workspaces.open(context.workspace)
    if not workspace.is_folder:
        raise ToolError(f"there is no folder {folder or workspace.path!r}")
    allowed = map(os.path.abspath, policy.allowed_roots)
    full = open_roots([workspace], allowed, closed_to_links=workspaces.writable, keep=True)
    workspaces.add_writable(policy, full)
    allowed = (*map(os.path.abspath, policy.allowed_roots_read_only), *_installations(context, dependencies))
    read_only = open_roots([], allowed, closed_to_links=workspaces.writable | _identities(full), keep=True)
    if not policy.workspace_only:
        read_only = [locate("/", keep=True), *read_only]
    hidden = _hidden(context, dependencies)
    writable = full if writes else []
    granted = [root for root in (*read_only, *([] if writes else full)) if not _is_inside(root, writable)]
    readable = [*granted, *(file for file in _settings(dependencies, writable) if not _is_inside(file, hidden))]
    chosen = locate(os.path.join(workspace.path, folder), keep=True)
    if not _is_inside(chosen, (*writable, *readable)) or _is_inside(chosen, hidden):
        raise ToolError(f"Security policy: {folder!r} is outside the workspace and the allowed roots")
    if not chosen.is_folder:
        raise ToolError(f"there is no folder {folder or workspace.path!r}")
    opened = {found.path: found.descriptor for found in (chosen, *readable, *writable, *hidden) if found.descriptor}
    return Mounts(chosen.path, _paths(readable), _paths(writable), _paths(hidden), opened)


def _installations(context: CallContext | WorkspaceRights, dependencies: ToolDependencies) -> tuple[str, ...]:
    """The installations of interpreters that the programs of a project need."""
    coding = dependencies.coding
    if coding is None or not dependencies.sandboxed:
        return ()
    own = os.path.abspath(context.workspace or os.curdir)
    forbidden = [spelled(path, own) for path in context.policy.forbidden_paths]
    return tuple(
        folder for folder in coding.toolchain(context.workspace).installations if not inside_any(folder, forbidden)
    )


def _hidden(context: CallContext | WorkspaceRights, dependencies: ToolDependencies) -> list[Located]:
    """What a program must not see, of what exists: the forbidden paths and the state folder."""
    own = os.path.abspath(context.workspace or os.curdir)
    forbidden = [spelled(path, own) for path in context.policy.forbidden_paths]
    home = [] if dependencies.home is None else [os.path.abspath(dependencies.home)]
    closed = dependencies.opened_workspaces.closed((*forbidden, *home))
    return [found for path in closed if (found := locate(path, keep=True)).stat is not None]


def _settings(dependencies: ToolDependencies, writable: Sequence[Located]) -> list[Located]:
    """The settings files inside writable folders, and folders with code that this process runs.

    One that is a link grants nothing: the file that it leads to counts if it is inside a writable folder itself.
    """
    protected = (locate(os.path.abspath(path), keep=True) for path in dependencies.settings)
    own = without_roots(protected, writable, keep=True)
    usual = (locate(f"{root.path}/{name}", keep=True) for root in writable for name in sorted(SETTINGS))
    files = (*(each for each in own if each.stat is not None), *(each for each in usual if each.is_regular_file))
    return [file for file in files if _is_inside(file, writable)]


def memory_limits(dependencies: ToolDependencies) -> tuple[int, int | None]:
    """The bytes that one program may use, and all that run at the same time; None where the machine does not tell."""
    total = dependencies.program_memory_total_mb
    return dependencies.program_memory_mb * MIB, _default_total() if total is None else total * MIB


@cache
def _default_total() -> int | None:
    """Three quarters of the memory of the machine, or of the control group of this process if that has less."""
    sizes: list[int] = []
    with suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(file, "rb") as text:  # "max" is no number
            sizes.append(int(text.read()))
    return min(sizes) * 3 // 4 if sizes else None


async def run_in_sandbox(program: Program, dependencies: ToolDependencies) -> Ended:
    """Run a program in the sandbox; an error of the operating system becomes a `ToolError`, it is no bug of a tool."""
    try:
        return await dependencies.sandbox.run(program)
    except OSError as error:
        raise ToolError(f"the program could not be run: {error.strerror or type(error).__name__}") from error


def environment_of(context: CallContext, dependencies: ToolDependencies) -> Mapping[str, str]:
    """The environment variables of a program: a plain set, those that the policy passes through, and those of git.

    With tracing, TRACEPARENT has the trace context of the call. Without a sandbox, PATH and HOME are those of this
    process. With the preset `coding`, the programs of the project come first in PATH, and the home folder is a new one
    with the user's git identity.
    """
    passed = {name: os.environ[name] for name in context.policy.shell_env_passthrough if name in os.environ}
    plain = {"PATH": SAFE_PATH, "HOME": HOME, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}
    if not dependencies.sandboxed:
        plain |= {name: os.environ[name] for name in ("PATH", "HOME") if os.environ.get(name)}
    if (coding := dependencies.coding) is not None:
        plain |= coding.environment(context.workspace, plain["PATH"])
        plain |= {"HOME": CODING_HOME} if dependencies.sandboxed else {}
    traced = {"TRACEPARENT": context.trace} if context.trace else {}
    return plain | traced | passed | _git(passed)


class ProgramPath(Struct, frozen=True):
    """The PATH of a program: all its folders in order, and those in which no agent and no other user can write."""

    folders: tuple[str, ...]
    trusted: tuple[str, ...]
    agents_write: tuple[str, ...] = ()

    def is_trusted(self, name: str) -> bool:
        """Whether no folder offers a program of this name that an agent or another user can have written."""
        found = (path for folder in self.folders if os.path.lexists(path := os.path.join(folder, name)))
        return self.folders == self.trusted or not any(
            why_untrusted(path, agents_write=self.agents_write) for path in found
        )


def program_path(context: CallContext, dependencies: ToolDependencies, folder: str = "") -> ProgramPath:
    """The PATH of a program that is started in this folder of the workspace."""
    path = environment_of(context, dependencies)["PATH"]
    system = tuple(SAFE_PATH.split(os.pathsep))
    if path == SAFE_PATH:
        return ProgramPath(system, system)
    workspace = os.path.abspath(context.workspace or os.curdir)
    started_in = os.path.join(workspace, folder)
    agents_write = (workspace, os.getcwd(), *dependencies.agents_write)
    # An empty entry, like a relative one, is looked up from the folder in which the program is started.
    folders = tuple(os.path.join(started_in, entry) for entry in path.split(os.pathsep))
    trusted = tuple(each for each in folders if not why_untrusted(each, agents_write=agents_write))
    return ProgramPath(folders, trusted or system, agents_write)


def files_of(dependencies: ToolDependencies) -> Mapping[str, bytes]:
    """The files that the sandbox makes for a program."""
    coding = dependencies.coding
    return {} if coding is None or not dependencies.sandboxed else coding.home_files()


def home_of(dependencies: ToolDependencies) -> str:
    """The home folder whose git settings a program obeys; empty if they are the user's own or made by retinue."""
    return HOME if dependencies.sandboxed and dependencies.coding is None else ""


def _git(passed: Mapping[str, str]) -> dict[str, str]:
    """Variables that give git settings of its own, after those that are passed through, and let it write no index.

    A git that git starts in a submodule is given no numbered settings; those of `-c`, in one variable, it keeps.
    """
    count = int(given) if (given := passed.get("GIT_CONFIG_COUNT", "")).isdecimal() else 0
    options = (passed.get("GIT_CONFIG_PARAMETERS", ""), *(f"'{name}={value}'" for name, value in GIT_SETTINGS.items()))
    variables = {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(count + len(GIT_SETTINGS)),
        "GIT_CONFIG_PARAMETERS": " ".join(filter(None, options)),
    }
    for place, (name, value) in enumerate(GIT_SETTINGS.items(), count):
        variables |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    return variables


def inside_any(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _is_inside(found: Located, roots: Iterable[Located]) -> bool:
    return inside_any(found.path, [root.path for root in roots])


def _paths(found: Iterable[Located]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.path for each in found))


def _identities(roots: Iterable[Located]) -> frozenset[tuple[int, int]]:
    return frozenset(root.identity for root in roots if root.identity is not None)
