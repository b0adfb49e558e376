"""Looks at a path by its name: each has a reason why no later open depends on it.

A path is resolved once, at the moment of decision, into a descriptor that everything after it uses
(`retinue.tools.path_walk`). A look by name that comes before an open leaves a moment in which the path can be swapped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import retinue

SOURCE = Path(retinue.__file__).parent
LOOKS = {
    *("realpath", "resolve", "which", "exists", "isdir", "isfile", "islink", "lexists", "ismount", "samefile"),
    *("is_dir", "is_file", "is_symlink", "is_mount", "readlink"),
    *(
        "access",
        "stat",
        "lstat",
        "scandir",
        "listdir",
        "iterdir",
        "glob",
        "rglob",
        "iglob",
        "walk",
        "getsize",
        "getmtime",
    ),
}

MODULES = ("os", "os.path", "posixpath", "shutil", "pathlib")

NOT_A_PATH = "not a path"
ENTRY = "the kind of an entry of an open folder, without following links; only printed or compared"
MESSAGE = "for the words of an error or of a report"
SYSTEM = "a folder of the system, which no agent can write"
STATE = "the state folder, which is closed to agents"
PROGRAM = "a program is used only from folders that neither an agent nor another user can write"
SETTINGS = "more names to compare; the file itself is open already"
GIT = "raises the risk of a command; what the command can reach is decided by descriptors"
FD = "of an open folder, or of an object that holds a descriptor"
LIST = "which files are read; each is opened once, and that is the one that is checked and used"
KIND = "for the words of an error; the file is opened once, without waiting for a pipe"
STORE = "the store, which is closed to agents; sizes and rights decide how it is opened, and what an error says"
RECORD = "the identity of a folder that is recorded as writable, so that more is refused"
TEMPORARY = "a temporary folder of this process"
TOOLCHAIN = "which folders come first in PATH; what is opened has to be an installation outside folders of agents"
PROCESS = "read from /proc of a process, about what is open already"

REASONS: dict[tuple[str, str, str], str] = {
    ("app/agent_programs.py", "LocalAgentPrograms._path", "access"): PROGRAM,
    ("app/doctor_checks.py", "_obstacle", "access"): MESSAGE,
    ("app/doctor_checks.py", "_size", "stat"): MESSAGE,
    ("app/doctor_checks.py", "_state", "rglob"): MESSAGE,
    ("app/state_folder.py", "_check_files", "scandir"): FD,
    ("app/state_folder.py", "_check_files", "stat"): FD,
    ("cli/store.py", "backup.finish", "stat"): MESSAGE,
    ("config/agent_files/folders.py", "_below", "scandir"): LIST,
    ("config/agent_files/folders.py", "_below", "stat"): LIST,
    ("config/agent_files/folders.py", "_files", "stat"): LIST,
    ("config/settings.py", "_is_own", "lstat"): "whose a `.git` is; the settings file above it is opened once",
    ("config/settings.py", "_check_file_type", "stat"): KIND,
    ("config/tools.py", "_file_kind", "stat"): KIND,
    ("dialects/zeroclaw/result_files.py", "ResultFolder.sweep", "listdir"): FD,
    ("dialects/zeroclaw/result_files.py", "_task_ids", "listdir"): FD,
    ("local/git_workspaces.py", "Git.fetch", "iterdir"): STATE,
    ("local/git_workspaces.py", "Git.fetch", "stat"): STATE,
    ("local/programs.py", "_first", "access"): PROGRAM,
    ("local/programs.py", "_is_ours", "stat"): PROGRAM,
    ("local/programs.py", "why_not_looked_up", "access"): PROGRAM,
    ("local/programs.py", "why_untrusted", "lstat"): PROGRAM,
    ("local/programs.py", "why_untrusted", "stat"): PROGRAM,
    ("local/repository_files.py", "_check_complete", "listdir"): FD,
    ("local/repository_files.py", "_emptied", "listdir"): FD,
    ("local/repository_files.py", "remove_folder", "listdir"): FD,
    ("local/worktrees.py", "WorktreeSource.check_out_again", "glob"): STATE,
    ("local/worktrees.py", "Worktrees._view", "stat"): STATE,
    ("local/worktrees.py", "Worktrees.list", "glob"): STATE,
    ("sandbox/memory_watch.py", "_SandboxView._entries", "listdir"): PROCESS,
    ("sandbox/memory_watch.py", "_SandboxView._statuses", "listdir"): PROCESS,
    ("sandbox/memory_watch.py", "_enter", "stat"): PROCESS,
    ("sandbox/memory_watch.py", "_is_gone", "stat"): PROCESS,
    ("sandbox/mount_watch.py", "_identity", "stat"): PROCESS,
    ("sandbox/mount_watch.py", "_is_set_up", "stat"): PROCESS,
    ("sandbox/mounts.py", "root_only_covers", "scandir"): SYSTEM,
    ("sandbox/mounts.py", "root_only_covers", "stat"): SYSTEM,
    ("sandbox/none.py", "_home_of", "stat"): "a home folder of the user, which is replaced if others can write there",
    ("sandbox/probe.py", "_examine_seatbelt", "access"): SYSTEM,
    ("sandbox/socket_memory.py", "SocketMemory._open", "stat"): PROCESS,
    ("store/postgres/queue_tables.py", "prepare_queue_tables", "glob"): "files of an installed package",
    ("store/sqlite/backup.py", "_add", "stat"): STORE,
    ("store/sqlite/check.py", "open_snapshot", "stat"): STORE,
    ("store/sqlite/errors.py", "_unwritable", "access"): STORE,
    ("store/sqlite/replace.py", "merge_log", "stat"): STORE,
    ("store/sqlite/space.py", "compact", "stat"): STORE,
    ("store/sqlite/store.py", "SqliteStore._wal_size", "stat"): STORE,
    ("store/sqlite/store.py", "_open_read_only", "access"): STORE,
    ("store/sqlite/store.py", "_open_read_only", "stat"): STORE,
    ("store/sqlite/store.py", "_open_to_write", "getsize"): STORE,
    ("store/sqlite/store.py", "check_files", "stat"): STORE,
    ("telemetry/log_files.py", "OutputLimit.of_stderr", "stat"): STATE,
    ("telemetry/log_files.py", "trim", "scandir"): STATE,
    ("telemetry/log_files.py", "trim", "stat"): STATE,
    ("tools/coding.py", "_is_python", "glob"): TOOLCHAIN,
    ("tools/file_changes.py", "found", "stat"): FD,
    ("tools/files/atomic_write.py", "_check_unchanged", "stat"): FD,
    ("tools/files/atomic_write.py", "replace", "stat"): FD,
    ("tools/files/file_tools.py", "_append", "stat"): FD,
    ("tools/files/file_tools.py", "_check_free", "stat"): FD,
    ("tools/files/file_tools.py", "_existing", "stat"): FD,
    ("tools/files/file_tools.py", "_list", "scandir"): FD,
    ("tools/files/file_tools.py", "_stat", "stat"): FD,
    ("tools/files/paths.py", "FileAccess._checked_target", "stat"): FD,
    ("tools/files/paths.py", "FileAccess._open", "stat"): FD,
    ("tools/memory/markdown.py", "MarkdownMemory.agents", "glob"): STATE,
    ("tools/memory/memory_tools.py", "_exists", "stat"): STATE,
    ("tools/memory/sqlite.py", "_state", "stat"): STATE,
    ("tools/memory/workspace.py", "_Folder.files", "listdir"): FD,
    ("tools/search/ripgrep.py", "_where", "stat"): FD,
    ("tools/search/search_program.py", "walk", "scandir"): FD,
    ("tools/search/search_tools.py", "_empty", "listdir"): FD,
    ("tools/search/search_tools.py", "_empty", "stat"): FD,
    ("tools/search/search_tools.py", "_measured.make.test", "stat"): FD,
    (
        "tools/settings_guard.py",
        "ProgramWatch._is_replaced",
        "lstat",
    ): "compared with an open descriptor; a difference ends the program",
    ("tools/settings_trust.py", "DiskRecords._names", "listdir"): STATE,
    ("tools/settings_trust.py", "_key", "stat"): RECORD,
    ("tools/settings_trust.py", "_root_names", "stat"): RECORD,
    ("tools/settings_trust.py", "modules_in", "scandir"): "which files are recorded; each is opened once",
    ("tools/shell/repository.py", "_submodules", "listdir"): GIT,
    (
        "testing/pytest_plugin.py",
        "_retinue.open_test",
        "exists",
    ): "whether to record; the file is beside a person's test",
    (
        "providers/google_cloud.py",
        "_find_credentials",
        "isfile",
    ): "whether google-auth is given a file, which it opens itself; a file of a person",
    ("providers/bedrock/signature.py", "_refusal", "lexists"): PROGRAM,
    ("mcp_client/program.py", "_empty_folder", "is_dir"): TEMPORARY,
    ("mcp_client/program.py", "_named_places", "isfile"): MESSAGE,
    ("mcp_client/program.py", "_check_shell", "isdir"): PROGRAM,
    ("mcp_client/program.py", "check_arguments", "isdir"): PROGRAM,
    ("mcp_client/program.py", "check_code", "realpath"): PROGRAM,
    ("mcp_client/program.py", "check_arguments", "isfile"): PROGRAM,
    ("mcp_client/program.py", "program_of", "lexists"): MESSAGE,
    ("local/programs.py", "why_not_looked_up", "realpath"): PROGRAM,
    ("local/programs.py", "trusted_path", "realpath"): PROGRAM,
    ("local/programs.py", "_roots", "realpath"): PROGRAM,
    ("local/programs.py", "why_not_looked_up", "isfile"): PROGRAM,
    ("app/doctor_checks.py", "_is_used", "lexists"): MESSAGE,
    ("app/doctor_checks.py", "_nearest", "lexists"): MESSAGE,
    ("app/doctor_checks.py", "_obstacle", "isdir"): MESSAGE,
    ("app/launch/resume.py", "_settings_of", "lexists"): "a warning; the file is opened once, later, by the same name",
    (
        "app/store_copy.py",
        "_check_target",
        "exists",
    ): "a refusal to copy; the file is created beside the store of a person",
    ("app/store_copy.py", "_copy_memories", "exists"): STATE,
    ("app/store_files.py", "_exists", "exists"): STATE,
    ("store/sqlite/transfer.py", "read_rows", "exists"): MESSAGE,
    (
        "app/tool_modules.py",
        "_SiblingFinder.find_spec",
        "realpath",
    ): "compared with a folder; modules are a person's code",
    ("app/tool_modules.py", "_import_file", "is_file"): MESSAGE,
    (
        "local/workspaces.py",
        "FetchedWorkspaces._fetch",
        "is_dir",
    ): MESSAGE,
    ("local/workspaces.py", "FetchedWorkspaces._check", "is_dir"): "whether a shared folder is mounted on this machine",
    ("cli/worktrees.py", "apply_changes", "resolve"): "a folder that a person names",
    ("dialects/context.py", "DialectContext.in_worktree", "isdir"): MESSAGE,
    ("dialects/context.py", "_without_folder", "realpath"): "adds forbidden paths; each is forbidden as written, too",
    ("dialects/context.py", "_without_folder.outside", "realpath"): "takes roots away; the folder is forbidden besides",
    ("local/worktrees.py", "WorktreeSource._origin", "resolve"): MESSAGE,
    ("local/worktrees.py", "Worktrees._view", "is_dir"): MESSAGE,
    ("local/object_workspaces.py", "ObjectSource._download", "exists"): NOT_A_PATH,
    ("local/object_workspaces.py", "ObjectSource.fetch", "exists"): NOT_A_PATH,
    ("app/tool_modules.py", "_import_file", "resolve"): "the name of a module, and a folder to compare with",
    ("app/trust.py", "_expanded", "is_dir"): "which files are shown; what was read and shown is accepted",
    ("app/trust.py", "_settings_in", "is_file"): "which files are shown; what was read and shown is accepted",
    ("cli/agents.py", "_usual_folders", "isdir"): "which folders are looked at; each file is opened and checked once",
    (
        "config/agent_files/folders.py",
        "_below",
        "isdir",
    ): "which files are read; each is opened once, and its descriptor is checked",
    (
        "config/agent_files/folders.py",
        "_below",
        "isfile",
    ): "which files are read; each is opened once, and its descriptor is checked",
    ("sandbox/seatbelt.py", "_real", "realpath"): TEMPORARY,
    ("sandbox/seatbelt.py", "attack", "exists"): TEMPORARY,
    (
        "tools/program_access.py",
        "ProgramPath.is_trusted",
        "lexists",
    ): "whether an approval is needed; what needs none is looked up again where agents cannot write",
    ("tools/coding.py", "CodingPreset.toolchain", "realpath"): TOOLCHAIN,
    ("tools/coding.py", "_is_environment", "isfile"): TOOLCHAIN,
    ("tools/coding.py", "_is_environment", "islink"): TOOLCHAIN,
    ("tools/coding.py", "_is_environment", "lexists"): TOOLCHAIN,
    ("tools/coding.py", "find_toolchain", "realpath"): TOOLCHAIN,
    ("tools/coding.py", "_links", "islink"): TOOLCHAIN,
    ("tools/coding.py", "_links", "readlink"): TOOLCHAIN,
    ("tools/coding.py", "_links", "realpath"): TOOLCHAIN,
    ("tools/coding.py", "_installations", "realpath"): PROGRAM,
    ("tools/coding.py", "_is_node", "isdir"): PROGRAM,
    ("tools/coding.py", "_is_node", "isfile"): PROGRAM,
    ("tools/coding.py", "_is_python", "is_file"): PROGRAM,
    ("tools/coding.py", "_is_python", "isfile"): PROGRAM,
    ("cli/chat/loop_thread.py", "PendingSigint.resend", "exists"): NOT_A_PATH,
    ("cli/demo/story.py", "", "exists"): "the package's own folder, before any agent runs",
    ("cli/demo/story.py", "", "resolve"): "the package's own folder, before any agent runs",
    ("cli/demo/crash_and_resume.py", "last_line", "exists"): "a file of the demo's own temporary folder",
    (
        "cli/init.py",
        "init",
        "exists",
    ): "a refusal to write a second kind of file; the file itself is created exclusively",
    ("cli/replay.py", "_store", "is_file"): MESSAGE,
    (
        "config/settings.py",
        "_check_file_type",
        "samefile",
    ): "whether a device is /dev/null; a refusal of any other device",
    ("config/settings.py", "file_in", "lexists"): "chooses a name in a folder; what is opened is what is read",
    ("local/private_folder.py", "create_private", "is_dir"): MESSAGE,
    ("local/programs.py", "_steps", "islink"): PROGRAM,
    ("local/programs.py", "_steps", "readlink"): PROGRAM,
    ("local/programs.py", "_first", "isfile"): PROGRAM,
    ("local/programs.py", "import_path", "realpath"): PROGRAM,
    ("dialects/context.py", "DialectContext.run_spec_for", "resolve"): NOT_A_PATH,
    ("dialects/spec/dialect.py", "AgentStore.list", "resolve"): NOT_A_PATH,
    ("dialects/xzatoma/child.py", "Children.__init__", "resolve"): NOT_A_PATH,
    (
        "dispatch/one_call/answer.py",
        "_settings_here",
        "lexists",
    ): "saves an import; the settings are opened once, later",
    ("engine/admission.py", "_anchored", "realpath"): "one more path that is closed; nothing is opened by it",
    ("engine/driver_table.py", "this_host", "readlink"): PROCESS,
    ("providers/scripted/script.py", "logged_turns", "exists"): "a log of tests",
    ("sandbox/mounts.py", "_etc_files", "exists"): SYSTEM,
    ("sandbox/mounts.py", "_path_of", "readlink"): PROCESS,
    ("sandbox/mounts.py", "_system_folders", "isdir"): SYSTEM,
    ("sandbox/mounts.py", "_system_folders", "islink"): SYSTEM,
    ("sandbox/mounts.py", "_system_folders", "readlink"): SYSTEM,
    ("sandbox/mounts.py", "root_only_covers", "is_symlink"): SYSTEM,
    ("sandbox/probe.py", "_arena", "resolve"): "a new temporary folder of this process",
    ("sandbox/probe.py", "_escape_program", "realpath"): "the interpreter of this process",
    ("sandbox/probe.py", "_installation", "realpath"): "the interpreter of this process",
    ("sandbox/probe.py", "attack", "exists"): "the result of a probe, after its program has ended",
    ("store/sqlite/backup.py", "_add", "exists"): STATE,
    ("store/sqlite/backup.py", "_replace_others", "exists"): STATE,
    ("store/sqlite/backup.py", "backup", "is_dir"): MESSAGE,
    ("store/sqlite/backup.py", "backup", "lexists"): "a refusal; the backup is written beside and linked to its name",
    ("store/sqlite/backup.py", "restore", "exists"): STATE,
    ("store/sqlite/backup.py", "restore", "is_file"): MESSAGE,
    ("store/sqlite/backup.py", "restore", "samefile"): "a refusal; the backup is a file that a person names",
    ("store/sqlite/check.py", "open_snapshot", "exists"): STATE,
    ("store/sqlite/errors.py", "_unwritable", "lexists"): MESSAGE,
    ("store/sqlite/errors.py", "open_error", "isdir"): MESSAGE,
    ("store/sqlite/errors.py", "open_error", "lexists"): MESSAGE,
    ("store/sqlite/repair.py", "copy_readable", "exists"): STATE,
    ("store/sqlite/repair.py", "copy_readable", "lexists"): STATE,
    ("store/sqlite/replace.py", "check_unused", "exists"): STATE,
    ("store/sqlite/replace.py", "kept_name", "lexists"): STATE,
    ("store/sqlite/replace.py", "merge_log", "exists"): STATE,
    ("store/sqlite/replace.py", "replace_file", "lexists"): STATE,
    ("store/sqlite/space.py", "compact", "exists"): STATE,
    ("store/sqlite/store.py", "_open_read_only", "isfile"): STATE,
    ("store/sqlite/store.py", "_open_read_only", "lexists"): STATE,
    ("store/sqlite/store.py", "check_files", "exists"): STATE,
    ("store/sqlite/store.py", "check_files", "lexists"): STATE,
    ("tools/files/file_tools.py", "_list", "is_dir"): ENTRY,
    ("tools/files/file_tools.py", "_list", "is_symlink"): ENTRY,
    ("tools/search/search_program.py", "_kind", "is_dir"): ENTRY,
    ("tools/search/search_program.py", "_kind", "is_file"): ENTRY,
    ("tools/search/search_program.py", "_kind", "is_symlink"): ENTRY,
    ("tools/search/ripgrep.py", "_argv", "isdir"): "whether there is a /proc; the folder is open already",
    ("tools/search/ripgrep.py", "_path_of", "isdir"): "whether there is a /proc; the folder is open already",
    ("tools/settings_guard.py", "ProgramWatch.begin", "lexists"): "whether mounts are made again; they open it then",
    ("tools/settings_guard.py", "ProgramWatch.begin", "realpath"): "names that are not renamed",
    ("tools/settings_guard.py", "_put_aside", "lexists"): "chooses a free name; the rename is what counts",
    ("tools/settings_guard.py", "ProgramWatch._put_aside", "lexists"): "what to rename; the rename is what counts",
    ("tools/settings_trust.py", "DiskRecords._prune", "lexists"): "forgets the record of a folder that is gone",
    ("tools/settings_trust.py", "DiskRecords.add_root", "lexists"): STATE,
    ("tools/settings_trust.py", "DiskRecords.is_root", "lexists"): STATE,
    ("tools/settings_trust.py", "DiskRecords.is_used", "isdir"): STATE,
    ("tools/settings_trust.py", "MemoryRecords.add_root", "lexists"): "forgets the record of a folder that is gone",
    ("tools/settings_trust.py", "_links", "readlink"): SETTINGS,
    ("tools/settings_trust.py", "_path_of", "readlink"): PROCESS,
    ("tools/settings_trust.py", "_path_of", "realpath"): "where there is no /proc; the file is open already",
    ("tools/settings_trust.py", "accept_content", "realpath"): "the name under which a content is accepted",
    ("tools/settings_trust.py", "is_accepted", "realpath"): "the name under which a content is looked up",
    ("tools/settings_trust.py", "last_accepted", "realpath"): "the name under which a content is looked up",
    ("tools/settings_trust.py", "modules_in", "is_dir"): ENTRY,
    ("tools/settings_trust.py", "modules_in", "lexists"): "which files are recorded; each is opened once",
    ("tools/shell/repository.py", "_git_folder_of", "isdir"): GIT,
    ("tools/shell/repository.py", "_is_bare", "lexists"): GIT,
    ("tools/shell/repository.py", "_may_start", "lexists"): GIT,
    ("tools/shell/repository.py", "_repositories_above", "lexists"): GIT,
    ("tools/shell/repository.py", "_real", "readlink"): GIT,
}


def looks(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The uses of `LOOKS`, each with the class and function that contain it."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
    }

    def within(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{place}.{child.name}" if place else child.name
            if isinstance(child, ast.Attribute) and child.attr in LOOKS and _is_function(child, node):
                yield place, child.attr
            if isinstance(child, ast.Name) and child.id in LOOKS & imported:
                yield place, child.id
            yield from within(child, inner)

    yield from within(tree, "")


def _is_function(attribute: ast.Attribute, parent: ast.AST) -> bool:
    """Whether an attribute is called, or belongs to a module and is passed on."""
    if isinstance(parent, ast.Call) and parent.func is attribute:
        # Below an open folder a name is one part of a path, and is looked up in that folder.
        return not any(keyword.arg == "dir_fd" for keyword in parent.keywords)
    return ast.unparse(attribute.value) in (*MODULES, "path", "Path")


def found() -> set[tuple[str, str, str]]:
    return {
        (str(path.relative_to(SOURCE)), place, name)
        for path in sorted(SOURCE.rglob("*.py"))
        for place, name in looks(ast.parse(path.read_text()))
    }


def test_every_check_of_a_path_by_name_has_a_reason() -> None:
    assert sorted(found() - REASONS.keys()) == []


def test_every_reason_belongs_to_a_check_in_the_source() -> None:
    assert sorted(REASONS.keys() - found()) == []


def test_calls_names_and_functions_that_are_passed_on_are_found() -> None:
    source = """
from os.path import islink
import os, shutil
class A:
    def f(self, path, which):
        first.exists
        return map(os.path.lexists, [path.resolve()]), islink(path), which
def g():
    os.stat("name", dir_fd=folder), os.scandir(path), path.stat()
    return shutil.which("sh")
"""

    assert sorted(looks(ast.parse(source))) == [
        ("A.f", "islink"),
        ("A.f", "lexists"),
        ("A.f", "resolve"),
        ("g", "scandir"),
        ("g", "stat"),
        ("g", "which"),
    ]
