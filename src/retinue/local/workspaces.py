"""Workspaces from git repositories and object stores, fetched into folders of this machine and handed back.

The repository data with which a workspace is handed back lies outside of it, where no agent can write: a `.git` folder
that an agent has changed could name programs, which git would start. The changes of a tree go to a branch or a prefix
of its own, `retinue/ROOT`, so that nothing of others is overwritten. A tree that is taken over by another machine
begins with what was handed back last.

A worktree is the last commit of a repository in a folder of this machine, for one run and those below it. Nothing is
started in that repository, and its settings are not read: agents can write them. Its objects and branches are taken
over file by file, through descriptors and never through a link, and the result is put beside them as a pack and a
branch. What a worktree has changed stays in the state folder until it is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.log_context import logger
from retinue.core.workspace import (
    GitRef,
    ObjectPrefix,
    SharedFolder,
    WorkspaceUnavailable,
    Worktree,
    branch_of,
    host_tag,
    is_allowed,
    parse_workspace,
)
from retinue.local.private_folder import create_private
from retinue.local.programs import find_program
from retinue.local.repository_files import is_repository, put_branch, remove_folder, take_over

log = logger("retinue.local")

MAX_FILES: Final = 50_000
MAX_ENTRIES: Final = 200_000
"""Files and folders of a commit that is checked out, and of a folder that is handed back."""
MAX_DEPTH: Final = 100
"""Folders in one another."""
MAX_LISTING: Final = 256 * 1024**2
"""Bytes of their names."""
MAX_BYTES: Final = 4 * 1024**3
MAX_FILE_BYTES: Final = 512 * 1024**2
SECONDS: Final = 600
"""Deadline of one git command."""

RESULT: Final = "refs/heads/result"
"""The commit with the changes, in the repository of a place."""

_SUBMODULE: Final = "160000"
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DELETED: Final = ".retinue-deleted.json"
"""Among handed-back objects: the names of those that the tree has deleted."""


class Fetched(Struct):
    """What is remembered of a fetched workspace: its address, how it looked, and the changes of a worktree."""

    workspace: str
    commit: str = ""
    digests: dict[str, str] = {}
    changed: int = 0
    """Files in the result of a worktree."""
    folder: str = ""
    """The name of the folder, where it is not that of the place."""


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
        self._locks: dict[str, asyncio.Lock] = {}
        self._in_use: set[str] = set()
        self._removals: dict[str, asyncio.Future[None]] = {}
        self._kept: set[str] = set()
        """Places whose changes could not be handed back."""

    def trust(self, workspace: str) -> None:
        """Fetch this address: the caller of this process has named it. Raises `BadInput` if it is none."""
        if isinstance(parse_workspace(workspace), ObjectPrefix):
            _fsspec()
        self._trusted.add(workspace)

    async def fetch(self, place: str, workspace: str) -> str:
        if (removal := self._removals.get(place)) is not None:  # a run goes on that has just ended
            await asyncio.wait((removal,))
        async with self._locks.setdefault(place, asyncio.Lock()):
            folder = await asyncio.to_thread(self._fetch, place, workspace)
        self._in_use.add(place)
        return folder

    async def hand_back(self, place: str) -> str | None:
        async with self._locks.setdefault(place, asyncio.Lock()):
            return await asyncio.to_thread(self._hand_back, place)

    def release(self, place: str) -> None:
        self._in_use.discard(place)
        self._locks.pop(place, None)
        if place not in self._kept:
            removal = asyncio.get_running_loop().run_in_executor(None, self._place(place).release)
            self._removals[place] = removal
            removal.add_done_callback(lambda _: self._removals.pop(place, None))

    async def close(self) -> None:
        """Hand back what unfinished trees have changed, because another process goes on with them."""
        for place in tuple(self._in_use):
            await self.hand_back(place)
        await asyncio.gather(*self._removals.values(), return_exceptions=True)

    @property
    def home(self) -> Path:
        """The state folder, or the temporary one."""
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="retinue-")) / "home"
        return self._home

    def _fetch(self, name: str, workspace: str) -> str:
        parsed = parse_workspace(workspace)
        # The folder of a worktree is one of this machine, like that of a run without a worktree.
        is_known = isinstance(parsed, Worktree) or workspace in self._trusted
        if not is_known and not is_allowed(workspace, self._allow):
            raise WorkspaceUnavailable(
                f"the workspace {workspace} is not fetched by this process: add a pattern for it to [tools] workspaces"
            )
        try:
            if isinstance(parsed, SharedFolder):
                if not Path(parsed.path).is_dir():
                    raise WorkspaceUnavailable(f"the shared folder {parsed.path} does not exist on this machine")
                return parsed.path
            place = self._place(name)
            known = place.known()
            if known is not None and known.workspace == workspace and place.folder.is_dir():
                return str(place.folder)
            source = self._source(parsed, place)
            if known is not None and known.workspace == workspace and isinstance(source, _WorktreeSource):
                source.check_out_again(known)
                return str(place.folder)
            place.clear()
            place.remember(msgspec.structs.replace(source.fetch(), workspace=workspace))
        except (OSError, BadInput) as error:
            raise WorkspaceUnavailable(f"the workspace {workspace} cannot be fetched: {error}") from error
        return str(place.folder)

    def _hand_back(self, name: str) -> str | None:
        place = self._place(name)
        known = place.known()
        if known is None:
            return None
        try:
            result = self._source(parse_workspace(known.workspace), place).hand_back(known)
        except (OSError, WorkspaceUnavailable, BadInput) as error:
            kept = f"{host_tag(platform.node())}:{place.folder}"
            log.warning("the workspace of %s is not handed back and stays at %s: %s", name, kept, error)
            self._kept.add(name)
            return kept
        self._kept.discard(name)
        return result

    def _place(self, name: str) -> Place:
        return Place(self.home, name if _PLAIN_ID.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest())

    def _source(self, workspace: object, place: Place) -> _Source:
        match workspace:
            case GitRef():
                return _GitSource(workspace, place, self.git)
            case Worktree():
                return _WorktreeSource(workspace, place, self.git)
            case ObjectPrefix():
                return _ObjectSource(workspace, place)
            case _:
                raise BadInput("only git repositories and object stores are fetched")

    @property
    def git(self) -> str:
        """The path of git, where no agent can have placed it; raises `WorkspaceUnavailable` if there is none."""
        return git_program(self._agents_write)


def git_program(agents_write: Sequence[str] = ()) -> str:
    """The path of git; raises `WorkspaceUnavailable` where it is not installed."""
    git = find_program("git", agents_write=agents_write).path
    if not git:
        raise WorkspaceUnavailable("a git workspace needs the program git, which is not installed")
    return git


class _Source(Protocol):
    def fetch(self) -> Fetched: ...
    def hand_back(self, known: Fetched) -> str | None: ...


class Place:
    """The folder of a tree's workspace, and beside it what only this process may write."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.repository = home / "workspaces" / f"{name}.git"
        self.record = home / "workspaces" / f"{name}.json"
        known = self.known()
        self.folder = Path(f"{home}-workspaces") / ((known and known.folder) or name)

    def known(self) -> Fetched | None:
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=Fetched)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def remember(self, fetched: Fetched) -> None:
        """Written last: it means that the folder is complete."""
        half = self.record.with_suffix(".new")
        half.write_bytes(msgspec.json.encode(fetched))
        half.replace(self.record)

    def clear(self) -> None:
        self.record.unlink(missing_ok=True)
        shutil.rmtree(self.repository, ignore_errors=True)
        remove_folder(self.folder)
        for folder in (self.folder, self.repository):
            create_private(folder.parent)

    def release(self) -> None:
        """Remove the folder, and all else unless a worktree has changes: these stay until they are removed."""
        known = self.known()
        if known is not None and known.changed:
            remove_folder(self.folder)
        else:
            self.clear()


class Git:
    """git with a repository in the state folder: its settings are ours, and no hook and no filter is started."""

    def __init__(self, program: str, repository: Path) -> None:
        self._program = program
        self._repository = repository

    def run(
        self,
        *words: str,
        stream: IO[bytes] | None = None,
        bare: bool = True,
        where: Path | None = None,
        longest: int | None = None,
    ) -> str:
        """What a command prints, at most `longest` bytes of it; raises `WorkspaceUnavailable` if it fails."""
        repository = [f"--git-dir={where or self._repository}"] if bare or where is not None else []
        with tempfile.TemporaryFile() as printed:
            try:
                ended = subprocess.run(
                    [self._program, *repository, *_SAFE, *words],
                    stdin=stream or subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.PIPE,
                    cwd=self._repository.parent,
                    env=_environment(),
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                raise WorkspaceUnavailable(f"git did not end within {SECONDS} s") from error
            if ended.returncode != 0:
                errors = ended.stderr.decode(errors="replace").strip().splitlines()
                raise WorkspaceUnavailable(f"git: {errors[-1] if errors else f'exit status {ended.returncode}'}")
            printed.seek(0)
            return printed.read(-1 if longest is None else longest).decode("utf-8", "surrogateescape")

    def check_size(self, commit: str) -> None:
        """Raise `WorkspaceUnavailable` for a commit with too many or too large files.

        A few objects can stand for any number of files, because a folder may be in a commit many times. So the list
        of files is read as it comes, and git is stopped at the limit.
        """
        words = ("ls-tree", "-r", "-t", "-l", "-z", commit)
        process = subprocess.Popen(
            [self._program, f"--git-dir={self._repository}", *_SAFE, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._repository.parent,
            env=_environment(),
        )
        deadline = threading.Timer(SECONDS, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            with process.stdout as listing:
                _check_listing(listing)
            if process.wait() != 0:
                raise WorkspaceUnavailable("git cannot list the files of the commit")
        finally:
            deadline.cancel()
            process.kill()
            process.wait()


_SAFE: Final = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never"),
    *("-c", "submodule.recurse=false", "-c", "gc.auto=0"),
)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "retinue",
        "GIT_AUTHOR_EMAIL": "retinue@localhost",
        "GIT_COMMITTER_NAME": "retinue",
        "GIT_COMMITTER_EMAIL": "retinue@localhost",
    }


def _check_listing(listing: IO[bytes]) -> None:
    """Check the output of `git ls-tree -l -z`: entries that end with a zero byte, each with a size before a tab."""
    entries = size = length = 0
    rest = b""
    while piece := listing.read(1024 * 1024):
        length += len(piece)
        *whole, rest = (rest + piece).split(b"\0")
        entries += len(whole)
        size += sum(int(number) for line in whole if (number := line.partition(b"\t")[0].split()[-1]).isdigit())
        if entries > MAX_ENTRIES or length > MAX_LISTING:
            raise WorkspaceUnavailable(f"the commit has more than {MAX_ENTRIES} files and folders")
        if size > MAX_BYTES:
            raise WorkspaceUnavailable(f"the files of the commit have more than {MAX_BYTES // 1024**3} GiB")


class _GitSource:
    """A commit of a repository; the changes go to a branch of it."""

    def __init__(self, workspace: GitRef | Worktree, place: Place, program: str) -> None:
        self._workspace = workspace
        self._place = place
        self._git = Git(program, place.repository)
        self._branch = branch_of(place.name)

    def fetch(self) -> Fetched:
        place = self._place
        self._git.run("init", "--quiet", "--bare", str(place.repository), bare=False)
        # Files are what the repository has, byte by byte: no filter, no other ends of lines.
        (place.repository / "info").mkdir(exist_ok=True)
        (place.repository / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        url, ref = self._origin()
        self._git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, ref)
        commit = self._git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()
        self._check_out(commit, place.folder)
        return Fetched("", commit)

    def _origin(self) -> tuple[str, str]:
        """The address of the repository, and what is fetched of it: what was handed back last, if there is any."""
        assert isinstance(self._workspace, GitRef)
        url = self._workspace.url
        earlier = self._git.run("ls-remote", url, f"refs/heads/{self._branch}").strip()
        return url, f"refs/heads/{self._branch}" if earlier else self._workspace.ref

    def _check_out(self, commit: str, folder: Path) -> None:
        self._git.check_size(commit)
        folder.mkdir(mode=0o700)
        self._in_folder("read-tree", commit, folder=folder)
        self._in_folder("checkout-index", "--all", "--force", folder=folder)
        # A repository of its own for the agent's git commands; it is never read again.
        shutil.copytree(self._place.repository, folder / ".git")
        self._git.run("config", "--file", str(folder / ".git" / "config"), "core.bare", "false", bare=False)
        self._git.run("update-ref", "--no-deref", "HEAD", commit, where=folder / ".git")

    def hand_back(self, known: Fetched) -> str | None:
        if not self._commit(known):
            return None
        assert isinstance(self._workspace, GitRef)
        url = self._workspace.url
        self._git.run("push", "--quiet", "--force", url, f"{RESULT}:refs/heads/{self._branch}")
        return f"git+{url}@{self._branch}"

    def _commit(self, known: Fetched) -> int:
        """Make a commit of what differs from the beginning; the number of files."""
        # git lists names and reads no file: a link that an agent puts on a path leads nowhere else.
        listed = self._in_folder("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        before = dict(map(_tree_entry, self._git.run("ls-tree", "-r", "-z", known.commit).split("\0")[:-1]))
        allowed = {*before, *listed}
        gone = {path for path, (mode, _) in before.items() if mode != _SUBMODULE}
        changes = size = 0
        with tempfile.TemporaryFile(dir=self._place.repository) as stream:
            message = f"Changes of {self._subject}".encode()
            stream.write(b"commit %s\ncommitter retinue <retinue@localhost> now\n" % RESULT.encode())
            stream.write(b"data %d\n%s\nfrom %s\n" % (len(message), message, known.commit.encode()))
            for entry in _entries(self._place.folder):
                if entry.path in allowed:
                    gone.discard(entry.path)
                    content = entry.read()
                    mode = "120000" if entry.is_link else "100755" if entry.is_program else "100644"
                    if before.get(entry.path) != (mode, _blob_name(content)):
                        changes += 1
                        size += len(content)
                        if size > MAX_BYTES:
                            raise WorkspaceUnavailable(f"the changes have more than {MAX_BYTES // 1024**3} GiB")
                        stream.write(b"M %s inline %s\ndata %d\n" % (mode.encode(), _quoted(entry.path), len(content)))
                        stream.write(content + b"\n")
            for path in sorted(gone):
                changes += 1
                stream.write(b"D %s\n" % _quoted(path))
            if changes:
                stream.seek(0)
                self._git.run("fast-import", "--quiet", "--force", "--date-format=now", stream=stream)
        return changes

    @property
    def _subject(self) -> str:
        return f"run {self._place.name}"

    def _in_folder(self, *words: str, folder: Path | None = None) -> str:
        return self._git.run(f"--work-tree={folder or self._place.folder}", "-c", "core.bare=false", *words)


class _WorktreeSource(_GitSource):
    """The last commit of the repository in a folder; the changes become a branch there, and are kept here, too."""

    def fetch(self) -> Fetched:
        try:
            return super().fetch()
        finally:
            shutil.rmtree(self._taken_over, ignore_errors=True)

    def _origin(self) -> tuple[str, str]:
        assert isinstance(self._workspace, Worktree)
        folder = Path(self._workspace.folder)
        if self._place.folder.resolve().is_relative_to(folder.resolve()):
            raise WorkspaceUnavailable(f"the state folder lies in {folder}: keep it elsewhere (RETINUE_HOME)")
        self._git.run("init", "--quiet", "--bare", str(self._taken_over), bare=False)
        take_over(folder, self._taken_over)
        return str(self._taken_over), "HEAD"

    @property
    def _taken_over(self) -> Path:
        return self._place.repository.with_suffix(".source")

    def check_out_again(self, known: Fetched) -> None:
        """Make the folder anew for a run that goes on, with what was handed back."""
        commit = self._git.run("rev-parse", "--verify", RESULT if known.changed else known.commit).strip()
        (self._place.repository / "index").unlink(missing_ok=True)
        # Another folder than before: a path that leads to another folder all at once is not trusted.
        for left in self._place.folder.parent.glob(f"{self._place.name}.*"):
            remove_folder(left)
        name = f"{self._place.name}.{secrets.token_hex(4)}"
        self._place.folder = self._place.folder.with_name(name)
        self._check_out(commit, self._place.folder)
        self._place.remember(msgspec.structs.replace(known, folder=name))

    def hand_back(self, known: Fetched) -> str | None:
        changed = self._commit(known)
        if changed != known.changed:
            self._place.remember(msgspec.structs.replace(known, changed=changed))
        if not changed:
            return None
        assert isinstance(self._workspace, Worktree)
        folder = self._workspace.folder
        with tempfile.TemporaryDirectory(dir=self._place.repository) as scratch:
            with tempfile.TemporaryFile() as wanted:
                wanted.write(f"{RESULT}\n^{known.commit}\n".encode())
                wanted.seek(0)
                digest = self._git.run("pack-objects", "--quiet", "--revs", f"{scratch}/pack", stream=wanted).strip()
            commit = self._git.run("rev-parse", "--verify", RESULT).strip()
            try:
                put_branch(Path(folder), Path(scratch) / f"pack-{digest}", self._branch, commit)
            except OSError as error:
                log.warning("the branch %s cannot be put into %s: %s", self._branch, folder, error)
                return f"git+file://{self._place.repository}@{RESULT.removeprefix('refs/heads/')}"
        return f"git+file://{folder}@{self._branch}"

    @property
    def _subject(self) -> str:
        return f"worktree {self._place.name}"


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

    def __init__(self, workspace: ObjectPrefix, place: Place) -> None:
        self._workspace = workspace
        self._place = place
        self._results = f"{workspace.url}.retinue/{place.name}"
        fsspec = _fsspec()
        try:
            system, self._prefix = fsspec.core.url_to_fs(workspace.url)
            self._system = cast("_FileSystem", system)
            self._results_path = cast("str", fsspec.core.url_to_fs(self._results)[1])
        except (ValueError, ImportError) as error:
            raise BadInput(f"the workspace {workspace.url}: {error}") from error

    def fetch(self) -> Fetched:
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
        return Fetched("", "", digests)

    def hand_back(self, known: Fetched) -> str | None:
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
    count = seen = 0
    for parent, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        above = os.path.relpath(parent, folder)
        seen += len(folders) + len(names)
        if above.count("/") >= MAX_DEPTH or seen > MAX_ENTRIES:
            raise WorkspaceUnavailable(f"it has too deep folders, or more than {MAX_ENTRIES} files and folders")
        if above != "." and any(map(is_repository, (*folders, *names))):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not is_repository(name))
        for name in sorted((*(name for name in names if not is_repository(name)), *folders)):
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
