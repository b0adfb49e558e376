"""The workspace of a tree of runs: a folder of one machine, a shared folder, a git ref, or a prefix of an object store.

A run spec stores it as text. A text without `://` is a folder. Others are fetched into a folder of the process that
drives the tree, and what the tree changed is handed back when it has ended.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from msgspec import Struct

from retinue.core.errors import BadInput, RetinueError

_SCHEME: Final = re.compile(r"([a-z][a-z0-9.-]{0,31})(?:\+([a-z]{2,10}))?://(.*)", re.DOTALL)
_GIT_TRANSPORTS: Final = ("https", "ssh", "file")
_REF: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")
_MAX_LENGTH: Final = 2000
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


Workspace: TypeAlias = LocalFolder | SharedFolder | GitRef | ObjectPrefix


def is_address(text: str) -> bool:
    """Whether a workspace is more than a folder of one machine."""
    return "://" in text


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
    path, _, ref = path.rpartition("@") if "@" in path else (path, "", "HEAD")
    if not slash or not path or not _REF.fullmatch(ref) or place.startswith("-"):
        raise BadInput(f"the workspace {text!r}: expected git+https://HOST/REPOSITORY@REF")
    return GitRef(f"{transport}://{place}/{path}", ref)


def host_tag(host: str) -> str:
    """The tag of the processes of a machine."""
    return f"host:{host}"


def needed_tags(workspace: Workspace, host: str) -> tuple[str, ...]:
    """The tags that a driver needs for this workspace, which was named on `host`.

    >>> needed_tags(LocalFolder("/srv/site"), "db1"), needed_tags(SharedFolder("/mnt/team"), "db1")
    (('host:db1',), ())
    """
    return (host_tag(host),) if isinstance(workspace, LocalFolder) else ()


def is_allowed(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether an address that another process stored may be fetched: one of the patterns of this process matches.

    >>> [is_allowed(f"s3://team/{name}", ("s3://team/*",)) for name in ("a", "../b", "%2e%2e/b", "..\\\\b")]
    [True, False, False, False]

    An address that can be written in several ways is not allowed: a server may read another path in it.
    """
    return _ESCAPED.search(f"{text}/") is None and any(fnmatchcase(text, pattern) for pattern in patterns)
