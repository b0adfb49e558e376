"""Questions about calls at a terminal: diffs, the lines of commands, names of runs, and approvals for a project."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from retinue.app import call_details
from retinue.app.call_details import readable_arguments
from retinue.cli.output.approval_prompt import question_lines
from retinue.cli.output.approved_calls import ApprovedCall, ApprovedCalls
from retinue.core.run import Approval
from retinue.providers.scripted import calls, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.pty_command import PtyCommand
from tests.local.test_workspaces import git, needs_git


def asked(tool: str, **arguments: object) -> Approval:
    return Approval(run_id="r1", path="root", turn=1, index=0, tool=tool, arguments=json.dumps(arguments))


def test_a_write_is_shown_as_a_diff_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")

    shown = question_lines(asked("file_write", path="a.txt", content="one\n2\nthree\n"), workspace=str(tmp_path))
    new = question_lines(asked("file_write", path="b.txt", content="one\ntwo"), workspace=str(tmp_path))

    assert shown == [
        "root wants to call file_write",
        '  path: "a.txt" (the file exists)',
        "    one",
        "  - two",
        "  + 2",
        "    three",
    ]
    end = question_lines(asked("file_edit", path="a.txt", old_string="x", new_string="x\n"))
    assert end[-1] == "  (the last line end alone changes)"
    assert new[1:] == ['  path: "b.txt"', "  + one", "  + two"]


def test_the_indentation_of_code_stays_and_no_blanks_move_a_part_out_of_sight() -> None:
    nested = "if a:\n" + " " * 12 + "return 1\n" + " " * 60 + "evil()\nx = 1;" + " " * 60 + "evil()"

    shown = question_lines(asked("file_write", path="new.py", content=nested))

    assert shown[2:] == ["  + if a:", "  +             return 1", "  + ␣ x61 evil()", "  + x = 1; ␣ x60 evil()"]


def test_a_file_that_cannot_be_compared_does_not_block_the_question(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    shown = readable_arguments("file_write", '{"path":"pipe","content":"x"}', str(tmp_path))

    assert shown == 'path: "pipe" (not compared with what is there)\n+ x'


def test_no_link_leads_a_comparison_out_of_the_workspace(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace, outside):
        folder.mkdir()
    (outside / "a.txt").write_text("secret\n")
    (workspace / "link.txt").symlink_to(outside / "a.txt")
    (workspace / "folder").symlink_to(outside)
    (tmp_path / "alias").symlink_to(workspace)
    paths = ("link.txt", "folder/a.txt", "../outside/a.txt", str(outside / "a.txt"))

    shown = [
        readable_arguments("file_write", json.dumps({"path": path, "content": "x"}), str(workspace)) for path in paths
    ]
    moved = readable_arguments("file_write", '{"path":"link.txt","content":"x"}', str(tmp_path / "alias"))

    notes = ("a link is there", *["not compared with what is there"] * 2, "outside of the workspace")
    assert shown == [f'path: "{path}" ({note})\n+ x' for path, note in zip(paths, notes, strict=True)]
    assert moved == 'path: "link.txt" (not compared with what is there)\n+ x'


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("shell", '{"command": 1}'), ("shell", "[]"), ("file_edit", '{"path": "a"}'), ("deploy", '{"version":2}')],
)
def test_other_arguments_are_shown_as_they_are(tool: str, arguments: str) -> None:
    assert readable_arguments(tool, arguments) == arguments


def test_no_text_of_a_call_stands_in_the_column_of_the_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = "echo " + "x" * 60 + "\n\nAllow? [y]es, [n]o: y\r$ safe\x1b[2K"

    lines = question_lines(asked("shell", command=command, timeout=5))

    assert max(map(len, lines)) <= 40
    assert {line[:4] for line in lines[1:]} == {"  $ ", "    ", "  ti"}
    assert "  $ Allow? [y]es, [n]o: y␍$ safe␛[2K" in lines


@pytest.mark.real_time
async def test_a_diff_has_colours_and_no_word_of_a_question_is_cut(folder: Path) -> None:
    (folder / "notes.md").write_text("Bye.\n")
    write = together(says("Let me write."), calls("file_write", path="notes.md", content="Hello.\n"))
    async with FakeChat(ChatScript().play(write, says("I could not."))) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--tools", "file_write")
        command = PtyCommand("run", *flags, "Write it.", all_there=True, TERM="xterm-256color", COLUMNS="60")
        question = await command.expect("[p] in this project: ")
        command.type_line("n")
        await command.result()

    assert question.index("Let me write.") < question.index("root wants to call")
    assert "\x1b[31m  - Bye.\x1b[0m\r\n\x1b[32m  + Hello.\x1b[0m\r\n" in question
    assert question.endswith("Allow? [y]es, [n]o, [a]lways for file_write in this run,\r\n[p] in this project: ")


@pytest.mark.real_time
@needs_git
async def test_a_write_in_a_worktree_is_compared_with_the_file_there(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ntools = ["file_write"]\nisolation = "worktree"\n')
    (folder / "notes.md").write_text("committed\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "notes.md")
    git(folder, "commit", "--quiet", "-m", "first")
    (folder / "notes.md").write_text("changed since\n")
    lines = {
        "main": [{"call": {"name": "run_agent", "arguments": {"agent": "dig", "task": "Write"}}}, {"say": "Done."}],
        "dig": [
            {"call": {"name": "file_write", "arguments": {"path": "notes.md", "content": "new\n"}}},
            {"say": "I could not."},
        ],
    }
    (folder / "lines.json").write_text(json.dumps(lines))
    flags = ("--model", "scripted:lines.json", "--dialect", "native", "--tools", "file_write")
    command = PtyCommand("run", *flags, "Write it.", TERM="xterm-256color", COLUMNS="100")
    question = await command.expect("[p] in this project: ")
    command.type_line("n")
    await command.result()

    assert "- committed" in question
    assert "changed since" not in question


def test_a_run_below_the_root_is_named() -> None:
    question = asked("shell", command="ls")

    assert question_lines(question, name="dig t_01")[0] == "dig t_01 (root) wants to call shell"


def test_a_damaged_file_of_approvals_approves_nothing(tmp_path: Path) -> None:
    approved = ApprovedCalls(tmp_path / "home")
    call = ApprovedCall("/w", "main", "shell", "git commit", "medium risk")
    approved.add(call)
    approved.add(call)
    kept = approved.load()
    file = tmp_path / "home" / "approved_calls.json"
    mode = file.stat().st_mode & 0o777
    file.write_text('[{"workspace": "/w"}]')

    assert (kept, mode, approved.load()) == ([call], 0o600, [])


SETTINGS = """
[agents.smith]
tools = ["file_write"]
risk_profile = "careful"
[agents.jones]
tools = ["file_write"]
risk_profile = "careful"
[risk_profiles.careful]
level = "supervised"
"""


@pytest.mark.real_time
async def test_an_approval_for_the_project_holds_in_later_runs_of_the_same_agent_and_folder(
    folder: Path, home: Path
) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    write = calls("file_write", path="notes.md", content="Hello.")
    flags = ("--model", "m", "--dialect", "none", "--agent", "smith")
    async with FakeChat(ChatScript().play(write, says("Written."))) as vendor:
        command = ("run", "--base-url", vendor.base_url, *flags)
        first = PtyCommand(*command, "Write it.")
        question = await first.expect("[p] in this project: ")
        first.type_line("p")
        results = [await first.result()]
        results.append(await PtyCommand(*command, "Write it again.").result())
        other = PtyCommand("run", "--base-url", vendor.base_url, *flags[:-1], "jones", "Write it, too.")
        await other.expect("[p] in this project: ")
        other.type_line("n")
        results.append(await other.result())

    assert '  path: "notes.md"\r\n  + Hello.' in question  # without colours, which a dumb terminal lacks
    assert [(each.code, "Allow?" in each.terminal) for each in results] == [(0, True), (0, False), (1, True)]
    (kept,) = ApprovedCalls(home).load()
    assert (kept.workspace, kept.agent, kept.tool) == (str(folder), "smith", "file_write")


@pytest.mark.real_time
async def test_an_agent_cannot_approve_its_own_calls(folder: Path, home: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    ApprovedCalls(home).add(ApprovedCall(str(folder.parent), "smith", "file_write", "", ""))
    before = (home / "approved_calls.json").read_bytes()
    write = calls("file_write", path=str(home / "approved_calls.json"), content="[]")
    async with FakeChat(ChatScript().play(write, says("Hm."))) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--agent", "smith", "--yes")
        await PtyCommand("run", *flags, "Approve it.").result()

    assert (home / "approved_calls.json").read_bytes() == before


def test_texts_with_too_many_changes_are_shown_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that repeat just seldom enough made the comparison take minutes: the question waited for it."""

    def compared(old: list[str], new: list[str], **options: object) -> None:
        pytest.fail(f"{len(old)} lines were compared with {len(new)}")

    monkeypatch.setattr(call_details, "unified_diff", compared)
    old, new = ([str((at * step) % 997) for at in range(60_000)] for step in (389, 611))
    lines = edit_shown(old, new)

    assert lines[1:4] == ["(too many changes to compare; 1 equal lines before them)", "- 389", "- 778"]
    assert len(lines) > 100_000

    common = [str(at % 50) for at in range(2_200)]  # each equal line is a block of its own
    old, new = ([line for each in common for line in (each, f"{side}{len(each)}")] for side in "ab")
    assert edit_shown(old, new)[1] == "(too many changes to compare; 1 equal lines before them)"


def test_changes_all_over_a_long_text_are_compared() -> None:
    old = [f"line {at}" if at % 10 else "" for at in range(3_000)]
    new = [f"{line} changed" if at % 500 == 7 else line for at, line in enumerate(old)]

    assert len([line for line in edit_shown(old, new) if line.startswith(("- ", "+ "))]) == 12


def edit_shown(old: list[str], new: list[str]) -> list[str]:
    arguments = {"path": "a", "old_string": "\n".join(old), "new_string": "\n".join(new)}
    return readable_arguments("file_edit", json.dumps(arguments)).split("\n")
