"""`retinue runs export`: a tree as JSON lines, and as one page of HTML."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, says, together
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run

HOSTILE = '</pre><script>alert("1")</script><img src=x onerror=alert(1)> & \x1b[31m \u202e \'quoted\' "double"'


ELEMENTS = "html|head|meta|title|style|body|h1|h2|h3|p|ul|li|a|span|div|table|tr|td|details|summary|pre"


def exported(home: Path) -> str:
    """A tree of three runs, one of which failed; its texts try to be HTML."""
    spawns = (calls("subagent", action="spawn", agent="dig", task=f"{where} {HOSTILE}") for where in ("up", "down"))
    script = Script().play(
        "main", together(*spawns), calls("subagent", action="wait", task_ids=["t_01", "t_02"]), says(HOSTILE)
    )
    script.play("dig", fails(ProviderError(HOSTILE, fault="bad_request"))).play("dig", says("I looked."), task="down ")
    return asyncio.run(finished_run(home, ScriptedProvider(script), f"Find {HOSTILE}"))


class Page(HTMLParser):
    """The elements, addresses and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_lines_have_each_run_and_each_event(cli: Cli, home: Path) -> None:
    run_id = exported(home)

    rows = [json.loads(line) for line in cli("runs", "export", run_id).stdout.splitlines()]

    runs = [row for row in rows if row["type"] == "run"]
    assert [(row["agent"], row["handle"], row["outcome"]) for row in runs] == [
        ("main", None, "completed"),
        ("dig", "t_01", "failed"),
        ("dig", "t_02", "completed"),
    ]
    assert [row["event"]["type"] for row in rows if row.get("run") == runs[2]["run_id"]] == [
        "accepted",
        "reply",
        "ended",
    ]
    assert rows[1]["event"]["task"] == f"Find {HOSTILE}"


def test_a_page_has_the_tree_the_times_and_every_conversation(cli: Cli, home: Path, folder: Path) -> None:
    run_id = exported(home)

    wrote = cli("runs", "export", run_id, "--format", "html", "-o", "tree.html")
    page = Page((folder / "tree.html").read_text(encoding="utf-8"))

    assert wrote == (0, "", "wrote 3 runs to tree.html\n")
    assert (page.tags.count("details"), page.tags.count("tr")) == (3, 3)
    assert ("id", f"run-{run_id}") in page.attributes
    for words in ("Tree", "Times", "Conversations", "I looked.", "dig t_01", "failed (model_error)", "call subagent"):
        assert words in page.text


def test_texts_of_a_page_are_data(cli: Cli, home: Path) -> None:
    text = cli("runs", "export", exported(home), "--format", "html").stdout
    page = Page(text)

    assert not [tag for tag in page.tags if not re.fullmatch(ELEMENTS, tag)]
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert {value[0] for name, value in page.attributes if name == "href" and value} == {"#"}
    assert '</pre><script>alert("1")</script><img src=x onerror=alert(1)>' in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "default-src 'none'" in text


def test_an_unknown_format_is_bad_usage(cli: Cli, home: Path) -> None:
    failed = cli("runs", "export", "abcd", "--format", "pdf")

    assert (failed.code, "expected one of: jsonl, html" in failed.stderr) == (2, True)
