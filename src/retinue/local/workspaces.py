"""Workspaces from git repositories and object stores, fetched into folders of this machine and handed back.

The repository data with which a workspace is handed back lies outside of it, where no agent can write: a `.git` folder
that an agent has changed could name programs, which git would start. The changes of a tree go to a branch or a prefix
of its own, `retinue/ROOT`, so that nothing of others is overwritten. A tree that is taken over by another machine
begins with what was handed back last.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.workspace import (
    GitRef,
    ObjectPrefix,
    SharedFolder,
    WorkspaceUnavailable,
    host_tag,
    is_allowed,
    parse_workspace,
)
from retinue.local.private_folder import create_private
from retinue.local.programs import find_program

log = logger("retinue.local")

MAX_FILES: Final = 50_000
MAX_BYTES: Final = 4 * 1024**3
MAX_FILE_BYTES: Final = 512 * 1024**2
SECONDS: Final = 600
"""Deadline of one git command."""

_SUBMODULE: Final = "160000"
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DELETED: Final = ".retinue-deleted.json"
"""Among handed-back objects: the names of those that the tree has deleted."""


class _Fetched(Struct):
    """What is remembered of a fetched workspace: its address, and how it looked."""

    workspace: str
    commit: str = ""
    digests: dict[str, str] = {}


class FetchedWorkspaces:
    """A `core.ports.WorkspaceFolders` of the state folder `home`; without one, in a temporary folder.

    The files are in a folder beside it, because no agent may read the state folder; what belongs to them is in it.
    Addresses that this process was given by its own caller are fetched (`trust`); one that another process has stored
    only if a pattern of `allow` matches.
    """

    def __init__(self, home: Path | None, *, allow: Sequence[str] = (), agents_write: Sequence[str] = ()) -> None:
        self._home = home
        self._allow = tuple(allow)
        self._agents_write = agents_write
        self._trusted: set[str] = set()
        self._locks: dict[RunId, asyncio.Lock] = {}
        self._in_use: set[RunId] = set()
        self._removals: set[asyncio.Future[None]] = set()
        self._kept: set[RunId] = set()
        """Trees whose changes could not be handed back."""

    def trust(self, workspace: str) -> None:
        """Fetch this address: the caller of this process has named it. Raises `BadInput` if it is none."""
        if isinstance(parse_workspace(workspace), ObjectPrefix):
            _fsspec()
        self._trusted.add(workspace)

    async def fetch(self, root_id: RunId, workspace: str) -> str:
        async with self._locks.setdefault(root_id, asyncio.Lock()):
            folder = await asyncio.to_thread(self._fetch, root_id, workspace)
        self._in_use.add(root_id)
        return folder

    async def hand_back(self, root_id: RunId) -> str | None:
        async with self._locks.setdefault(root_id, asyncio.Lock()):
            return await asyncio.to_thread(self._hand_back, root_id)

    def release(self, root_id: RunId) -> None:
        self._in_use.discard(root_id)
        self._locks.pop(root_id, None)
        if root_id not in self._kept:
            removal = asyncio.get_running_loop().run_in_executor(None, self._place(root_id).clear)
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """Hand back what unfinished trees have changed, because another process goes on with them."""
        for root_id in tuple(self._in_use):
            await self.hand_back(root_id)
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _fetch(self, root_id: RunId, workspace: str) -> str:
        if workspace not in self._trusted and not is_allowed(workspace, self._allow):
            raise WorkspaceUnavailable(
                f"the workspace {workspace} is not fetched by this process: add a pattern for it to [tools] workspaces"
            )
        try:
            parsed = parse_workspace(workspace)
            if isinstance(parsed, SharedFolder):
                if not Path(parsed.path).is_dir():
                    raise WorkspaceUnavailable(f"the shared folder {parsed.path} does not exist on this machine")
                return parsed.path
            place = self._place(root_id)
            known = place.known()
            if known is not None and known.workspace == workspace and place.folder.is_dir():
                return str(place.folder)
            place.clear()
            source = self._source(parsed, place, root_id)
            place.remember(msgspec.structs.replace(source.fetch(), workspace=workspace))
        except (OSError, BadInput) as error:
            raise WorkspaceUnavailable(f"the workspace {workspace} cannot be fetched: {error}") from error
        return str(place.folder)

    def _hand_back(self, root_id: RunId) -> str | None:
        place = self._place(root_id)
        known = place.known()
        if known is None:
            return None
        try:
            result = self._source(parse_workspace(known.workspace), place, root_id).hand_back(known)
        except (OSError, WorkspaceUnavailable, BadInput) as error:
            kept = f"{host_tag(platform.node())}:{place.folder}"
            log.warning("the workspace of run %s is not handed back and stays at %s: %s", root_id, kept, error)
            self._kept.add(root_id)
            return kept
        self._kept.discard(root_id)
        return result

    def _place(self, root_id: RunId) -> _Place:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="retinue-")) / "home"
        name = root_id if _PLAIN_ID.fullmatch(root_id) else hashlib.sha256(root_id.encode()).hexdigest()
        return _Place(self._home, name)

    def _source(self, workspace: object, place: _Place, root_id: RunId) -> _Source:
        match workspace:
            case GitRef():
                return _GitSource(workspace, place, root_id, self._git())
            case ObjectPrefix():
                return _ObjectSource(workspace, place, root_id)
            case _:
                raise BadInput("only git repositories and object stores are fetched")

    def _git(self) -> str:
        git = find_program("git", agents_write=self._agents_write).path
        if not git:
            raise WorkspaceUnavailable("a git workspace needs the program git, which is not installed")
        return git


class _Source(Protocol):
    def fetch(self) -> _Fetched: ...
    def hand_back(self, known: _Fetched) -> str | None: ...


class _Place:
    """The folder of a tree's workspace, and beside it what only this process may write."""

    def __init__(self, home: Path, name: str) -> None:
        self.folder = Path(f"{home}-workspaces") / name
        self.repository = home / "workspaces" / f"{name}.git"
        self._record = home / "workspaces" / f"{name}.json"

    def known(self) -> _Fetched | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=_Fetched)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def remember(self, fetched: _Fetched) -> None:
        """Written last: it means that the folder is complete."""
        self._record.write_bytes(msgspec.json.encode(fetched))

    def clear(self) -> None:
        self._record.unlink(missing_ok=True)
        shutil.rmtree(self.repository, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.folder, self.repository):
            create_private(folder.parent)


class _GitSource:
    """A commit of a repository; the changes go to the branch `retinue/ROOT` of it."""

    def __init__(self, workspace: GitRef, place: _Place, root_id: RunId, git: str) -> None:
        self._workspace = workspace
        self._place = place
        self._git = git
        self._branch = f"retinue/{place.folder.name}"
        self._root_id = root_id

    def fetch(self) -> _Fetched:
        place, url = self._place, self._workspace.url
        self._run("init", "--quiet", "--bare", str(place.repository), bare=False)
        # Files are what the repository has, byte by byte: no filter, no other ends of lines.
        (place.repository / "info").mkdir(exist_ok=True)
        (place.repository / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        earlier = self._run("ls-remote", url, f"refs/heads/{self._branch}").strip()
        ref = f"refs/heads/{self._branch}" if earlier else self._workspace.ref
        self._run("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, ref)
        commit = self._run("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()
        place.folder.mkdir(mode=0o700)
        self._in_folder("read-tree", commit)
        self._in_folder("checkout-index", "--all", "--force")
        # A repository of its own for the agent's git commands; it is never read again.
        shutil.copytree(place.repository, place.folder / ".git")
        self._run("config", "--file", str(place.folder / ".git" / "config"), "core.bare", "false", bare=False)
        self._run("update-ref", "--no-deref", "HEAD", commit, where=place.folder / ".git")
        return _Fetched("", commit)

    def hand_back(self, known: _Fetched) -> str | None:
        # git lists names and reads no file: a link that an agent puts on a path leads nowhere else.
        others = self._in_folder("ls-files", "-z", "--others", "--exclude-standard").split("\0")
        before = dict(map(_tree_entry, self._run("ls-tree", "-r", "-z", known.commit).split("\0")[:-1]))
        allowed = {*before, *others}
        gone = {path for path, (mode, _) in before.items() if mode != _SUBMODULE}
        changes = 0
        with tempfile.TemporaryFile(dir=self._place.repository) as stream:
            message = f"Changes of run {self._root_id}".encode()
            stream.write(b"commit refs/heads/result\ncommitter retinue <retinue@localhost> now\n")
            stream.write(b"data %d\n%s\nfrom %s\n" % (len(message), message, known.commit.encode()))
            for entry in _entries(self._place.folder):
                if entry.path in allowed:
                    gone.discard(entry.path)
                    content = entry.read()
                    mode = "120000" if entry.is_link else "100755" if entry.is_program else "100644"
                    if before.get(entry.path) != (mode, _blob_name(content)):
                        changes += 1
                        stream.write(b"M %s inline %s\ndata %d\n" % (mode.encode(), _quoted(entry.path), len(content)))
                        stream.write(content + b"\n")
            for path in sorted(gone):
                changes += 1
                stream.write(b"D %s\n" % _quoted(path))
            if not changes:
                return None
            stream.seek(0)
            self._run("fast-import", "--quiet", "--force", "--date-format=now", stream=stream)
        self._run("push", "--quiet", "--force", self._workspace.url, f"refs/heads/result:refs/heads/{self._branch}")
        return f"git+{self._workspace.url}@{self._branch}"

    def _in_folder(self, *words: str) -> str:
        return self._run(f"--work-tree={self._place.folder}", "-c", "core.bare=false", *words)

    def _run(self, *words: str, stream: IO[bytes] | None = None, bare: bool = True, where: Path | None = None) -> str:
        repository = [f"--git-dir={where or self._place.repository}"] if bare or where is not None else []
        safe = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never"]
        safe += ["-c", "submodule.recurse=false", "-c", "gc.auto=0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_NAME": "retinue",
            "GIT_AUTHOR_EMAIL": "retinue@localhost",
            "GIT_COMMITTER_NAME": "retinue",
            "GIT_COMMITTER_EMAIL": "retinue@localhost",
        }
        try:
            ended = subprocess.run(
                [self._git, *repository, *safe, *words],
                stdin=stream or subprocess.DEVNULL,
                capture_output=True,
                cwd=self._place.repository.parent,
                env=environment,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise WorkspaceUnavailable(f"git did not end within {SECONDS} s") from error
        if ended.returncode != 0:
            errors = ended.stderr.decode(errors="replace").strip().splitlines()
            raise WorkspaceUnavailable(f"git: {errors[-1] if errors else f'exit status {ended.returncode}'}")
        return ended.stdout.decode("utf-8", "surrogateescape")


class _FileSystem(Protocol):
    """The part of `fsspec.AbstractFileSystem` that is used."""

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]: ...
    def get_file(self, rpath: str, lpath: str) -> None: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def cat_file(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...


class _ObjectSource:
    """Objects below a prefix; those that a tree changed go to the prefix with `.retinue/ROOT` behind it."""

    def __init__(self, workspace: ObjectPrefix, place: _Place, root_id: RunId) -> None:
        self._workspace = workspace
        self._place = place
        self._results = f"{workspace.url}.retinue/{place.folder.name}"
        fsspec = _fsspec()
        try:
            system, self._prefix = fsspec.core.url_to_fs(workspace.url)
            self._system = cast("_FileSystem", system)
            self._results_path = cast("str", fsspec.core.url_to_fs(self._results)[1])
        except (ValueError, ImportError) as error:
            raise BadInput(f"the workspace {workspace.url}: {error}") from error

    def fetch(self) -> _Fetched:
        self._place.folder.mkdir(mode=0o700)
        self._download(self._prefix)
        digests = {each.path: _digest(each.read()) for each in _entries(self._place.folder)}
        if not digests and not self._system.exists(self._prefix):
            raise WorkspaceUnavailable(f"there is nothing at {self._workspace.url}")
        self._download(self._results_path, without=_DELETED)
        deleted = f"{self._results_path}/{_DELETED}"
        if self._system.exists(deleted):
            for name in msgspec.json.decode(self._system.cat_file(deleted), type=list[str]):
                (self._place.folder / _checked(name)).unlink(missing_ok=True)
        return _Fetched("", "", digests)

    def hand_back(self, known: _Fetched) -> str | None:
        deleted = set(known.digests)
        changed = 0
        for entry in _entries(self._place.folder):
            if entry.is_link:
                continue
            deleted.discard(entry.path)
            content = entry.read()
            if known.digests.get(entry.path) != _digest(content):
                changed += 1
                target = f"{self._results_path}/{entry.path}"
                self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._system.pipe_file(target, content)
        if not changed and not deleted:
            return None
        self._system.makedirs(self._results_path, exist_ok=True)
        self._system.pipe_file(f"{self._results_path}/{_DELETED}", msgspec.json.encode(sorted(deleted)))
        return self._results

    def _download(self, prefix: str, *, without: str = "") -> None:
        if not self._system.exists(prefix):
            return
        found = self._system.find(prefix, detail=True)
        if len(found) > MAX_FILES or sum(int(each.get("size") or 0) for each in found.values()) > MAX_BYTES:
            raise WorkspaceUnavailable(f"it has more than {MAX_FILES} objects or {MAX_BYTES // 1024**3} GiB")
        for path in found:
            name = path[len(prefix) :].lstrip("/") if path.startswith(prefix) else ""
            if name and name != without:
                target = self._place.folder / _checked(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._system.get_file(path, str(target))


def _checked(name: str) -> str:
    """The name of an object as a relative path; raises `WorkspaceUnavailable` if it would leave the folder."""
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise WorkspaceUnavailable(f"the object {name!r} has a name that is no relative path")
    return name


class _Entry(Struct, frozen=True):
    """A file or link of a workspace, in a folder that is held open: nothing on its path can become a link meanwhile."""

    path: str
    name: str
    folder: int
    is_link: bool
    is_program: bool

    def read(self) -> bytes:
        """The content of a file, or the target of a link."""
        if self.is_link:
            return os.readlink(os.fsencode(self.name), dir_fd=self.folder)
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.folder)
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WorkspaceUnavailable(f"{self.path} is not a file any more")
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise WorkspaceUnavailable(f"the file {self.path} has more than {MAX_FILE_BYTES // 1024**2} MiB")
        return content


def _entries(folder: Path) -> Iterator[_Entry]:
    """Files and links below a folder, without repositories: neither its own `.git` nor nested ones."""
    count = 0
    for parent, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        above = os.path.relpath(parent, folder)
        if ".git" in (*folders, *names) and above != ".":
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted((*names, *folders)):
            kind = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if stat.S_ISREG(kind) or stat.S_ISLNK(kind):
                count += 1
                if count > MAX_FILES:
                    raise WorkspaceUnavailable(f"it has more than {MAX_FILES} files")
                path = name if above == "." else f"{above}/{name}"
                yield _Entry(path, name, descriptor, stat.S_ISLNK(kind), bool(kind & stat.S_IXUSR))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob_name(content: bytes) -> str:
    """The name that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _tree_entry(line: str) -> tuple[str, tuple[str, str]]:
    """The path, mode and name of a line of `git ls-tree`."""
    facts, _, path = line.partition("\t")
    mode, _, name = facts.split(" ")
    return path, (mode, name)


def _quoted(path: str) -> bytes:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'.encode("utf-8", "surrogateescape")


def _fsspec() -> Any:
    try:
        from importlib import import_module

        fsspec = import_module("fsspec")
        import_module("fsspec.core")
    except ImportError as error:
        raise BadInput(f"a workspace in an object store needs fsspec ({error}): install retinue[workspaces]") from error
    return fsspec
