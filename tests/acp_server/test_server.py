"""`retinue acp` as an editor sees it; every message is compared with the protocol's own models (`harness.py`)."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.providers.acp import AgentProgram
from retinue.providers.catalog import provider_config
from retinue.tools.dependencies import ToolOptions
from tests.acp_server.harness import Editor, Refused
from tests.mcp_client.test_tools import SERVER, behave, tool
from tests.providers.acp.harness import FULL, PYTHON

pytestmark = pytest.mark.real_time  # child processes

WRITE = {"call": {"name": "file_write", "arguments": {"path": "pool.toml", "content": "size = 10\n"}}}
ROOT = Path(retinue.__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_a_prompt_streams_text_calls_changes_and_the_plan(folder: Path) -> None:
    lines = [
        {"say": "Working.", "call": {"name": "task_create", "arguments": {"subject": "Fix the pool"}}},
        WRITE,
        {"call": {"name": "task_update", "arguments": {"id": "task_1", "status": "completed"}}},
        {"say": "Fixed."},
    ]
    with Editor(folder, *lines) as editor:
        answer = editor.prompt(editor.begin(), "Fix it.")

    assert answer["stopReason"] == "end_turn"
    assert answer["usage"]["totalTokens"] == answer["usage"]["inputTokens"] + answer["usage"]["outputTokens"]
    assert editor.text() == "Working.Fixed."
    assert (folder / "pool.toml").read_text() == "size = 10\n"
    calls = [each for each in editor.updates if each["sessionUpdate"] == "tool_call"]
    ends = [each for each in editor.updates if each["sessionUpdate"] == "tool_call_update"]
    assert [(each["title"], each["kind"]) for each in calls] == [
        ("task_create: Fix the pool", "other"),
        ("file_write: pool.toml", "edit"),
        ("task_update", "other"),
    ]
    diff = {"type": "diff", "path": str(folder / "pool.toml"), "oldText": None, "newText": "size = 10\n"}
    assert (calls[1]["content"], calls[1]["locations"]) == ([diff], [{"path": str(folder / "pool.toml")}])
    assert [(each["toolCallId"], each["status"]) for each in ends] == [
        (each["toolCallId"], "completed") for each in calls
    ]
    plans = [each["entries"] for each in editor.updates if each["sessionUpdate"] == "plan"]
    assert plans[-1] == [{"content": "Fix the pool", "priority": "medium", "status": "completed"}]
    (question,) = editor.asked
    assert (question["toolCall"]["toolCallId"], question["toolCall"]["content"]) == (calls[1]["toolCallId"], [diff])


def test_a_denied_call_is_not_made(folder: Path) -> None:
    with Editor(folder, WRITE, {"say": "Then not."}, answer="deny") as editor:
        editor.prompt(editor.begin(), "Write.")

    assert (editor.text(), (folder / "pool.toml").exists()) == ("Then not.", False)


@pytest.mark.parametrize(("mode", "made"), [("allow", True), ("deny", False)])
def test_a_mode_answers_in_place_of_the_person(folder: Path, mode: str, made: bool) -> None:
    with Editor(folder, WRITE, {"say": "Done."}) as editor:
        session = editor.begin()
        editor.ask("session/set_mode", sessionId=session, modeId=mode)
        editor.prompt(session, "Write.")

    assert (editor.asked, (folder / "pool.toml").exists()) == ([], made)


BEGIN_AND_WAIT = 'python3 -c \'import time; open("begun", "w"); time.sleep(60)\''


def test_a_cancel_ends_the_answer_and_the_next_prompt_goes_on(folder: Path) -> None:
    wait = {"call": {"name": "shell", "arguments": {"command": BEGIN_AND_WAIT}}}
    with Editor(folder, {"say": "One.", **wait}, {"say": "Two."}) as editor:
        session = editor.begin()
        editor.ask("session/set_mode", sessionId=session, modeId="allow")
        id = editor.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Wait."}])
        with pytest.raises(Refused, match="a prompt is in progress"):
            editor.prompt(session, "Another.")
        wait_for_the_program(editor, folder)
        editor.write({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
        cancelled = editor.result(id, "session/prompt")
        editor.ask("session/set_mode", sessionId=session, modeId="deny")  # a new run plays the lines from the first
        second = editor.prompt(session, "Go on.")

    assert (cancelled["stopReason"], second["stopReason"]) == ("cancelled", "end_turn")
    assert editor.text() == "One.One.Two."


def test_a_session_is_listed_and_loaded_by_another_process(folder: Path) -> None:
    with Editor(folder, {"say": "Blue."}, {"say": "Navy."}) as first:
        session = first.begin()
        first.prompt(session, "What is the colour?")
    with Editor(folder) as second:
        second.ask("initialize", protocolVersion=1, clientCapabilities={})
        listed = second.ask("session/list", cwd=str(folder))["sessions"]
        elsewhere = second.ask("session/list", cwd="/srv")["sessions"]
        second.ask("session/load", sessionId=session, cwd=str(folder), mcpServers=[])
        shown = [(each["sessionUpdate"], each["content"]["text"]) for each in second.updates]
        with pytest.raises(Refused, match="there is no session 'acp-none'"):
            second.ask("session/load", sessionId="acp-none", cwd=str(folder), mcpServers=[])

    assert [(each["sessionId"], each["cwd"], each["title"]) for each in listed] == [
        (session, str(folder), "What is the colour?")
    ]
    assert elsewhere == []
    assert shown == [("user_message_chunk", "What is the colour?"), ("agent_message_chunk", "Blue.")]


def test_sessions_that_are_opened_at_the_same_time_count(folder: Path) -> None:
    with Editor(folder, {"say": "Hello."}) as editor:
        editor.ask("initialize", protocolVersion=1)
        ids = [editor.send("session/new", cwd=str(folder), mcpServers=[]) for _ in range(40)]
        answers = [editor.receive() for _ in ids]
        listed = editor.ask("session/list", cursor="9" * 5000)["sessions"]

    refused = [each["error"]["message"] for each in answers if "error" in each]
    assert refused == ["32 sessions are open: close one with session/close"] * 8
    assert listed == []


def test_after_kill_9_a_session_is_loaded_with_what_was_said(folder: Path) -> None:
    wait = {"call": {"name": "shell", "arguments": {"command": BEGIN_AND_WAIT}}}
    with Editor(folder, {"say": "Half.", **wait}) as first:
        session = first.begin()
        first.ask("session/set_mode", sessionId=session, modeId="allow")
        first.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Wait."}])
        wait_for_the_program(first, folder)
        first.process.kill()
    with Editor(folder, {"say": "Never."}, agents={}) as second:
        second.ask("initialize", protocolVersion=1, clientCapabilities={})
        second.ask("session/load", sessionId=session, cwd=str(folder), mcpServers=[])

    assert [each["content"]["text"] for each in second.updates if "message_chunk" in each["sessionUpdate"]] == [
        "Wait.",
        "Half.",
    ]


def wait_for_the_program(editor: Editor, folder: Path) -> None:
    """Take updates until the program of `BEGIN_AND_WAIT` runs, which begins after the reply is stored."""
    for _ in range(100):
        if (folder / "begun").exists():
            return
        _poll(editor)
    pytest.fail("the program did not begin")


def _poll(editor: Editor) -> bool:
    """Take one update, if one comes within a moment."""
    try:
        line = editor._lines.get(timeout=1)
    except Exception:
        return False
    message: dict[str, Any] = json.loads(line or b"{}")
    if message.get("method") == "session/update":
        editor.updates.append(message["params"]["update"])
    return True


def test_images_and_resources_reach_the_model(folder: Path) -> None:
    blocks = [
        {"type": "text", "text": "Look at"},
        {"type": "resource_link", "uri": f"file://{folder}/a%20b.py", "name": "a b.py"},
        {"type": "resource", "resource": {"uri": "file:///srv/pool.toml", "text": "size = 10"}},
        {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"\x89PNG....").decode()},
    ]
    with Editor(folder, {"say": "Seen."}) as editor:
        session = editor.begin()
        editor.ask("session/prompt", sessionId=session, prompt=blocks)
        refused: list[str] = []
        for block in (
            {"type": "audio", "data": "", "mimeType": "audio/wav"},
            {"type": "image", "data": "?"},
            {"type": "text", "text": " "},
        ):
            with pytest.raises(Refused) as error:
                editor.ask("session/prompt", sessionId=session, prompt=[block])
            refused.append(str(error.value))
        shown = editor.ask("session/load", sessionId=session, cwd=str(folder), mcpServers=[])

    assert shown["modes"]["currentModeId"] == "ask"
    told = next(each for each in editor.updates if each["sessionUpdate"] == "user_message_chunk")
    assert told["content"]["text"] == f"Look at [{folder}/a b.py] [/srv/pool.toml]"
    assert [each.partition(":")[0] for each in refused] == ["prompt", "prompt", "prompt"]


def test_limits_and_failures_have_different_texts(folder: Path) -> None:
    call: dict[str, Any] = {"call": {"name": "task_list", "arguments": {}}}
    with Editor(folder, call, {**call, "say": "more"}, call, flags=["--max-turns", "2"]) as editor:
        session = editor.begin()
        stopped = editor.prompt(session, "Go.")
    with Editor(folder, {"fail": {"fault": "auth", "message": "no key"}}, flags=[]) as editor, pytest.raises(Refused):
        editor.prompt(editor.begin(), "Go.")

    assert stopped["stopReason"] in ("max_turn_requests", "end_turn")


def test_invalid_messages_are_answered_and_stdout_has_the_protocol_alone(folder: Path) -> None:
    with Editor(folder, {"say": "Still here."}) as editor:
        for line in (b"{", b"[]", b'{"jsonrpc":"2.0"}', b"x" * (17 << 20)):
            editor.write(line)
        errors = [editor.receive()["error"]["code"] for _ in range(4)]
        session = editor.begin()
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("nope", {}),
            ("session/prompt", {"sessionId": "x", "prompt": []}),
            ("session/prompt", {"sessionId": session, "prompt": "text"}),
            ("session/prompt", {"sessionId": session, "prompt": [5]}),
            ("session/new", {"cwd": "relative", "mcpServers": []}),
            ("session/new", {"cwd": "/", "mcpServers": []}),
            ("session/new", {"cwd": str(folder), "mcpServers": [{"name": "x", "type": "sse", "url": "http://x"}]}),
            ("session/set_mode", {"sessionId": session, "modeId": "yolo"}),
            ("session/set_config_option", {"sessionId": session, "configId": "effort", "value": "enormous"}),
            ("session/set_config_option", {"sessionId": session, "configId": "model", "value": 5}),
            ("session/load", {"sessionId": "../../etc", "cwd": str(folder), "mcpServers": []}),
        ]
        for method, params in wrong:
            editor.send(method, **params)
            assert "error" in editor.receive(), method
        options = editor.ask("session/set_config_option", sessionId=session, configId="effort", value="high")
        editor.prompt(session, "Are you there?")
        editor.ask("session/close", sessionId=session)

    assert errors == [-32700, -32600, -32600, -32600]
    assert next(each["currentValue"] for each in options["configOptions"] if each["id"] == "effort") == "high"
    assert editor.text() == "Still here."


def test_mcp_servers_of_the_editor_are_tools_of_the_agent(folder: Path) -> None:
    behave(folder.parent, tool("echo", annotations={"readOnlyHint": True}))
    server = {
        "name": "team",
        "command": sys.executable,
        "args": [str(SERVER), str(folder.parent / "behaviour.json")],
        "env": [],
    }
    with Editor(folder, {"call": {"name": "mcp__team__echo", "arguments": {"a": 1}}}, {"say": "Done."}) as editor:
        editor.prompt(editor.begin(mcpServers=[server]), "Use it.")

    (end,) = [each for each in editor.updates if each["sessionUpdate"] == "tool_call_update"]
    assert end["status"] == "completed", end


async def test_retinue_is_the_agent_of_another_retinue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    lines = [{"say": "I write.", **WRITE}, {"say": "Written."}]
    script = folder.parent / "lines.json"
    script.write_text(json.dumps({"main": lines}))
    site = [path for path in sys.path if path.endswith("site-packages")]
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *site]))
    monkeypatch.setenv("RETINUE_HOME", str(folder.parent / "inner"))
    command = (PYTHON, "-m", "retinue", "acp", "--model", f"scripted:{script}")
    program = AgentProgram(command=command, env=("PYTHONPATH", "RETINUE_HOME", "RETINUE_CONFIG_HOME"), sandbox=False)
    config = provider_config("inner", wire="acp", program=program)
    async with retinue.open(
        model="inner:default",
        provider_configs=[config],
        policy=FULL,
        home=retinue.MEMORY,
        dialects=(),
        tool_options=ToolOptions(sandbox="off"),
    ) as r:
        outcome = await r.run("Write the file.")

    assert (outcome.ok, outcome.text, outcome.turns) == (True, "Written.", 2), outcome
    assert (folder / "pool.toml").read_text() == "size = 10\n"
    assert outcome.usage.total > 0
