"""`retinue runs export`: a tree as JSON lines, and as one page of HTML."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from retinue.core.errors import ProviderError
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, says, together
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run

HOSTILE = '</pre><script>alert("1")</script><img src=x onerror=alert(1)> & \x1b[31m \u202e \'quoted\' "double"'


ELEMENTS = "html|head|meta|title|style|body|a|header|h1|span|button|main|p|script"


def exported(home: Path) -> str:
    """A tree of three runs, one of which failed; its texts try to be HTML."""
    spawns = (calls("subagent", action="spawn", agent="dig", task=f"{where} {HOSTILE}") for where in ("up", "down"))
    script = Script().play(
        "main", together(*spawns), calls("subagent", action="wait", task_ids=["t_01", "t_02"]), says(HOSTILE)
    )
    script.play("dig", fails(ProviderError(HOSTILE, fault="bad_request"))).play("dig", says("I looked."), task="down ")
    return asyncio.run(finished_run(home, ScriptedProvider(script), f"Find {HOSTILE}"))


class Page(HTMLParser):
    """The elements, attributes, scripts and styles of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._inside = ""
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()

    @property
    def data(self) -> Any:
        """What the page shows."""
        return json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        match self._inside:
            case "script":
                self.scripts.append(data)
            case "style":
                self.styles.append(data)
            case _:
                pass


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
    data = Page((folder / "tree.html").read_text(encoding="utf-8")).data

    assert wrote == (0, "", "wrote 3 runs to tree.html\n")
    rows = data["paths"][f"/runs/{run_id}/tree"]["items"]
    assert [(row["run_id"] == data["root"], row["handle"], row["outcome"]) for row in rows] == [
        (True, None, "completed"),
        (False, "t_01", "failed"),
        (False, "t_02", "completed"),
    ]
    last = data["paths"][f"/runs/{rows[2]['run_id']}/transcript"]["items"]
    assert [(entry["kind"], entry["text"]) for entry in last[1:2]] == [("reply", "I looked.")]
    assert {span["run_id"] for span in data["paths"][f"/runs/{run_id}/timeline"]["items"]} == {
        row["run_id"] for row in rows
    }


def test_texts_of_a_page_are_data(cli: Cli, home: Path) -> None:
    text = cli("runs", "export", exported(home), "--format", "html").stdout
    page = Page(text)

    assert not [tag for tag in page.tags if not re.fullmatch(ELEMENTS, tag)]
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert {value[0] for name, value in page.attributes if name == "href" and value} == {"#"}
    assert page.data["paths"][f"/runs/{page.data['root']}"]["task"] == f"Find {HOSTILE}"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_the_policy_of_a_page_allows_its_own_script_and_style_alone(cli: Cli, home: Path) -> None:
    page = Page(cli("runs", "export", exported(home), "--format", "html").stdout)

    (policy,) = [value for name, value in page.attributes if name == "content" and value and "default-src" in value]
    script, style = page.scripts[1], page.styles[0]
    assert policy == (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert len(page.scripts) == 2
    assert ("type", "application/json") in page.attributes


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_an_unknown_format_is_bad_usage(cli: Cli, home: Path) -> None:
    failed = cli("runs", "export", "abcd", "--format", "pdf")

    assert (failed.code, "expected one of: jsonl, html" in failed.stderr) == (2, True)
