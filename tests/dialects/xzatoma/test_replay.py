"""`retinue replay`: flags, lines and exit codes, over runs of earlier processes."""

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.__main__ import main
from retinue.core.errors import ProviderError
from retinue.core.text import rfc3339
from retinue.core.usage import Usage
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers import scripted
from retinue.providers.scripted import fails, together
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.xzatoma.harness import KEEPS, XzatomaHarness, says, subagent, uses

FOUND = (says("It is the pool."), says("The pool is too small."))


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Replays:
    """The command over one state folder, and runs in it."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *flags: str) -> Ended:
        return self.does("replay", *flags)

    def does(self, *arguments: str) -> Ended:
        """Any command."""
        self._capsys.readouterr()
        code = main(list(arguments))
        said = self._capsys.readouterr()
        return Ended(code, said.out, said.err)

    def story(self, settings: XzatomaSettings = KEEPS) -> dict[str, str]:
        """A tree of four subagents, one below another and one that fails; their ids by label, and when they began."""
        store = SqliteStore(self.home / "retinue.db")
        harness = XzatomaHarness(
            subagent("dig", "find it", allowed_tools=["grep"]),
            subagent("short", "look once", max_turns=1),
            subagent("bad", "break"),
            says("Thanks."),
            tasks={
                "find it": [
                    scripted.ScriptedReply(
                        calls=subagent("below", "look below").calls, usage=Usage(input=90, output=10)
                    ),
                    *FOUND,
                ],
                "look below": [together(says("Let me see."), uses("grep", pattern="\x1b[31mpool")), *FOUND],
                "look once": [uses("grep"), says("Enough.")],
                "break": [fails(ProviderError("gone", fault="bad_request"))],
            },
            store=store,
            settings=settings,
        )
        asyncio.run(harness.play())
        rows = harness.rows()
        store.close()
        self.started = {label: rfc3339(row.accepted_at) for label, row in rows.items()}
        self.ended = {label: rfc3339(row.progress.ended_at or 0) for label, row in rows.items()}
        return {label: row.run_id for label, row in rows.items()}


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replays:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_LOG", raising=False)
    monkeypatch.chdir(tmp_path)
    return Replays(tmp_path / "home", capsys)


@pytest.mark.promise("XZ-REPLAY", "XZ-KEPT")
def test_conversations_are_listed_newest_first_and_the_root_is_not(replay: Replays) -> None:
    ids = replay.story()

    assert replay("--list") == Ended(
        0,
        f"""\
Conversations (showing 10 starting at 0):

ID:     {ids["bad"]}
Label:  bad
Depth:  1
Status: failed
Turns:  0
Start:  {replay.started["bad"]}

ID:     {ids["short"]}
Label:  short
Depth:  1
Status: incomplete
Turns:  2
Start:  {replay.started["short"]}

ID:     {ids["below"]}
Label:  below
Depth:  2
Status: complete
Turns:  3
Start:  {replay.started["below"]}
Parent: {ids["dig"]}

ID:     {ids["dig"]}
Label:  dig
Depth:  1
Status: complete
Turns:  3
Start:  {replay.started["dig"]}
""",
        "",
    )
    page = replay("-l", "--limit", "1", "--offset", "2")
    assert page.out.startswith(f"Conversations (showing 1 starting at 2):\n\nID:     {ids['below']}\n")
    assert page.out.count("ID: ") == 1
    assert replay("-l", "--offset", "9").out == "Conversations (showing 10 starting at 9):\n"


@pytest.mark.promise("XZ-REPLAY")
def test_a_conversation_is_shown_whole(replay: Replays) -> None:
    ids = replay.story()

    assert replay("--id", ids["below"]) == Ended(
        0,
        f"""\
=== Conversation {ids["below"]} ===
Label: below
Depth: 2
Started: {replay.started["below"]}
Completed: {replay.ended["below"]}

Task: look below

=== Messages ===

--- Message 1 (user) ---
look below

--- Message 2 (assistant) ---
Let me see.
Tool call: grep {{"pattern":"\\u001b[31mpool"}}

--- Message 3 (tool) ---
2 lines about ␛[31mpool

--- Message 4 (assistant) ---
It is the pool.

--- Message 5 (user) ---
Summarize your findings concisely

--- Message 6 (assistant) ---
The pool is too small.

=== Metadata ===
Turns Used: 3
Tokens Consumed: 0
Status: complete
Max Turns Reached: false
Allowed Tools: ["grep"]
""",
        "",
    )
    short = replay("-i", ids["short"]).out
    assert short.endswith(
        "=== Metadata ===\nTurns Used: 2\nTokens Consumed: 0\nStatus: incomplete\nMax Turns Reached: true\n"
        'Allowed Tools: ["fetch", "grep", "file_ops"]\n'
    )
    assert "--- Message 2 (assistant) ---\n(no content)\nTool call: grep {}\n" in short
    assert "\nTokens Consumed: 100\n" in replay("-i", ids["dig"]).out


@pytest.mark.promise("XZ-REPLAY")
def test_the_tree_is_printed_for_all_roots_or_below_one_conversation(replay: Replays) -> None:
    ids = replay.story()

    assert replay("--tree") == Ended(
        0,
        f"""\
Conversation tree:
├─ {ids["bad"]} [bad] (depth=1, turns=0)
├─ {ids["short"]} [short] (depth=1, turns=2)
├─ {ids["dig"]} [dig] (depth=1, turns=3)
  ├─ {ids["below"]} [below] (depth=2, turns=3)
""",
        "",
    )
    assert replay("-t", "-i", ids["dig"]).out == (
        f"Conversation tree:\n├─ {ids['dig']} [dig] (depth=1, turns=3)\n"
        f"  ├─ {ids['below']} [below] (depth=2, turns=3)\n"
    )
    assert replay("-t", "-i", ids["below"]).out == (
        f"Conversation tree:\n├─ {ids['below']} [below] (depth=2, turns=3)\n"
    )
    assert replay("-t", "--limit", "1").out == f"Conversation tree:\n├─ {ids['bad']} [bad] (depth=1, turns=0)\n"


@pytest.mark.promise("XZ-REPLAY-ERRORS")
def test_unknown_conversations_and_invalid_flags_are_errors(replay: Replays) -> None:
    ids = replay.story()

    assert replay() == Ended(1, "", "Error: Must specify --list or --id\n")
    assert replay("--limit", "3") == Ended(1, "", "Error: Must specify --list or --id\n")
    for unknown in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", ids[""], ""):
        assert replay("--id", unknown) == Ended(1, "", f"Error: Conversation {unknown} not found\n")
        assert replay("--tree", "--id", unknown) == Ended(1, "", f"Error: Conversation {unknown} not found\n")
    assert replay("--list", "--limit", "-1").code == 2
    assert replay("--list", "--db-path", "nowhere.db") == Ended(2, "", "error: there is no database at nowhere.db\n")
    assert not Path("nowhere.db").exists()


@pytest.mark.promise("XZ-DROPPED", "XZ-REPLAY-ERRORS")
def test_conversations_without_persistence_are_not_listed(replay: Replays) -> None:
    ids = replay.story(XzatomaSettings())

    assert replay("--list").out == "Conversations (showing 10 starting at 0):\n"
    assert replay("--tree").out == "Conversation tree:\n"
    assert replay("--id", ids["dig"]) == Ended(1, "", f"Error: Conversation {ids['dig']} not found\n")
    assert replay.does("runs", "show", ids["dig"]) == Ended(
        2, "", f"error: the messages of run {ids['dig']} were not kept\n"
    )
    tree = replay.does("runs", "tree", ids[""]).out
    assert tree.endswith("5 runs, 12 turns, 90 tokens in, 10 out, cost unknown, of 4 children 1 failed\n")


@pytest.mark.promise("XZ-KEPT-COPY", "XZ-REPLAY")
def test_another_database_can_be_looked_into(replay: Replays, tmp_path: Path) -> None:
    copies = tmp_path / "copies.db"
    ids = replay.story(XzatomaSettings(persistence_enabled=True, persistence_path=str(copies)))

    assert replay("--list", "--db-path", str(copies)) == replay("--list")
    assert replay("-i", ids["below"], "--db-path", str(copies)) == replay("-i", ids["below"])
