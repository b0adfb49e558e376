"""Whether reading commands of git start programs that a repository names.

`git status`, `diff`, `log` and others start filters, converters and diff programs that the repository's own settings
name. A repository whose settings have none of these, or only settings that are listed here, starts nothing: the check
fails closed for what it cannot read. Which repository git uses is not predicted: all above the folder are examined.
The environment of programs (see `program_access`) covers the rest: a bare repository that lies in a folder is not used,
and no index is written, after which git would start a hook.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Collection, Iterator, Sequence

from retinue.tools.shell.parser import ParsedCommand, ProgramStep

MAX_SETTINGS = 256 * 1024
MAX_INDEX = 64 * 1024 * 1024
MAX_FOLDERS = 16
MAX_REPOSITORIES = 64
MAX_LINKS = 40

_BLANK = re.compile(r"[ \t\r]*(?:[#;].*)?")
_SECTION = re.compile(r'[ \t]*\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\["\\])*)")?\][ \t\r]*(?:[#;].*)?')
_KEY = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(.*))?")
_PLAIN_VALUE = re.compile(r"[ \t]*([^\"\\#; \t\r]+)[ \t\r]*")

_WHOLE_SECTIONS = frozenset(
    (
        *("user", "author", "committer", "branch", "color", "advice", "alias", "pull", "push", "fetch", "init"),
        *("commit", "tag", "rebase", "rerere", "merge", "mergetool", "difftool", "gc", "pack", "maintenance"),
        *("index", "feature", "lfs", "credential", "http", "url", "gui", "i18n", "stash", "notes", "blame", "grep"),
        *("versionsort", "column", "checkout", "apply", "am", "add", "worktree", "transfer", "receive", "sequence"),
        *("interactive", "pager", "svn-remote", "svn", "safe", "gitflow", "github", "hub", "vscode-merge-base"),
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
                    "editor",
                    "pager",
                    "sshcommand",
                    "hookspath",
                ),
                *("commitgraph", "multipackindex", "hidedotfiles", "fscache", "sparsecheckout"),
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
        *(
            f"status.{key}"
            for key in ("short", "branch", "showstash", "showuntrackedfiles", "aheadbehind", "relativepaths", "renames")
        ),
        *(f"gpg.{key}" for key in ("format", "mintrustlevel")),
        *(f"extensions.{key}" for key in ("refstorage", "worktreeconfig", "preciousobjects", "noop")),
    )
)
"""Settings of which reading commands use nothing as a program, by section and key."""
_OFF = frozenset(("false", "no", "off", "0"))
_KERNEL_FOLDERS = frozenset(("/proc", "/dev", "/sys"))
"""Folders in which a name may lead git elsewhere than this process, as `/proc/self/cwd` does."""


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


def _cd_target(step: ProgramStep) -> str | None:
    plain = len(step.arguments) == 1 and not (step.varies or step.patterns)
    return step.arguments[0] if plain and not step.arguments[0].startswith(("-", "~")) and step.arguments[0] else None


def _git_folder(step: ProgramStep) -> str | None:
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
            for repository in _repositories_above(_folder(_real(os.getcwd(), workspace), folder))
        )
    except (_Unknown, OSError, ValueError):
        return True


class _Unknown(Exception):
    """Something of a repository cannot be read with certainty."""


def _folder(start: str, path: str) -> str:
    """The real path of a folder in which a command runs git, from a real path.

    Raises `_Unknown` for `..` behind a link: a shell removes it from the text with the name before, git does not.
    """
    here, is_linked = ("/" if path.startswith("/") else start), False
    for part in path.split("/"):
        if part == ".." and is_linked:
            raise _Unknown(path)
        real = _real(here, part)
        is_linked = is_linked or (part not in ("", ".", "..") and real != os.path.join(here, part))
        here = real
    return here


def _repositories_above(folder: str) -> Iterator[str]:
    """Folders from here upwards that have a `.git`.

    git passes over one that it finds unusable, for reasons that differ between versions and users.
    """
    while True:
        if _is_bare(folder):
            raise _Unknown(folder)
        if os.path.lexists(os.path.join(folder, ".git")):
            yield folder
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _is_bare(folder: str) -> bool:
    """Whether a folder of another name than `.git` looks like the folder of a repository, or of a part of one."""
    found = {name for name in ("HEAD", "objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
    return os.path.basename(folder) != ".git" and (
        found >= {"HEAD", "objects", "refs"} or found >= {"HEAD", "commondir"}
    )


def _may_start(work_tree: str, left: list[int]) -> bool:
    """Whether git, in this repository or one of its submodules, may start a program; `left` counts repositories."""
    left[0] -= 1
    if left[0] < 0:
        raise _Unknown(work_tree)
    git_folder = _git_folder_of(work_tree)
    try:
        common = _real(git_folder, _line(_read(os.path.join(git_folder, "commondir"), 4096)))
    except FileNotFoundError:
        common = git_folder
    settings = ((common, "config"), (common, "config.worktree"), (git_folder, "config.worktree"))
    work_trees = {os.path.relpath(work_tree, git_folder), work_tree}
    if any(_has_unknown(os.path.join(*file), required=file[1] == "config", work_trees=work_trees) for file in settings):
        return True
    return any(
        _may_start(path, left)
        for path in _submodules(git_folder, work_tree)
        if os.path.lexists(os.path.join(path, ".git"))
    )


def _git_folder_of(work_tree: str) -> str:
    path = _real(work_tree, ".git")
    if os.path.isdir(path):
        return path
    kind, _, target = _line(_read(path, 4096)).partition(": ")
    if kind != "gitdir":
        raise _Unknown(path)
    return _real(work_tree, target)


def _line(content: bytes) -> str:
    """The path in a file of one line; git also cuts carriage returns off its end, which could belong to a name."""
    line = content.decode().rstrip("\n")
    if not line.isprintable():
        raise _Unknown(line)
    return line


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
            yield _real(work_tree, os.fsdecode(name))
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
        match mode & 0xF000:
            case 0xE000:
                yield index[begin:end]
            case 0x8000 | 0xA000:  # a file, a link
                pass
            case _:
                raise ValueError("an entry stands for a folder")
        at = at + ((end - at + 8) & ~7)
    while at + 8 < len(index) - 20:
        kind, size = struct.unpack_from(">4sI", index, at)
        if kind == b"IEOT" and not begins.issuperset(_offsets_in(index[at + 12 : at + 8 + size])):
            raise ValueError("the table of offsets leads elsewhere")
        at += 8 + size


def _offsets_in(table: bytes) -> list[int]:
    """Offsets in the extension IEOT, at which git reads entries in several threads."""
    return [offset for offset, _ in struct.iter_unpack(">II", table)]


def _has_unknown(path: str, *, required: bool, work_trees: Collection[str] = ()) -> bool:
    """Whether a file of settings has one that may name a program; raises `_Unknown` if it cannot be read.

    `work_trees` are the names of the folder that the settings are for, as they may stand in them.
    """
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
        name = f"{section}.{key[1].lower()}"
        if section not in _WHOLE_SECTIONS and name not in _SETTINGS and not _is_harmless(name, key[2], work_trees):
            return True
    return False


def _is_harmless(name: str, value: str | None, work_trees: Collection[str]) -> bool:
    """Whether a setting that can name a program or another folder has a value with which it does not."""
    plain = _PLAIN_VALUE.fullmatch(value or "")
    if plain is None:
        return False
    return (name == "core.fsmonitor" and plain[1].lower() in _OFF) or (
        name == "core.worktree" and plain[1] in work_trees
    )


def _real(folder: str, path: str) -> str:
    """The real path of a name in a folder; raises `_Unknown` where it may lead git elsewhere."""
    ahead = [part for part in reversed(os.path.join(folder, path).split("/")) if part not in ("", ".")]
    here, links = "/", 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, part)
        if entry in _KERNEL_FOLDERS:
            raise _Unknown(path)
        try:
            target = os.readlink(entry)
        except OSError:
            here = entry
            continue
        links += 1
        if links > MAX_LINKS:
            raise _Unknown(path)
        if target.startswith("/"):
            here = "/"
        ahead += [part for part in reversed(target.split("/")) if part not in ("", ".")]
    return here


def _read(path: str, most: int) -> bytes:
    """A file of at most so many bytes; anything else than such a file raises `_Unknown`."""
    descriptor = os.open(_real("/", path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise _Unknown(path)
        content = file.read(most + 1)
    if len(content) > most:
        raise _Unknown(path)
    return content
