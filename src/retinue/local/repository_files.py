"""Files of a git repository that agents can write: taken over, and added to, without starting git in it.

git obeys the settings of a repository: hooks, programs that they name, other places for objects. So what is needed is
reached as files, from a folder that is held open and never through a link. A repository whose objects are partly
elsewhere (alternates, a linked worktree, a submodule) is refused: a link or a setting could lead to one that the agent
must not read.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from retinue.core.workspace import WorkspaceUnavailable

MAX_FILES: Final = 1_000_000
MAX_BYTES: Final = 8 * 1024**3
MAX_TEXT: Final = 16 * 1024**2
"""Bytes of a list of branches."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOSE: Final = re.compile(r"[0-9a-f]{38}")
_PACK: Final = re.compile(r"pack-[0-9a-f]{40}\.(?:pack|idx|rev)")
_BRANCH: Final = re.compile(r"[0-9a-f]{40}\n?|ref: refs/[A-Za-z0-9_./+@=~#%,-]{1,500}\n?")


@contextmanager
def opened(name: str, *, at: int) -> Generator[int]:
    """The descriptor of a folder below another one; a link raises `OSError`."""
    descriptor = os.open(name, _FOLDER, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(folder: Path) -> Generator[int]:
    """The descriptor of a folder by its real path; raises `WorkspaceUnavailable` if a link is on the path now."""
    descriptor = os.open("/", _PASS)
    try:
        *above, last = folder.parts[1:] or (".",)
        for name, flags in (*((each, _PASS) for each in above), (last, _FOLDER)):
            below = os.open(name, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except OSError as error:
        os.close(descriptor)
        raise WorkspaceUnavailable(f"the folder {folder} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def repository_of(folder: Path) -> Generator[int]:
    """The descriptor of the `.git` of a folder; raises `WorkspaceUnavailable` where it is no folder."""
    with opened_folder(folder) as top:
        try:
            repository = os.open(".git", _FOLDER, dir_fd=top)
        except FileNotFoundError as error:
            raise WorkspaceUnavailable(f"{folder} is not the top folder of a git repository") from error
        except NotADirectoryError as error:
            reason = "a linked worktree, a submodule or a link: use the folder that has the repository itself"
            raise WorkspaceUnavailable(f"the .git of {folder} is no folder but {reason}") from error
    try:
        yield repository
    finally:
        os.close(repository)


def take_over(folder: Path, target: Path) -> None:
    """Put the objects and branches of the repository in `folder` into the bare repository `target`."""
    into = os.open(target, _FOLDER)
    try:
        with repository_of(folder) as repository:
            _take_branches(repository, into)
            with opened("objects", at=repository) as objects, opened("objects", at=into) as own:
                _check_complete(objects, folder)
                _take_objects(objects, own)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise WorkspaceUnavailable(f"the repository of {folder} has a link in it") from error
    finally:
        os.close(into)


def _check_complete(objects: int, folder: Path) -> None:
    with suppress(FileNotFoundError), opened("info", at=objects) as info:
        if {"alternates", "http-alternates"} & set(os.listdir(info)):
            raise WorkspaceUnavailable(f"the repository of {folder} has objects in another one (alternates)")


def _take_branches(repository: int, into: int) -> None:
    """Copy HEAD, the packed list and all branches and tags, each of which must have the form of one."""
    for name in ("HEAD", "packed-refs", "shallow"):
        if (text := _text(name, repository)) is not None:
            if name == "HEAD" and not _BRANCH.fullmatch(text.decode("ascii", "replace")):
                raise WorkspaceUnavailable("the repository has no usable HEAD")
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=into)
            _write(name, text, into)
    with opened("refs", at=repository) as refs:
        for parent, _, names, descriptor in _walk(refs):
            for name in names:
                text = _text(name, descriptor, longest=1024)
                if text is not None and _BRANCH.fullmatch(text.decode("ascii", "replace")):
                    with _made(("refs", *parent), at=into) as place:
                        _write(name, text, place)


def _take_objects(objects: int, own: int) -> None:
    room = MAX_BYTES
    for parent, _, names, descriptor in _walk(objects):
        form = _PACK if parent == ("pack",) else _LOOSE
        wanted = [name for name in names if len(parent) == 1 and form.fullmatch(name)]
        if wanted:
            with _made(parent, at=own) as place:
                for name in wanted:
                    room -= _take_file(name, descriptor, place)
                    if room < 0:
                        raise WorkspaceUnavailable(f"the repository has more than {MAX_BYTES // 1024**3} GiB")


def _take_file(name: str, source: int, place: int) -> int:
    """Link a file, or copy it where that is not possible; the number of its bytes."""
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=place, follow_symlinks=False)
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            os.unlink(name, dir_fd=place)
            raise WorkspaceUnavailable(f"the object {name} is no file")
        return found.st_size
    except OSError:
        pass  # another file system, or another owner
    with open(os.open(name, _READ, dir_fd=source), "rb") as content:
        if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
            raise WorkspaceUnavailable(f"the object {name} is no file")
        with open(os.open(name, _CREATE, 0o444, dir_fd=place), "wb") as copy:
            shutil.copyfileobj(content, copy, 1024 * 1024)
            return copy.tell()


def _walk(top: int) -> Iterator[tuple[tuple[str, ...], list[str], list[str], int]]:
    """The folders below a descriptor, each with its path, its folders and files, and its descriptor."""
    count = 0
    for parent, folders, names, descriptor in os.fwalk(".", follow_symlinks=False, dir_fd=top):
        count += len(folders) + len(names)
        if count > MAX_FILES:
            raise WorkspaceUnavailable(f"the repository has more than {MAX_FILES} files")
        path = tuple(part for part in parent.split("/") if part != ".")
        if len(path) >= 40:
            raise WorkspaceUnavailable("the repository has folders that are too deep")
        yield path, folders, names, descriptor


def _text(name: str, at: int, *, longest: int = MAX_TEXT) -> bytes | None:
    """The content of a file; None if there is none, or no file of that length."""
    try:
        descriptor = os.open(name, _READ, dir_fd=at)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as content:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        text = content.read(longest + 1)
    return text if len(text) <= longest else None


def _write(name: str, text: bytes, at: int, mode: int = 0o644) -> None:
    with open(os.open(name, _CREATE, mode, dir_fd=at), "wb") as file:
        file.write(text)


@contextmanager
def _made(path: tuple[str, ...], *, at: int) -> Generator[int]:
    """The descriptor of a folder below another one, made if it is missing; a link raises `OSError`."""
    descriptor = os.dup(at)
    try:
        for name in path:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=descriptor)
            below = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def put_branch(folder: Path, pack: Path, branch: str, commit: str) -> None:
    """Put a pack (a path without suffix) and a branch into the repository in `folder`; raises `OSError`.

    The branch is written last, so that it never names an object that is not there.
    """
    try:
        with repository_of(folder) as repository:
            with _made(("objects", "pack"), at=repository) as packs:
                for suffix in (".pack", ".idx"):
                    _put(f"{pack.name}{suffix}", pack.with_name(f"{pack.name}{suffix}"), packs)
            *above, name = ("refs", "heads", *branch.split("/"))
            with _made(tuple(above), at=repository) as heads:
                _replace(name, f"{commit}\n".encode(), heads)
    except WorkspaceUnavailable as error:
        raise OSError(str(error)) from error


def _put(name: str, source: Path, place: int) -> None:
    """Copy a file to its place under a name that nothing else has; one that is there already stays."""
    half = f"tmp_{secrets.token_hex(8)}"
    with source.open("rb") as content, open(os.open(half, _CREATE, 0o444, dir_fd=place), "wb") as copy:
        shutil.copyfileobj(content, copy, 1024 * 1024)
    os.rename(half, name, src_dir_fd=place, dst_dir_fd=place)


def _replace(name: str, text: bytes, place: int, mode: int = 0o644) -> None:
    half = f".tmp-{secrets.token_hex(8)}"
    _write(half, text, place, mode)
    os.rename(half, name, src_dir_fd=place, dst_dir_fd=place)


# ---- files of a folder that changes are applied to -------------------------------------------------------------------


class TreeEntry(Struct, frozen=True):
    """A file or link in a folder: its mode as git writes it, and its content or target."""

    mode: str
    content: bytes


def is_repository(name: str) -> bool:
    """Whether a name is that of a repository's data, also where file systems do not tell cases apart.

    >>> is_repository(".git"), is_repository(".GIT"), is_repository(".gitignore")
    (True, True, False)
    """
    return name.lower() == ".git"


def read_entry(top: int, path: str, *, longest: int) -> TreeEntry | None:
    """What is at a relative path, not through links; raises `OSError` for a folder, a link above it or a repository."""
    *above, name = path.split("/")
    if any(part in ("", ".", "..") or is_repository(part) for part in (*above, name)):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    try:
        with _below(top, above) as place:
            found = os.stat(name, dir_fd=place, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                return TreeEntry("120000", os.fsencode(os.readlink(name, dir_fd=place)))
            with open(os.open(name, _READ, dir_fd=place), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                content = file.read(longest + 1)
    except FileNotFoundError:
        return None
    if len(content) > longest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return TreeEntry("100755" if found.st_mode & stat.S_IXUSR else "100644", content)


@contextmanager
def _below(top: int, above: list[str]) -> Generator[int]:
    descriptor = os.dup(top)
    try:
        for name in above:
            below = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def write_entry(top: int, path: str, entry: TreeEntry | None) -> None:
    """Put a file or link at a relative path, or remove what is there; not through links."""
    *above, name = path.split("/")
    if entry is None:
        with suppress(FileNotFoundError), _below(top, above) as place:
            os.unlink(name, dir_fd=place)
        return
    with _made(tuple(above), at=top) as place:
        if entry.mode == "120000":
            half = f".tmp-{secrets.token_hex(8)}"
            os.symlink(os.fsdecode(entry.content), half, dir_fd=place)
            os.rename(half, name, src_dir_fd=place, dst_dir_fd=place)
        else:
            _replace(name, entry.content, place, 0o755 if entry.mode == "100755" else 0o644)


# ---- removal --------------------------------------------------------------------------------------------------------


def remove_folder(folder: Path) -> None:
    """Remove a folder that an agent could write, with all that is in it; what cannot be removed stays.

    Programs can make folders in one another without end, and take away their own rights. So no call goes down: each
    folder is opened, emptied of files, and the folders in it are moved up beside it.
    """
    with suppress(OSError):
        top = os.open(folder, _FOLDER)
        try:
            pending = os.listdir(top)
            while pending:
                pending += _emptied(pending.pop(), top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _emptied(name: str, top: int) -> list[str]:
    """Remove a file, or a folder after its folders have moved into `top`; the names that these have there."""
    moved: list[str] = []
    with suppress(OSError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            return moved
        _own(name, top)
        with opened(name, at=top) as inside:
            for each in os.listdir(inside):
                with suppress(OSError):
                    if stat.S_ISDIR(os.stat(each, dir_fd=inside, follow_symlinks=False).st_mode):
                        _own(each, inside)
                        place = f"removed-{secrets.token_hex(8)}"
                        os.rename(each, place, src_dir_fd=inside, dst_dir_fd=top)
                        moved.append(place)
                    else:
                        os.unlink(each, dir_fd=inside)
        os.rmdir(name, dir_fd=top)
    return moved


def _own(name: str, at: int) -> None:
    """Give the owner the rights to a folder that a removal needs, and to nothing that a link leads to."""
    with suppress(OSError):
        descriptor = os.open(name, _PASS, dir_fd=at)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        finally:
            os.close(descriptor)
