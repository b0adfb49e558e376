"""Whether reading commands of git start programs that a repository names.

`git status`, `diff`, `log` and others start filters, converters and diff programs that the repository's own settings
name. A repository whose settings have none of these, or only settings that are listed here, starts nothing: the check
fails closed for what it cannot read. The environment of programs (see `program_access`) covers the rest: a bare
repository that lies in a folder is not used, and no index is written, after which git would start a hook.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence

from retinue.tools.shell.parser import ParsedCommand, Step

MAX_SETTINGS = 256 * 1024
MAX_INDEX = 64 * 1024 * 1024
MAX_FOLDERS = 16
MAX_REPOSITORIES = 64

_BLANK = re.compile(r"[ \t\r]*(?:[#;].*)?")
_SECTION = re.compile(r'[ \t]*\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\["\\])*)")?\][ \t\r]*(?:[#;].*)?')
_KEY = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(.*))?")
_HEAD = re.compile(r"ref: refs/heads/[A-Za-z0-9][A-Za-z0-9/_-]*\n?|[0-9a-f]{40}(?:[0-9a-f]{24})?\n?")

_WHOLE_SECTIONS = frozenset(
    (
        *("user", "author", "committer", "branch", "color", "advice", "alias", "pull", "push", "fetch", "init"),
        *("commit", "tag", "rebase", "rerere", "merge", "mergetool", "difftool", "status", "gc", "pack", "maintenance"),
        *("index", "feature", "lfs", "credential", "http", "url", "gui", "i18n", "stash", "notes", "blame", "grep"),
        *("versionsort", "column", "checkout", "apply", "am", "add", "worktree", "transfer", "receive", "sequence"),
        *("interactive", "pager", "gpg", "svn-remote", "svn", "safe", "gitflow", "github", "hub", "vscode-merge-base"),
    )
)
"""Sections of which reading commands use nothing as a program."""
_SETTINGS = frozenset(
    (
        *(
            f"core.{key}"
            for key in (
                *("repositoryformatversion", "filemode", "bare", "logallrefupdates", "symlinks", "ignorecase"),
                *("precomposeunicode", "autocrlf", "eol", "safecrlf", "quotepath", "longpaths", "abbrev", "whitespace"),
                *("compression", "loosecompression", "bigfilethreshold", "sharedrepository", "protecthfs"),
                *("protectntfs", "trustctime", "checkstat", "preloadindex", "untrackedcache", "commentchar"),
                *(
                    "notesref",
                    "excludesfile",
                    "attributesfile",
                    "worktree",
                    "editor",
                    "pager",
                    "sshcommand",
                    "hookspath",
                ),
                *("fsmonitor", "commitgraph", "multipackindex", "hidedotfiles", "fscache", "sparsecheckout"),
                *("sparsecheckoutcone", "createobject", "warnambiguousrefs", "maxtreedepth", "packedgitlimit"),
            )
        ),
        *(f"remote.{key}" for key in ("url", "pushurl", "fetch", "push", "tagopt", "prune", "prunetags", "mirror")),
        *(f"remote.{key}" for key in ("skipdefaultupdate", "skipfetchall", "gh-resolved", "pushdefault", "proxy")),
        *(
            f"diff.{key}"
            for key in (
                *("renames", "renamelimit", "algorithm", "colormoved", "colormovedws", "context", "mnemonicprefix"),
                *("noprefix", "relative", "tool", "guitool", "wserrorhighlight", "indentheuristic", "dirstat"),
                *("interhunkcontext", "statgraphwidth", "suppressblankempty", "wordregex", "autorefreshindex"),
                *("ignoresubmodules", "xfuncname", "funcname", "binary", "cachetextconv"),
            )
        ),
        *(
            f"log.{key}"
            for key in ("date", "decorate", "follow", "abbrevcommit", "showroot", "mailmap", "excludedecoration")
        ),
        *(f"format.{key}" for key in ("signoff", "numbered", "outputdirectory", "thread", "subjectprefix", "usexml")),
        *(
            f"submodule.{key}"
            for key in ("url", "active", "branch", "update", "ignore", "fetchrecursesubmodules", "path")
        ),
        *(f"extensions.{key}" for key in ("refstorage", "worktreeconfig", "preciousobjects", "noop")),
    )
)
"""Settings of which reading commands use nothing as a program, by section and key."""


def folders_of_git(command: ParsedCommand) -> tuple[str, ...] | None:
    """The folders in which a command runs git, as paths from its own folder; None where the text does not say.

    >>> from retinue.tools.shell.parser import parse
    >>> folders_of_git(parse("git status; cd src && git -C lib log")), folders_of_git(parse("cd $x; git log"))
    (('', 'lib', 'src/lib'), None)
    """
    folders = [""]
    found: dict[str, None] = {}
    for step in command.steps:
        if step.name == "cd":
            target = _cd_target(step)
            if target is None or command.loops:
                folders = []
            folders += [os.path.join(folder, target or "") for folder in folders]
            folders = list(dict.fromkeys(folders))
        elif step.name == "git":
            own = _git_folder(step)
            if own is None or not 0 < len(folders) <= MAX_FOLDERS:
                return None
            found |= dict.fromkeys(os.path.join(folder, own) for folder in folders)
        if len(folders) > MAX_FOLDERS:
            folders = []
    return tuple(found)


def _cd_target(step: Step) -> str | None:
    plain = len(step.arguments) == 1 and not (step.varies or step.patterns)
    return step.arguments[0] if plain and not step.arguments[0].startswith(("-", "~")) and step.arguments[0] else None


def _git_folder(step: Step) -> str | None:
    """The folder that `-C` names, from the one in which git starts; None if the shell has to expand something first."""
    folder, words = "", iter(step.arguments)
    for word in words:
        if not word.startswith("-"):
            break
        if word == "-C":
            folder = os.path.join(folder, next(words, ""))
        elif word == "-c":
            next(words, "")
    return None if step.varies or any(pattern in step.arguments[:4] for pattern in step.patterns) else folder


def starts_programs(workspace: str, folders: Sequence[str], home: str) -> bool:
    """Whether a reading git command may start programs that the settings of a repository name.

    `folders` are paths from `workspace`; `home` has the settings of the user that git runs as, unless it is the
    person's own.
    """
    left = [MAX_REPOSITORIES]
    try:
        if home and any(
            _has_unknown(os.path.join(home, name), required=False) for name in (".gitconfig", ".config/git/config")
        ):
            return True
        return any(
            _may_start(repository, left)
            for folder in folders
            for path in _ways(workspace, folder)
            for repository in _repositories_above(path)
        )
    except (_Unknown, OSError, ValueError):
        return True


class _Unknown(Exception):
    """Something of a repository cannot be read with certainty."""


def _ways(workspace: str, folder: str) -> set[str]:
    """The folder as a system call finds it, and as a shell does, which removes `..` from the text first."""
    path = os.path.join(workspace, folder)
    return {os.path.realpath(path), os.path.realpath(os.path.normpath(path))}


def _repositories_above(folder: str) -> Iterator[str]:
    """Folders from here upwards that have a `.git`, up to the first one that git surely uses."""
    while True:
        if _is_bare(folder):
            raise _Unknown(folder)
        if os.path.lexists(os.path.join(folder, ".git")):
            yield folder
            if _is_surely_used(os.path.join(folder, ".git")):
                return
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _is_bare(folder: str) -> bool:
    """Whether a folder of another name than `.git` looks like the folder of a repository."""
    names = ("HEAD", "objects", "refs")
    return os.path.basename(folder) != ".git" and all(os.path.lexists(os.path.join(folder, name)) for name in names)


def _is_surely_used(git_folder: str) -> bool:
    try:
        head = _read(os.path.join(git_folder, "HEAD"), 4096)
    except (OSError, _Unknown):
        return False
    folders = (os.path.join(git_folder, name) for name in ("objects", "refs"))
    return _HEAD.fullmatch(head.decode("ascii", "replace")) is not None and all(map(os.path.isdir, folders))


def _may_start(work_tree: str, left: list[int]) -> bool:
    """Whether git, in this repository or one of its submodules, may start a program; `left` counts repositories."""
    left[0] -= 1
    if left[0] < 0:
        raise _Unknown(work_tree)
    git_folder = _git_folder_of(work_tree)
    try:
        common = os.path.join(git_folder, _read(os.path.join(git_folder, "commondir"), 4096).decode().rstrip("\n"))
    except FileNotFoundError:
        common = git_folder
    settings = ((common, "config"), (common, "config.worktree"), (git_folder, "config.worktree"))
    if any(_has_unknown(os.path.join(folder, name), required=name == "config") for folder, name in settings):
        return True
    return any(
        _may_start(path, left)
        for path in _submodules(git_folder, work_tree)
        if os.path.lexists(os.path.join(path, ".git"))
    )


def _git_folder_of(work_tree: str) -> str:
    path = os.path.join(work_tree, ".git")
    if os.path.isdir(path):
        return path
    kind, _, target = _read(path, 4096).decode().partition(": ")
    if kind != "gitdir":
        raise _Unknown(path)
    return os.path.join(work_tree, target.rstrip("\n"))


def _submodules(git_folder: str, work_tree: str) -> Iterator[str]:
    """Folders of the submodules in the index of a repository."""
    if any(name.startswith("sharedindex.") for name in os.listdir(git_folder)):
        raise _Unknown(git_folder)  # entries of the index are in another file
    try:
        index = _read(os.path.join(git_folder, "index"), MAX_INDEX)
    except FileNotFoundError:
        return
    try:
        for name in _links_in(index):
            yield os.path.join(work_tree, os.fsdecode(name))
    except (struct.error, ValueError) as error:
        raise _Unknown(git_folder) from error


def _links_in(index: bytes) -> Iterator[bytes]:
    """Paths of the submodules in an index of version 2 or 3; raises `ValueError` for any other.

    An entry has 62 bytes, or 64 if it has more flags, then its path, and zeros up to a multiple of eight.
    """
    mark, version, count = struct.unpack_from(">4sII", index)
    if mark != b"DIRC" or version not in (2, 3):
        raise ValueError("not an index of version 2 or 3")
    at = 12
    begins: set[int] = set()
    for _ in range(count):
        begins.add(at)
        mode, flags = struct.unpack_from(">I32xH", index, at + 24)
        begin = at + (64 if flags & 0x4000 else 62)
        length = flags & 0xFFF
        end = index.index(b"\0", begin) if length == 0xFFF else begin + length
        if mode & 0xF000 == 0xE000:
            yield index[begin:end]
        at = at + ((end - at + 8) & ~7)
    while at + 8 < len(index) - 20:
        kind, size = struct.unpack_from(">4sI", index, at)
        if kind == b"IEOT" and not begins.issuperset(_offsets_in(index[at + 12 : at + 8 + size])):
            raise ValueError("the table of offsets leads elsewhere")
        at += 8 + size


def _offsets_in(table: bytes) -> list[int]:
    """Offsets in the extension IEOT, at which git reads entries in several threads."""
    return [offset for offset, _ in struct.iter_unpack(">II", table)]


def _has_unknown(path: str, *, required: bool) -> bool:
    """Whether a file of settings has one that may name a program; raises `_Unknown` if it cannot be read."""
    try:
        text = _read(path, MAX_SETTINGS).decode()
    except FileNotFoundError:
        if required:
            raise _Unknown(path) from None
        return False
    section = ""
    for line in text.split("\n"):
        if _BLANK.fullmatch(line):
            continue
        if found := _SECTION.fullmatch(line):
            section = found[1].partition(".")[0].lower()
            continue
        key = _KEY.fullmatch(line)
        if key is None or line.rstrip("\r").endswith("\\"):
            return True
        if section not in _WHOLE_SECTIONS and f"{section}.{key[1].lower()}" not in _SETTINGS:
            return True
    return False


def _read(path: str, most: int) -> bytes:
    """A file of at most so many bytes; anything else than such a file raises `_Unknown`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise _Unknown(path)
        content = file.read(most + 1)
    if len(content) > most:
        raise _Unknown(path)
    return content
