"""The workspace of a tree of runs: a folder of one machine, a shared folder, a git ref, or a prefix of an object store.

A run spec stores it as text. A text without `://` is a folder. Others are fetched into a folder of the process that
drives the tree, and what the tree changed is handed back when it has ended. A worktree belongs to one run and those
below it, and is handed back when that run has ended.
"""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from msgspec import Struct

from retinue.core.errors import BadInput, RetinueError
from retinue.core.ids import Key, RunId

_SCHEME: Final = re.compile(r"([a-z][a-z0-9.-]{0,31})(?:\+([a-z]{2,10}))?://(.*)", re.DOTALL)
_GIT_TRANSPORTS: Final = ("https", "ssh", "file")
_REF: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")
_WORKTREE: Final = re.compile(r"wt-[0-9a-f]{16}")
_MAX_LENGTH: Final = 2000

BRANCHES: Final = "retinue"
"""The folder of branches with changes."""
_ESCAPED: Final = re.compile(r"/\.\.?/|%2[ef]|%5c|\\", re.IGNORECASE)
"""Steps out of a folder, and characters with which servers read one."""


class WorkspaceUnavailable(RetinueError):
    """A workspace could not be fetched, or may not be fetched by this process."""


class LocalFolder(Struct, frozen=True):
    """A folder of one machine: only processes of that machine can drive the tree."""

    path: str


class SharedFolder(Struct, frozen=True):
    """A folder that has the same path on all machines."""

    path: str


class GitRef(Struct, frozen=True):
    """A branch, tag or commit of a git repository."""

    url: str
    ref: str


class ObjectPrefix(Struct, frozen=True):
    """All objects below an address that `fsspec` knows."""

    url: str


class Worktree(Struct, frozen=True):
    """The last commit of the repository in a folder of one machine, in a folder of its own with this name."""

    name: str
    folder: str


Workspace: TypeAlias = LocalFolder | SharedFolder | GitRef | ObjectPrefix | Worktree


def is_address(text: str) -> bool:
    """Whether a workspace is more than a folder of one machine."""
    return "://" in text


def is_worktree(text: str) -> bool:
    """Whether a workspace is a worktree of a repository on one machine."""
    return text.startswith("worktree://")


def parse_workspace(text: str) -> Workspace:
    """The workspace that a text names; raises `BadInput`.

    >>> parse_workspace("git+https://git.example/team/site.git@main")
    GitRef(url='https://git.example/team/site.git', ref='main')
    >>> parse_workspace("shared:///mnt/team"), parse_workspace("s3://bucket/project"), parse_workspace("/srv/site")
    (SharedFolder(path='/mnt/team'), ObjectPrefix(url='s3://bucket/project'), LocalFolder(path='/srv/site'))
    """
    if len(text) > _MAX_LENGTH or any(character < " " for character in text):
        raise BadInput(f"a workspace is a line of at most {_MAX_LENGTH} characters")
    if not is_address(text):
        return LocalFolder(text)
    found = _SCHEME.fullmatch(text)
    if found is None:
        raise BadInput(f"the workspace {text!r}: expected a folder, git+https://..., shared:///... or PROTOCOL://...")
    scheme, transport, rest = found.groups()
    if scheme == "worktree":
        return _worktree(text, transport, rest)
    if scheme == "git":
        return _git_ref(text, transport, rest)
    if transport is not None or "::" in text or not rest.strip("/"):
        raise BadInput(f"the workspace {text!r}: expected an address such as s3://bucket/folder")
    if scheme == "shared":
        if not rest.startswith("/") or "/../" in f"{rest}/":
            raise BadInput(f"the workspace {text!r}: expected shared:// and an absolute path, as in shared:///mnt/team")
        return SharedFolder(rest)
    return ObjectPrefix(text.rstrip("/"))


def _git_ref(text: str, transport: str | None, rest: str) -> GitRef:
    if transport not in _GIT_TRANSPORTS:
        expected = ", ".join(f"git+{each}://" for each in _GIT_TRANSPORTS)
        raise BadInput(f"the workspace {text!r}: a git repository begins with one of {expected}")
    place, slash, path = rest.partition("/")
    if ":" in place.rpartition("@")[0]:
        # Addresses are stored with runs and shown; so the text is in no message either.
        raise BadInput("a workspace has no password in its address: git asks its credential helpers")
    path, _, ref = path.rpartition("@") if "@" in path else (path, "", "HEAD")
    if not slash or not path or not _REF.fullmatch(ref) or place.startswith("-"):
        raise BadInput(f"the workspace {text!r}: expected git+https://HOST/REPOSITORY@REF")
    return GitRef(f"{transport}://{place}/{path}", ref)


def _worktree(text: str, transport: str | None, rest: str) -> Worktree:
    name, slash, path = rest.partition("/")
    if transport is not None or not _WORKTREE.fullmatch(name) or not slash or "/../" in f"/{path}/":
        raise BadInput(f"the workspace {text!r}: expected worktree://NAME and an absolute path")
    return Worktree(name, f"/{path}")


def worktree_of(key: Key, folder: str) -> str:
    """The workspace of a run that is started with this key, and works apart from the runs in `folder`.

    >>> worktree_of("r1/1/0", "/srv/site")
    'worktree://wt-89057674749bf9f1/srv/site'
    """
    return f"worktree://wt-{hashlib.sha256(key.encode()).hexdigest()[:16]}{folder}"


def branch_of(name: str) -> str:
    """The branch with the changes of a worktree or of a tree."""
    return f"{BRANCHES}/{name}"


def place_of(workspace: str, root_id: RunId) -> str:
    """The name of the folder into which a workspace is fetched: that of the worktree, or the root of the tree.

    >>> place_of("worktree://wt-89057674749bf9f1/srv/site", "r1"), place_of("s3://team/project", "r1")
    ('wt-89057674749bf9f1', 'r1')
    """
    parsed = parse_workspace(workspace)
    return parsed.name if isinstance(parsed, Worktree) else root_id


def host_tag(host: str) -> str:
    """The tag of the processes of a machine."""
    return f"host:{host}"


def is_allowed(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether an address that another process stored may be fetched: one of the patterns of this process matches.

    >>> [is_allowed(f"s3://team/{name}", ("s3://team/*",)) for name in ("a", "../b", "%2e%2e/b", "..\\\\b")]
    [True, False, False, False]

    An address that can be written in several ways is not allowed: a server may read another path in it.
    """
    return _ESCAPED.search(f"{text}/") is None and any(fnmatchcase(text, pattern) for pattern in patterns)
