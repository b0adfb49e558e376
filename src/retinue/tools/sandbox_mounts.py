"""What a program started for a run gets to see: the policy's folders, the way a sandbox takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Ended, Program
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files import SETTINGS

SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Mounts(Struct, frozen=True):
    """Where a program starts, and which folders are open to it; `hidden` wins over both others."""

    folder: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    hidden: tuple[str, ...]


def mounts_of(context: CallContext, dependencies: ToolDependencies, *, folder: str = "", writes: bool = True) -> Mounts:
    """The fence around a program of this run; without `writes` all that it may see is read-only.

    A write-only root cannot be given to a program: whoever may create files in it sees what is there. `workspace_only`
    switched off opens the whole system for reading, and no more for writing than before. What says how much agents may
    do can be read in a writable folder, and not written.
    """
    policy = context.policy
    workspace = os.path.realpath(context.workspace or os.curdir)
    full = _roots((workspace, *policy.allowed_roots))
    lesser = _roots(policy.allowed_roots_read_only, beside=full)
    if not policy.workspace_only:
        lesser = ("/", *lesser)
    hidden = tuple(os.path.realpath(path) for path in _forbidden(policy.forbidden_paths, workspace))
    if dependencies.home is not None:
        hidden = (*hidden, os.path.realpath(dependencies.home))
    writable = full if writes else ()
    readable = tuple(root for root in (*lesser, *(() if writes else full)) if not inside_any(root, writable))
    protected = [os.path.realpath(path) for path in (*dependencies.settings, *settings_in(writable))]
    readable = tuple(dict.fromkeys((*readable, *(path for path in protected if inside_any(path, writable)))))
    chosen = os.path.realpath(os.path.join(workspace, folder)) if folder else workspace
    if not inside_any(chosen, (*writable, *readable)) or inside_any(chosen, hidden):
        raise ToolError(f"Security policy: {folder!r} is outside the workspace and the allowed roots")
    if not os.path.isdir(chosen):
        raise ToolError(f"there is no folder {folder or workspace!r}")
    return Mounts(chosen, readable, writable, hidden)


async def run_in_sandbox(program: Program, dependencies: ToolDependencies) -> Ended:
    """Run a program in the kit's sandbox; a machine that can start nothing more is told, and no bug of a tool."""
    try:
        return await dependencies.sandbox.run(program)
    except OSError as error:
        raise ToolError(f"the program could not be run: {error.strerror or type(error).__name__}") from error


def environment_of(context: CallContext) -> Mapping[str, str]:
    """What a program finds in its environment: where programs are, a place for files, and what the policy lets pass."""
    passed = {name: os.environ[name] for name in context.policy.shell_env_passthrough if name in os.environ}
    return {"PATH": SAFE_PATH, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"} | passed


def settings_in(folders: Sequence[str]) -> list[str]:
    """The files in these folders that say how much agents may do."""
    paths = (os.path.join(folder, name) for folder in folders for name in sorted(SETTINGS))
    return [path for path in paths if os.path.lexists(path)]


def inside_any(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots, or below one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _roots(roots: Sequence[str], *, beside: Sequence[str] = ()) -> tuple[str, ...]:
    """The roots that are there, as they really lie.

    One that leads through a link in another root is left out: whoever writes there could point the link elsewhere.
    """
    others = [*beside, *(os.path.realpath(root) for root in roots)]
    real = (os.path.realpath(root) for root in roots if os.path.lexists(root) and not _is_led(root, others))
    return tuple(dict.fromkeys(real))


def _is_led(root: str, others: Sequence[str]) -> bool:
    path = os.path.abspath(root)
    while path != os.path.dirname(path):
        if os.path.islink(path) and inside_any(os.path.realpath(os.path.dirname(path)), others):
            return True
        path = os.path.dirname(path)
    return False


def _forbidden(paths: Sequence[str], workspace: str) -> Iterator[str]:
    for path in paths:
        whole = os.path.join(workspace, os.path.expanduser(path))
        if os.path.lexists(whole):
            yield whole
