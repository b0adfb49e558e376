"""`retinue worktrees`: list, show, apply and remove what sub-agents changed in git worktrees of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from retinue.cli.options import JsonFlag, option
from retinue.cli.output.terminal import answer_json, answer_lines, say, write_git_text
from retinue.core.text import plural, rfc3339

if TYPE_CHECKING:
    from retinue.local.worktrees import Worktrees, WorktreeView

app = typer.Typer(
    name="worktrees",
    help="What sub-agents changed in git worktrees of their own: list, show, apply, remove.",
    epilog="Examples:\n\nretinue worktrees list\n\nretinue worktrees show wt-0badcafe\n\n"
    "retinue worktrees apply wt-0badcafe\n\nretinue worktrees remove wt-0badcafe",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, its branch, or how the name begins.")]


@app.command("list", epilog="Examples:\n\nretinue worktrees list\n\nretinue worktrees list --json")
def list_worktrees(json: JsonFlag = False) -> int:
    """List the worktrees whose changes are kept, and those in which a run works, newest first."""
    views = _worktrees().list()
    if json:
        answer_json([_row(view) for view in views])
    elif not views:
        say("there are no worktrees")
    for view in () if json else views:
        answer_lines(f"{view.name}: {view.state}, {plural(view.files, 'file')}, {view.repository}")
    return 0


@app.command(epilog="Examples:\n\nretinue worktrees show wt-0badcafe\n\nretinue worktrees show wt-0badcafe > fix.patch")
def show(name: NameArgument, json: JsonFlag = False) -> int:
    """Print the changes of a worktree as a patch for `git apply`."""
    worktrees = _worktrees()
    from retinue.local.worktrees import readable_text

    view = worktrees.find(name)
    patch = worktrees.patch(view)
    if json:
        answer_json(_row(view) | {"patch": readable_text(patch)})
    elif not patch:
        say(f"{view.name} has no changes")
    else:
        write_git_text(patch)
    return 0


@app.command(
    "apply", epilog="Examples:\n\nretinue worktrees apply wt-0badcafe\n\nretinue worktrees apply wt-0badcafe --to ."
)
def apply_changes(
    name: NameArgument,
    to: Annotated[Path | None, option("--to", metavar="FOLDER", help="Another folder than the repository.")] = None,
    json: JsonFlag = False,
) -> int:
    """Apply the changes of a worktree to the files of its repository: all of them, or none.

    A text that changed in both places is merged. Exit status: 0 applied, 1 a file is in the way and nothing is changed.
    """
    worktrees = _worktrees()
    view = worktrees.find(name)
    done = worktrees.apply(view, to.resolve() if to is not None else Path(view.repository))
    from retinue.local.worktrees import readable_text

    written, conflicts = (tuple(map(readable_text, paths)) for paths in (done.written, done.conflicts))
    if json:
        answer_json({"name": view.name, "written": written, "conflicts": conflicts})
    elif done.conflicts:
        say(f"nothing is changed: {plural(len(done.conflicts), 'file')} changed in both places")
        answer_lines(*conflicts)
        say(f"git merge {view.branch} shows the conflicts")
    else:
        answer_lines(*written)
        say(f"applied {plural(len(done.written), 'file')}")
    return 1 if done.conflicts else 0


@app.command(epilog="Examples:\n\nretinue worktrees remove wt-0badcafe\n\nretinue worktrees remove wt-0badcafe --force")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names, branches, or how the names begin.")],
    force: Annotated[bool, option("--force", help="Remove one with a folder, in which a run may work.")] = False,
    json: JsonFlag = False,
) -> int:
    """Remove what the state folder keeps of worktrees. Branches in repositories stay."""
    worktrees = _worktrees()
    views = [worktrees.find(name) for name in names]
    for view in views:
        worktrees.remove(view, force=force)
    if json:
        answer_json({"removed": [view.name for view in views]})
    else:
        say(f"removed {plural(len(views), 'worktree')}")
    return 0


def _worktrees() -> Worktrees:
    from retinue.app.open import default_home
    from retinue.local.git_workspaces import git_program
    from retinue.local.worktrees import Worktrees

    home = default_home().absolute()
    return Worktrees(home, git_program((os.getcwd(), f"{home}-workspaces")))


def _row(view: WorktreeView) -> dict[str, Any]:
    return msgspec.structs.asdict(view) | {"changed_at": rfc3339(view.changed_at)}
