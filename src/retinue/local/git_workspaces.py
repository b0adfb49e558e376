"""Workspaces from git repositories: a commit is checked out, and what a tree changed goes to a branch.

The repository data with which a workspace is handed back lies outside of it, where no agent can write: a `.git` folder
that an agent has changed could name programs, which git would start.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from retinue.core.workspace import GitRef, WorkspaceUnavailable, Worktree, branch_of
from retinue.local.programs import find_program, trusted_path
from retinue.local.workspace_folders import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_LISTING,
    FetchedWorkspace,
    WorkspacePlace,
    folder_entries,
)

SECONDS: Final = 600
"""Deadline of one git command."""

RESULT: Final = "refs/heads/result"
"""The commit with the changes, in the repository of a place."""

_SUBMODULE: Final = "160000"


class GitProgram(Struct, frozen=True):
    """The path of git, and the PATH on which it looks for others, such as ssh and credential helpers."""

    path: str
    others: str


def git_program(agents_write: Sequence[str] = ()) -> GitProgram:
    """git, where no agent can have placed it; raises `WorkspaceUnavailable` where it is not installed."""
    git = find_program("git", agents_write=agents_write).path
    if not git:
        raise WorkspaceUnavailable("a git workspace needs the program git, which is not installed")
    return GitProgram(git, trusted_path(agents_write=(os.getcwd(), *agents_write)))


class Git:
    """git with a repository in the state folder: its settings are ours, and no hook and no filter is started."""

    def __init__(self, program: GitProgram, repository: Path) -> None:
        self._program = program
        self._repository = repository

    def run(
        self,
        *words: str,
        stream: IO[bytes] | None = None,
        bare: bool = True,
        where: Path | None = None,
        longest: int | None = None,
        largest_file: int | None = None,
    ) -> str:
        """What a command prints, at most `longest` bytes of it; raises `WorkspaceUnavailable` if it fails.

        A command that writes a file of more than `largest_file` bytes is killed.
        """
        limit = () if largest_file is None else ("/bin/sh", "-c", _LIMITED, "sh", str(largest_file // 512))
        repository = [f"--git-dir={where or self._repository}"] if bare or where is not None else []
        with tempfile.TemporaryFile() as printed:
            try:
                ended = subprocess.run(
                    [*limit, self._program.path, *repository, *_SAFE, *words],
                    stdin=stream or subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.PIPE,
                    cwd=self._repository.parent,
                    env=_environment(self._program),
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                raise WorkspaceUnavailable(f"git did not end within {SECONDS} s") from error
            if ended.returncode != 0:
                errors = ended.stderr.decode(errors="replace").strip().splitlines()
                raise WorkspaceUnavailable(f"git: {errors[-1] if errors else f'exit status {ended.returncode}'}")
            printed.seek(0)
            return printed.read(-1 if longest is None else longest).decode("utf-8", "surrogateescape")

    def fetch(self, *words: str) -> None:
        """Fetch a pack of at most `MAX_BYTES`; raises `WorkspaceUnavailable`."""
        try:
            # One file for all objects, so that a limit of one file is a limit of all.
            self.run("-c", "fetch.unpackLimit=1", "fetch", *words, largest_file=MAX_BYTES)
        except WorkspaceUnavailable:
            packs = (self._repository / "objects" / "pack").iterdir()
            if any(file.stat().st_size >= MAX_BYTES - 512 for file in packs):
                raise WorkspaceUnavailable(f"the commit has more than {_size(MAX_BYTES)} in the repository") from None
            raise

    def listing(self, *words: str, too_long: str) -> str:
        """What a command prints, which ends with a zero byte; raises `WorkspaceUnavailable` above `MAX_LISTING`."""
        with self._printing(*words) as printed:
            text = printed.read(MAX_LISTING + 1)
            if len(text) > MAX_LISTING:
                raise WorkspaceUnavailable(too_long)
        return text.decode("utf-8", "surrogateescape")

    def check_size(self, commit: str) -> None:
        """Raise `WorkspaceUnavailable` for a commit with too many or too large files.

        A few objects can stand for any number of files, because a folder may be in a commit many times. So the list
        of files is read as it comes, and git is stopped at the limit.
        """
        with self._printing("ls-tree", "-r", "-t", "-l", "-z", commit) as listing:
            _check_listing(listing)

    @contextmanager
    def _printing(self, *words: str) -> Generator[IO[bytes]]:
        """What a command prints, as it comes; leaving the block early stops it."""
        process = subprocess.Popen(
            [self._program.path, f"--git-dir={self._repository}", *_SAFE, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._repository.parent,
            env=_environment(self._program),
        )
        deadline = threading.Timer(SECONDS, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            with process.stdout as printed:
                yield printed
            if process.wait() != 0:
                raise WorkspaceUnavailable("git cannot list the files")
        finally:
            deadline.cancel()
            process.kill()
            process.wait()


_SAFE: Final = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never"),
    *("-c", "submodule.recurse=false", "-c", "gc.auto=0"),
)


_LIMITED: Final = 'ulimit -f "$1" 2>/dev/null; shift; exec "$@"'
"""Starts a program that can write no file of more than so many blocks of 512 bytes."""

_SERVING: Final = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.alternateRefsCommand=true", "protocol.allow=never"),
    *("receive.autogc=false", "receive.denyCurrentBranch=refuse", "gc.auto=0", "maintenance.auto=false"),
)
"""Settings for git in a repository of this machine: it has hooks and settings of its own, which agents may write."""


def _server(program: GitProgram, url: str, name: str) -> tuple[str, ...]:
    """The option that says how git serves a repository of this machine; another machine serves its own.

    git gives its own `-c` and `GIT_CONFIG_COUNT` to no process that works in another repository.
    """
    if not url.startswith("file:"):
        return ()
    settings = [word for setting in _SERVING for word in ("-c", setting)]
    return (f"--{name}={shlex.join([program.path, *settings, name])}",)


def _environment(program: GitProgram) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "PATH": program.others,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_AUTHOR_NAME": "retinue",
        "GIT_AUTHOR_EMAIL": "retinue@localhost",
        "GIT_COMMITTER_NAME": "retinue",
        "GIT_COMMITTER_EMAIL": "retinue@localhost",
    }


def _size(number: int) -> str:
    return f"{number / 1024**3:g} GiB"


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


class GitSource:
    """A commit of a repository; the changes go to a branch of it."""

    def __init__(self, workspace: GitRef | Worktree, place: WorkspacePlace, program: GitProgram) -> None:
        self._workspace = workspace
        self._place = place
        self._program = program
        self._git = Git(program, place.repository)
        self._branch = branch_of(place.name)

    def fetch(self) -> FetchedWorkspace:
        place = self._place
        self._git.run("init", "--quiet", "--bare", str(place.repository), bare=False)
        # Files are what the repository has, byte by byte: no filter, no other ends of lines.
        (place.repository / "info").mkdir(exist_ok=True)
        (place.repository / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        url, ref = self._origin()
        served = _server(self._program, url, "upload-pack")
        self._git.fetch(*served, "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, ref)
        commit = self._git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()
        self._check_out(commit, place.folder)
        return FetchedWorkspace("", commit)

    def check_out_again(self, known: FetchedWorkspace) -> bool:
        return False

    def _origin(self) -> tuple[str, str]:
        """The address of the repository, and what is fetched of it: what was handed back last, if there is any."""
        assert isinstance(self._workspace, GitRef)
        url = self._workspace.url
        served = _server(self._program, url, "upload-pack")
        earlier = self._git.run("ls-remote", *served, "--", url, f"refs/heads/{self._branch}").strip()
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

    def hand_back(self, known: FetchedWorkspace) -> str | None:
        if not self._commit(known):
            return None
        assert isinstance(self._workspace, GitRef)
        url = self._workspace.url
        served = _server(self._program, url, "receive-pack")
        self._git.run("push", *served, "--quiet", "--force", "--", url, f"{RESULT}:refs/heads/{self._branch}")
        return f"git+{url}@{self._branch}"

    def _commit(self, known: FetchedWorkspace) -> int:
        """Make a commit of what differs from the beginning; the number of files."""
        # git lists names and reads no file: a link that an agent puts on a path leads nowhere else.
        listed = self._git.listing(
            *self._at(self._place.folder),
            *("ls-files", "-z", "--cached", "--others", "--exclude-standard"),
            too_long="it has too many files, or too long names of files",
        ).split("\0")
        before = dict(map(_tree_entry, self._git.run("ls-tree", "-r", "-z", known.commit).split("\0")[:-1]))
        allowed = {*before, *listed}
        gone = {path for path, (mode, _) in before.items() if mode != _SUBMODULE}
        changes = size = 0
        with tempfile.TemporaryFile(dir=self._place.repository) as stream:
            message = f"Changes of {self._subject}".encode()
            stream.write(b"commit %s\ncommitter retinue <retinue@localhost> now\n" % RESULT.encode())
            stream.write(b"data %d\n%s\nfrom %s\n" % (len(message), message, known.commit.encode()))
            for entry in folder_entries(self._place.folder):
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

    def _in_folder(self, *words: str, folder: Path) -> None:
        self._git.run(*self._at(folder), *words)

    @staticmethod
    def _at(folder: Path) -> tuple[str, ...]:
        return f"--work-tree={folder}", "-c", "core.bare=false"


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
