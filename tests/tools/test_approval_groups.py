"""What an approval for a whole run covers: calls of one group, which no argument can lead to another program."""

from __future__ import annotations

import json

import pytest

from retinue.app.open import tool_dependencies
from retinue.tools import python, shell
from retinue.tools.dependencies import NoKeyValue, ToolOptions


def group(command: str, folder: str = "") -> str:
    """The group of a call of `shell`."""
    tool, _ = shell.tools(tool_dependencies(ToolOptions(), key_value=NoKeyValue(), home=None))
    return tool.prepare(json.dumps({"command": command, "working_dir": folder})).group


@pytest.mark.parametrize(
    ("approved", "other"),
    [
        ("git commit -m one", "git commit -am two"),
        ("git add a.txt", "git add -A b.txt"),
        ("git push origin", "git push -u origin main"),
        ("git add . && git commit -m one", "git add b && git commit --amend --no-edit"),
        ("mv -f a b", "mv -f c d"),
    ],
)
def test_always_covers_the_same_first_words(approved: str, other: str) -> None:
    assert group(approved) == group(other)


RUNS_WHAT_IS_NAMED = (
    ("git rebase main", "git rebase -x ./x main"),
    ("git bisect start", "git bisect run ./x"),
    ("git submodule status", "git submodule foreach ./x"),
    ("git push", "git push --receive-pack=./x"),
    ("git push origin main", "git push folder main"),
    ("git push", "git push -q folder"),
    ("git push origin", "git push --exec ./x origin"),
    ("git fetch origin", "git fetch --upload-pack ./x origin"),
    ("git fetch origin", "git fetch 'ext::sh -c ./x'"),
    ("git tag one", "git tag -s -u key two"),
    ("git init one", "git init --template=hooks two"),
    ("git merge one", "git merge -s ./x two"),
    ("git checkout one", "git checkout --recurse-submodules two"),
    ("git difftool", "git difftool -x ./x"),
    ("git add .", "git add --edit"),
    ("git clean -n", "git clean -fdx"),
    ("npm install", "npm install ./evil"),
    ("npm test", "npm test --script-shell=./x"),
    ("npm ci", "npm explore a -- ./x"),
    ("cargo build", "cargo build --config build.rustc='./x'"),
    ("go test", "go test -exec ./x"),
    ("go build", "go build -toolexec ./x"),
    ("pip install a", "pip install ./evil"),
    ("uv sync", "uv tool run evil"),
    ("yarn install", "yarn node evil.js"),
    ("kubectl get pods", "kubectl debug node/a"),
    ("tar -x -f a.tar", "tar -x -f b.tar -I ./x"),
    ("tar xf a.tar", "tar xfI a.tar ./x"),
    ("zip a.zip b", "zip a.zip b -T -TT ./x"),
    ("make", "make SHELL=./x"),
    ("env", "env ./x"),
    ("find . -exec ls", "find . -exec ./x"),
    ("xargs ls", "xargs ./x"),
    ("python3 -c 1", "python3 -c 2"),
)


@pytest.mark.parametrize(("approved", "other"), RUNS_WHAT_IS_NAMED, ids=lambda line: line)
def test_always_does_not_cover_a_command_that_starts_what_its_arguments_name(approved: str, other: str) -> None:
    assert group(approved) != group(other)


def test_always_for_a_command_holds_for_its_folder_alone() -> None:
    assert [group("make", folder) for folder in ("", "a", "b")] == ["make", "make in a", "make in b"]


def test_always_for_python_without_a_sandbox_holds_for_the_same_code_alone() -> None:
    options = ToolOptions(sandbox="off")
    (python_execute,) = python.tools(tool_dependencies(options, key_value=NoKeyValue(), home=None))

    assert python_execute.prepare('{"code": "1"}').group != python_execute.prepare('{"code": "2"}').group
