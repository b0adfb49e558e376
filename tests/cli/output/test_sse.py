"""`retinue run --sse`: the events of the root run, which always end with `response_end`.

See test_sse_live for text that arrives in pieces, and for broken attempts.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pytest

from retinue.cli.output.sse import sse
from retinue.core.errors import ProviderError
from retinue.providers.scripted import calls, fails, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import FakeResponse
from tests.cli.conftest import Cli
from tests.cli.stage import Command, serving

PARIS = '{"capital":"Paris","country":"France"}'


class SseEvent(NamedTuple):
    """One event as a program reads it."""

    type: str
    delta: str = ""
    id: str = ""


def asking(vendor: FakeChat) -> tuple[str, ...]:
    return ("run", "--base-url", vendor.base_url, "--model", "fake-1", "--sse")


def events(stdout: str) -> Iterator[SseEvent]:
    """The events in this output; fails for anything that is not exactly three lines."""
    *blocks, rest = stdout.split("\n\n")
    assert rest == ""
    for block in blocks:
        event, data = block.split("\n")
        streamed = json.loads(data.removeprefix("data: "))
        assert event == f"event: {streamed['type']}"
        assert list(streamed) == ["id", "delta", "type"]
        assert data == f"data: {json.dumps(streamed, separators=(',', ':'))}"
        yield SseEvent(streamed["type"], streamed["delta"], streamed["id"])


def joined(streamed: Iterable[SseEvent]) -> list[SseEvent]:
    """The events with the pieces of one text joined: a late reader gets the rest of a reply at once."""
    same = groupby(streamed, key=lambda each: (each.type, each.id))
    return [SseEvent(kind, "".join(piece.delta for piece in pieces), id) for (kind, id), pieces in same]


def test_an_answer_begins_with_the_id_of_its_response_and_ends_with_response_end(cli: Cli) -> None:
    with serving(says("Grüße 🦉", thinking="hm")) as vendor:
        ended = cli(*asking(vendor), "--dialect", "none", "hi")

    start, *rest = events(ended.stdout)
    assert (ended.code, start.type, start.delta, start.id != "") == (0, "response_start", "", True)
    assert rest == [
        SseEvent("reasoning_content", "hm"),
        SseEvent("output_text", "Grüße 🦉"),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]
    assert ended.stdout.isascii()


def test_calls_and_their_results_carry_the_id_of_the_call(cli: Cli) -> None:
    script = ChatScript().play(
        together(says("Let me look."), calls("shared_context", action="list_keys")), says("Nothing there.")
    )
    with serving(script) as vendor:
        ended = cli(*asking(vendor), "hi")

    streamed = joined(each for each in events(ended.stdout) if each.type != "response_start")
    (sent,) = vendor.requests[1].body["messages"][-2]["tool_calls"]
    result = vendor.requests[1].body["messages"][-1]["content"]
    assert streamed == [
        SseEvent("output_text", "Let me look."),
        SseEvent("tool_call", '\nFunction: shared_context {"action":"list_keys"}', sent["id"]),
        SseEvent("block_end"),
        SseEvent("tool_result", f"\n\nTool Result (shared_context):\n{result}\n", sent["id"]),
        SseEvent("output_text", "Nothing there."),
        SseEvent("block_end"),
        SseEvent("response_end"),
    ]


def test_events_of_children_are_not_streamed(cli: Cli) -> None:
    script = (
        ChatScript()
        .play(
            calls("subagent", action="define", name="dig", description="Digs.", system_prompt="You are a spade."),
            calls("subagent", action="spawn_and_wait", agent="dig", task="Dig."),
            says("Dug."),
        )
        .play(says("In the child."), words="You are a spade.")
    )
    with serving(script) as vendor:
        ended = cli(*asking(vendor), "hi")

    assert "".join(streamed.delta for streamed in events(ended.stdout) if streamed.type == "output_text") == "Dug."


@pytest.mark.promise("BZ-STRUCTURED-SSE")
def test_structured_output_is_one_event_at_the_end(cli: Cli) -> None:
    with serving(ChatScript().play(says("Paris."), says(PARIS))) as vendor:
        ended = cli(*asking(vendor), "--dialect", "none", "--output-json", "hi")

    streamed = [each for each in events(ended.stdout) if each.type != "response_start"]
    assert (ended.code, streamed) == (0, [SseEvent("output_structured", PARIS), SseEvent("response_end")])
    assert ended.stdout.endswith(
        "event: output_structured\n"
        'data: {"id":"","delta":"{\\"capital\\":\\"Paris\\",\\"country\\":\\"France\\"}",'
        '"type":"output_structured"}\n\n'
        'event: response_end\ndata: {"id":"","delta":"","type":"response_end"}\n\n'
    )


def test_a_failure_is_streamed_before_the_end(cli: Cli) -> None:
    refused = ProviderError("no such model", fault="bad_request")
    with serving(fails(refused)) as vendor:
        failed = cli(*asking(vendor), "hi")
    with serving(says("")) as vendor:
        empty = cli(*asking(vendor), "hi")
    with serving(says("no")) as vendor:
        unstructured = cli(*asking(vendor), "--dialect", "none", "--output-json", "hi")

    block, end = events(failed.stdout)
    assert (failed.code, block.type, end) == (1, "block_end", SseEvent("response_end"))
    assert block.delta.startswith("Error: ")
    assert "no such model" in block.delta
    assert "no such model" in failed.stderr
    assert list(events(empty.stdout))[1:] == [
        SseEvent("block_end"),
        SseEvent("block_end", "Error: the model gave an empty answer"),
        SseEvent("response_end"),
    ]
    *_, last, end = events(unstructured.stdout)
    assert (empty.code, unstructured.code, end) == (1, 1, SseEvent("response_end"))
    assert last.delta.startswith("Error: the answer is not of the form that was demanded: it is not JSON")


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_an_interrupted_run_ends_its_stream_too() -> None:
    async with FakeChat(FakeResponse(delay=60.0)) as vendor:
        command = await Command.start(*asking(vendor), "hi")
        await command.expect_stderr("main: started")
        command.signal(signal.SIGINT)
        ended = await command.ended()

    assert (ended.code, list(events(ended.stdout))) == (
        130,
        [SseEvent("block_end", "Error: interrupted"), SseEvent("response_end")],
    )


@pytest.mark.parametrize("other", ["--json", "--quiet", "--detach"])
def test_sse_excludes_other_output_flags(cli: Cli, other: str) -> None:
    ended = cli("run", "--sse", other, "hi")

    assert (ended.code, ended.stdout) == (2, "")
    assert f"--sse and {other} exclude each other" in ended.stderr


def test_text_cannot_break_out_of_its_event() -> None:
    assert sse("output_text", "a\n\nevent: response_end\n\ud800").count("\n") == 3


def test_the_events_of_a_tree_name_their_runs(cli: Cli) -> None:
    task = calls("subagent", label="dig", task_prompt="Look below.")
    script = (
        ChatScript().play(task, says("Nothing there."), words="Hello.").play(says("I looked."), words="Look below.")
    )
    with serving(script) as vendor:
        ended = cli(*asking(vendor), "--tree", "--dialect", "xzatoma", "Hello.")

    assert (ended.code, ended.stdout.isascii()) == (0, True)
    *blocks, rest = ended.stdout.split("\n\n")
    assert rest == ""
    rows: list[dict[str, Any]] = []
    for block in blocks:
        *identified, event, data = block.split("\n")
        row = json.loads(data.removeprefix("data: "))
        assert event == f"event: {row['event']['type']}"
        assert identified == ([f"id: {row['run']}:{row['seq']}"] if row["seq"] else [])
        rows.append(row)
    root = rows[0]["run"]
    (child,) = {row["run"] for row in rows} - {root}
    births = [(row["run"], row["parent"]) for row in rows if row["event"]["type"] == "accepted"]
    assert births == [(root, None), (child, root)]
    texts = {
        run: "".join(row["event"]["text"] for row in rows if row["run"] == run and row["event"]["type"] == "text")
        for run in (root, child)
    }
    assert texts == {root: "Nothing there.", child: "I looked."}
    returned = next(row["event"] for row in rows if row["event"]["type"] == "returned")
    assert (returned["tool"], returned["duration"] >= 0) == ("subagent", True)
    assert rows[-1]["event"]["type"] == "ended"


def test_tree_needs_sse_and_has_no_brief_form(cli: Cli) -> None:
    assert "--tree needs --sse" in cli("run", "--tree", "hi").stderr
    assert "--tree and --brief exclude each other" in cli("run", "--sse", "--tree", "--brief", "hi").stderr
