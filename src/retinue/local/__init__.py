"""Files, folders and programs of this machine, for every layer above `core`."""

__all__ = [
    "bounded_file",
    "git_workspaces",
    "private_folder",
    "programs",
    "protocol_streams",
    "repository_files",
    "workspaces",
    "worktrees",
]
