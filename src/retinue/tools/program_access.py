"""Sandbox mounts and environment of a program that a run starts, derived from the run's policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Ended, Program
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files import SETTINGS

SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Mounts(Struct, frozen=True):
    """Working folder of a program, and the folders that it can access; `hidden` wins over both others."""

    folder: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    hidden: tuple[str, ...]


def mounts_of(context: CallContext, dependencies: ToolDependencies, *, folder: str = "", writes: bool = True) -> Mounts:
    """The mounts for a program of this run; without `writes`, all of them are read-only.

    A write-only root is left out: a program that may create files in it also sees what is there. With `workspace_only`
    switched off, the whole system is readable, and no more is writable than before. Settings files in a writable folder
    are read-only.
    """
    policy = context.policy
    workspace = os.path.realpath(context.workspace or os.curdir)
    full = _roots((workspace, *policy.allowed_roots))
    read_only = _roots(policy.allowed_roots_read_only, beside=full)
    if not policy.workspace_only:
        read_only = ("/", *read_only)
    forbidden = (os.path.join(workspace, os.path.expanduser(path)) for path in policy.forbidden_paths)
    hidden = tuple(os.path.realpath(path) for path in forbidden if os.path.lexists(path))
    if dependencies.home is not None:
        hidden = (*hidden, os.path.realpath(dependencies.home))
    writable = full if writes else ()
    readable = tuple(root for root in (*read_only, *(() if writes else full)) if not inside_any(root, writable))
    protected = [os.path.realpath(path) for path in (*dependencies.settings, *settings_in(writable))]
    readable = tuple(dict.fromkeys((*readable, *(path for path in protected if inside_any(path, writable)))))
    chosen = os.path.realpath(os.path.join(workspace, folder)) if folder else workspace
    if not inside_any(chosen, (*writable, *readable)) or inside_any(chosen, hidden):
        raise ToolError(f"Security policy: {folder!r} is outside the workspace and the allowed roots")
    if not os.path.isdir(chosen):
        raise ToolError(f"there is no folder {folder or workspace!r}")
    return Mounts(chosen, readable, writable, hidden)


async def run_in_sandbox(program: Program, dependencies: ToolDependencies) -> Ended:
    """Run a program in the sandbox; an error of the operating system becomes a `ToolError`, it is no bug of a tool."""
    try:
        return await dependencies.sandbox.run(program)
    except OSError as error:
        raise ToolError(f"the program could not be run: {error.strerror or type(error).__name__}") from error


def environment_of(context: CallContext) -> Mapping[str, str]:
    """The environment variables of a program: a plain set, and those that the policy passes through."""
    passed = {name: os.environ[name] for name in context.policy.shell_env_passthrough if name in os.environ}
    return {"PATH": SAFE_PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"} | passed


def settings_in(folders: Sequence[str]) -> list[str]:
    paths = (os.path.join(folder, name) for folder in folders for name in sorted(SETTINGS))
    return [path for path in paths if os.path.lexists(path)]


def inside_any(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _roots(roots: Sequence[str], *, beside: Sequence[str] = ()) -> tuple[str, ...]:
    """The real paths of existing roots, except through a link in another root: an agent could point it elsewhere."""
    others = [*beside, *(os.path.realpath(root) for root in roots)]
    real = (os.path.realpath(root) for root in roots if os.path.lexists(root) and not _leads_through(root, others))
    return tuple(dict.fromkeys(real))


def _leads_through(root: str, others: Sequence[str]) -> bool:
    """Whether the path of a root has a symbolic link inside one of the others."""
    path = os.path.abspath(root)
    while path != os.path.dirname(path):
        if os.path.islink(path) and inside_any(os.path.realpath(os.path.dirname(path)), others):
            return True
        path = os.path.dirname(path)
    return False
