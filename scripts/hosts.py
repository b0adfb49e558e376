"""Try retinue with real programs offline: MCP hosts delegate a task to it, and agent programs are its children.

`make hosts` installs the pinned versions of these programs with npm into a cache folder, starts a model server on this
machine that speaks the API of each, and prints one line for each trial. It is skipped where npm is missing. The
conformance suite of the Model Context Protocol, its inspector and FastMCP's client are tried, too (`mcp_clients.py`)::

    python scripts/hosts.py            # all
    python scripts/hosts.py codex      # the trials whose names contain one of these words
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import mcp_clients

PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.327",
    "codex": "@openai/codex@0.169.0",
    "opencode": "opencode-ai@1.18.33",
    "gemini": "@google/gemini-cli@0.61.0",
    "claude-code-acp": "@zed-industries/claude-code-acp@0.16.2",
    "codex-acp": "@zed-industries/codex-acp@0.16.0",
}
"""The package of each program. Without a version, npm on an older Node installs an old one without a word."""

SECONDS = 180
SAVING_SECONDS = 3
"""Some agent programs write what happened to the file of their session only a moment later."""

TOOL = "run_agent"
TASK = "Count the grumpy owls."
ANSWER = "There are 4711 grumpy owls."
"""What the sub-agent says, and nothing else does."""

REPEATED = f"The agent says: {ANSWER}"
"""What the model says once it has read that."""

PROMPT = f"Delegate this task with the tool {TOOL}, and repeat its answer: {TASK}"

WRITING = "Write one line into the file"
WRITTEN = "The file was dealt with."
"""What the model says when it has read what became of its call."""

WRITERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "write_file": lambda path: {"file_path": path, "content": "owls\n"},
    "Write": lambda path: {"file_path": path, "content": "owls\n"},
    "write": lambda path: {"filePath": path, "content": "owls\n"},
    "exec_command": lambda path: {"cmd": f"echo owls > {path}", "sandbox_permissions": "require_escalated"},
}
"""The tools of agent programs that write a file, and the arguments for a path."""


# ---- the model server ------------------------------------------------------------------------------------------------


class ModelServer(ThreadingHTTPServer):
    """Speaks Anthropic's messages, OpenAI's responses and chat completions, and Gemini's API.

    The model calls the delegation tool once, and then repeats what the tool has answered. Asked to write a file, it
    calls the tool that writes, and then says that this is done. Else it answers at once.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []
        self.after_calls: list[str] = []
        """The bodies of requests with the result of a call that writes."""
        self.is_held = False
        """Whether such requests are left without an answer."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that a killed client has closed."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    @property
    def _model(self) -> ModelServer:
        assert isinstance(self.server, ModelServer)
        return self.server

    def do_GET(self) -> None:
        self._model.requests.append(f"GET {self.path}")
        self._send(b'{"data":[]}', "application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._model.requests.append(f"POST {self.path}")
        try:
            request: dict[str, Any] = json.loads(body)
        except ValueError:
            request = {}
        if _has_written(body.decode("utf-8", "replace")):
            self._model.after_calls.append(body.decode("utf-8", "replace"))
            while self._model.is_held:
                time.sleep(0.1)
        streams = request.get("stream") or "streamGenerateContent" in self.path
        for end, speak in WIRES.items():
            if end in self.path:
                events = list(speak(request, _action(request)))
                break
        else:
            self._send(b"{}", "application/json")
            return
        if not streams:
            self._send(json.dumps(events[-1][1]).encode(), "application/json")
            return
        named = not any(end in self.path for end in ("enerateContent", "chat/completions"))
        lines = [(f"event: {name}\n" if named else "") + f"data: {json.dumps(data)}\n\n" for name, data in events[:-1]]
        if "chat/completions" in self.path:
            lines.append("data: [DONE]\n\n")
        self._send("".join(lines).encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Action:
    """What the model does: say a text, or call a tool under the name that the program gave it."""

    text: str = ""
    tool: str = ""
    arguments: dict[str, str] = field(default_factory=lambda: {"task": TASK})


def _action(request: Mapping[str, Any]) -> Action:
    text = json.dumps(request)
    names = list(_tool_names(request.get("tools")))
    tools = [name for name in names if name.endswith(TOOL)]
    writers = [name for name in WRITERS if name in names]
    wanted = re.search(rf"{WRITING} (\S+\.txt)", text)
    if wanted and writers:
        arguments = WRITERS[writers[0]](wanted[1])
        return Action(text=WRITTEN) if _has_written(text) else Action(tool=writers[0], arguments=arguments)
    if ANSWER in text:
        return Action(text=REPEATED)
    return Action(tool=tools[0]) if tools and TASK in text else Action(text="Nothing to delegate.")


def _has_written(text: str) -> bool:
    """Whether a request has the result of a call that writes: a key of its JSON, not a word in a text."""
    return (
        WRITING in text
        and re.search(r'"type": ?"(tool_result|function_call_output)"|"functionResponse": ?\{|"role": ?"tool"', text)
        is not None
    )


def _tool_names(tools: Any) -> Iterator[str]:
    """All names in a list of tools, whatever the API; those in a name space, too."""
    for each in _tables(tools):
        if isinstance(name := each.get("name"), str):
            yield name
        for key in ("function", "functionDeclarations", "tools"):
            yield from _tool_names(each.get(key))


def _tables(values: Any) -> list[dict[str, Any]]:
    """The objects in a list, or the object itself."""
    found = cast("list[Any]", values) if isinstance(values, list) else [values]
    return [each for each in found if isinstance(each, dict)]


Events = Iterator[tuple[str, dict[str, Any]]]


def anthropic(request: Mapping[str, Any], action: Action) -> Events:
    """The events of a message; the last one is the whole message."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": request.get("model", "m")}
    usage = {"input_tokens": 10, "output_tokens": 5}
    if action.tool:
        block: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": action.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(action.arguments)}
        whole = {**block, "input": action.arguments}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": action.text}
        whole = {"type": "text", "text": action.text}
    stop = {"stop_reason": "tool_use" if action.tool else "end_turn", "stop_sequence": None}
    started: dict[str, Any] = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield "message_start", {"type": "message_start", "message": started}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    yield "message_delta", {"type": "message_delta", "delta": stop, "usage": usage}
    yield "message_stop", {"type": "message_stop"}
    yield "", {**head, "content": [whole], **stop, "usage": usage}


def responses(request: Mapping[str, Any], action: Action) -> Events:
    """The events of a response; the last one is the whole response."""
    if action.tool:
        space = _name_space(request.get("tools"), action.tool)
        item: dict[str, Any] = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": action.tool,
            "arguments": json.dumps(action.arguments),
            "status": "completed",
            **({"namespace": space} if space else {}),
        }
    else:
        content: list[dict[str, Any]] = [{"type": "output_text", "text": action.text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": request.get("model", "m")}
    yield "response.created", {"type": "response.created", "response": {**head, "status": "in_progress", "output": []}}
    yield "response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield "response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}
    whole = {**head, "status": "completed", "output": [item], "usage": usage}
    yield "response.completed", {"type": "response.completed", "response": whole}
    yield "", whole


def _name_space(tools: Any, name: str) -> str:
    """The name space in which Codex offers the tools of a server."""
    for each in _tables(tools):
        if each.get("type") == "namespace" and name in _tool_names(each.get("tools")):
            return str(each.get("name", ""))
    return ""


def chat(request: Mapping[str, Any], action: Action) -> Events:
    """The chunks of a chat completion; the last one is the whole completion."""
    function = {"name": action.tool, "arguments": json.dumps(action.arguments)}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": action.text or None, **({"tool_calls": [call]} if action.tool else {})}
    end = "tool_calls" if action.tool else "stop"
    head = {"id": "c_1", "created": 1, "model": request.get("model", "m")}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    chunk = {**head, "object": "chat.completion.chunk"}
    yield "", {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    yield "", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": usage}
    choice = {"index": 0, "message": message, "finish_reason": end}
    yield "", {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def gemini(request: Mapping[str, Any], action: Action) -> Events:
    """The one chunk of an answer, twice: streamed, and as the whole."""
    call: dict[str, Any] = {"functionCall": {"name": action.tool, "args": action.arguments}}
    part = call if action.tool else {"text": action.text}
    schema = request.get("generationConfig", {}).get("responseJsonSchema")
    if schema:  # Gemini CLI asks a small model first which model it shall use
        part = {"text": json.dumps({"reasoning": "simple", "model_choice": "flash", "complexity_score": 1})}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}
    yield "", answer
    yield "", answer


WIRES: dict[str, Callable[[Mapping[str, Any], Action], Events]] = {
    "/messages": anthropic,
    "/responses": responses,
    "/chat/completions": chat,
    "enerateContent": gemini,
}


V = TypeVar("V")

# ---- trials ----------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """A program with a home folder of its own, in an empty project."""

    folder: Path
    model: ModelServer
    programs: Path
    """The folder of the installed programs."""
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def write(self, path: str, content: object) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))

    def environment(self) -> dict[str, str]:
        """Nothing of the user's, no telemetry, and no addresses but those of this machine."""
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local/share"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "CI": "1",
            "DO_NOT_TRACK": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_TELEMETRY_ENABLED": "false",
            "RETINUE_HOME": str(self.folder / "state"),
            "RETINUE_CONFIG_HOME": str(self.folder / "nothing"),
            **self.variables,
        }

    def repeats(self, *command: str) -> str:
        """What is wrong with the output of a command that should repeat the answer."""
        return "" if REPEATED in self.run(*command) else "the answer was not repeated"

    def run(self, *command: str) -> str:
        """What a command prints, at most so many seconds long."""
        ended = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        with (self.folder / "output.txt").open("a") as file:
            file.write(f"$ {' '.join(command)}\n{ended.stdout}\n---\n{ended.stderr}\n")
        return ended.stdout

    @contextmanager
    def started(self, *command: str) -> Generator[subprocess.Popen[str]]:
        """A program at work, which is killed at the end of the block."""
        with (self.folder / "output.txt").open("a") as errors:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def eventually(self, look: Callable[[], V], process: subprocess.Popen[str]) -> V:
        """What `look` returns as soon as it is not empty, or when the program has ended or the time is up."""
        until = time.monotonic() + SECONDS
        while not (found := look()) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        return found

    def server(self) -> list[str]:
        """The command of the MCP server, whose sub-agents play one line."""
        self.write("lines.json", {"*": [{"say": ANSWER}]})
        return [sys.executable, "-m", "retinue", "mcp", "--model", f"scripted:{self.folder}/lines.json"]

    def kept_by_the_server(self) -> dict[str, str]:
        """The variables that a host has to give to the server."""
        return {name: self.environment()[name] for name in ("RETINUE_HOME", "RETINUE_CONFIG_HOME")}


Work = Callable[[Trial], str]
"""Makes a trial; the text says what was wrong, and is empty if it works."""


def claude(trial: Trial) -> str:
    command, *arguments = trial.server()
    server = {"type": "stdio", "command": command, "args": arguments, "env": trial.kept_by_the_server()}
    trial.write("mcp.json", {"mcpServers": {"team": server}})
    trial.variables |= {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_KEY": "sk-test"}
    allowed = [
        "--strict-mcp-config",
        "--mcp-config",
        str(trial.folder / "mcp.json"),
        "--allowedTools",
        f"mcp__team__{TOOL}",
    ]
    return trial.repeats("claude", "-p", PROMPT, *allowed)


ODDITIES: Mapping[str, str] = {
    "plain": "---\nname: plain\ndescription: d\n---\nx",
    "colon": "---\nname: colon\ndescription: Use it when: a test fails\ntools: Read\n---\nx",
    "examples": '---\nname: examples\ndescription: Do. <example>user: "x"\\n</example>\n---\nx',
    "brackets": "---\nname: brackets\ndescription: [a] b\n---\nx",
    "unclosed": "---\nname: unclosed\ndescription: d\ntools: [Read, Bash\n---\nx",
    "star": "---\nname: star\ndescription: d\ntools: *\n---\nx",
    "mark": "\ufeff---\nname: mark\ndescription: d\n---\nx",
    "windows": "---\r\nname: windows\r\ndescription: d\r\n---\r\nx",
    "tabs": "---\nname:\ttabs\ndescription: d\ntools:\n\t- Read\n---\nx",
    "late": "---\nname: late\ndescription: d\n---  x",
    "inside": "---\nname: inside\ndescription: d\n ---\nx",
    "endless": "---\nname: endless\ndescription: d\n---",
    "twice": "---\nname: twice\nname: twice\ndescription: d\n---\nx",
    "SKILL": "---\nname: skill\ndescription: d\n---\nx",
    "raw": "---\nname: raw\ndescription: d\nsecond line\n---\nx",
    "nameless": "---\ndescription: d\n---\nx",
}
"""Agent files with the oddities of public collections."""


def claude_files(trial: Trial) -> str:
    """retinue loads every agent file that Claude Code loads."""
    for name, text in ODDITIES.items():
        trial.write(f"home/.claude/agents/{name}.md", text)
    trial.variables |= {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_KEY": "sk-test"}
    lines = trial.run("claude", "-p", "Hello.", "--output-format", "stream-json", "--verbose").splitlines()
    started = [json.loads(line) for line in lines if line.startswith('{"type":"system","subtype":"init"')]
    known = {name.lower() for name in ODDITIES}
    theirs = {name for message in started for name in message["agents"] if name in known}
    found = trial.run(*_retinue(trial, "agents", "check", "--json", str(trial.home / ".claude" / "agents")))
    ours = {agent["name"] for agent in json.loads(found or '{"agents": []}')["agents"]}
    print(f"        Claude Code loads {len(theirs)} of {len(ODDITIES)} odd files, retinue {len(ours)}", flush=True)
    if "plain" not in theirs:
        return "Claude Code did not list its agents"
    return f"only Claude Code loads {sorted(theirs - ours)}" if theirs - ours else ""


def codex(trial: Trial) -> str:
    command, *arguments = trial.server()
    variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in trial.kept_by_the_server().items())
    server = f"""
[mcp_servers.team]
command = {json.dumps(command)}
args = {json.dumps(arguments)}
env = {{ {variables} }}
required = true
"""
    _codex(trial, "", server)
    return trial.repeats("codex", "exec", "--skip-git-repo-check", PROMPT)


def _codex(trial: Trial, keys: str, sections: str) -> None:
    """The settings of Codex with the model server."""
    trial.write(
        "home/.codex/config.toml",
        f"""
{keys}
model = "fake"
model_provider = "fake"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.fake]
name = "fake"
base_url = "{trial.model.url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
{sections}
""",
    )
    trial.variables |= {"FAKE_KEY": "sk-test", "CODEX_HOME": str(trial.home / ".codex")}


def opencode(trial: Trial) -> str:
    trial.write(
        "project/opencode.json",
        {
            **_opencode(trial),
            "mcp": {
                "team": {
                    "type": "local",
                    "command": trial.server(),
                    "environment": trial.kept_by_the_server(),
                    "enabled": True,
                }
            },
        },
    )
    return trial.repeats("opencode", "run", "--model", "anthropic/claude-sonnet-4-5", PROMPT)


def _opencode(trial: Trial) -> dict[str, Any]:
    options = {"baseURL": f"{trial.model.url}/v1", "apiKey": "sk-test"}
    return {
        "model": "anthropic/claude-sonnet-4-5",
        "small_model": "anthropic/claude-sonnet-4-5",
        "share": "disabled",
        "autoupdate": False,
        "provider": {"anthropic": {"options": options}},
    }


def gemini_cli(trial: Trial) -> str:
    command, *arguments = trial.server()
    server = {"command": command, "args": arguments, "env": trial.kept_by_the_server(), "trust": True}
    _gemini(trial, {"mcpServers": {"team": server}})
    return trial.repeats("gemini", "--yolo", "--model", "gemini-2.5-flash", "-p", PROMPT)


def _gemini(trial: Trial, more: Mapping[str, Any]) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        **more,
    }
    trial.write("home/.gemini/settings.json", settings)
    trial.variables |= {"GEMINI_API_KEY": "test", "GOOGLE_GEMINI_BASE_URL": trial.model.url}


Prepare = Callable[[Trial], "Agent"]


class TrialFailed(Exception):
    """A trial cannot go on; the message is its failure."""


class Agent(NamedTuple):
    """An agent program that speaks the Agent Client Protocol."""

    command: Sequence[str]
    loses_sessions_for: float = 0
    """Seconds after its begin in which a session that is loaded is lost, by a fault of the program."""


def gemini_acp(trial: Trial) -> Agent:
    _gemini(trial, {})
    # Its file of a session is named after the minute, and overwritten by a session that is loaded in the same minute.
    return Agent([str(trial.programs / "gemini"), "--acp", "--model", "gemini-2.5-flash"], loses_sessions_for=60)


def opencode_acp(trial: Trial) -> Agent:
    trial.write("project/opencode.json", {**_opencode(trial), "permission": {"edit": "ask"}})
    return Agent([str(trial.programs / "opencode"), "acp"])


def claude_code_acp(trial: Trial) -> Agent:
    trial.variables |= {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_KEY": "sk-test", "IS_SANDBOX": "1"}
    return Agent([str(trial.programs / "claude-code-acp")])


def codex_acp(trial: Trial) -> Agent:
    _codex(trial, 'approval_policy = "on-request"\nsandbox_mode = "read-only"', "")
    return Agent([str(trial.programs / "codex-acp")])


def _child(trial: Trial, agent: Agent, task: str, *flags: str) -> list[str]:
    """The command of a run whose mind is an agent program."""
    names = sorted(trial.environment().keys() - {"PATH", "HOME", "LANG", "TERM"})
    lines = [
        "[providers.child]",
        'wire = "acp"',
        f"command = {json.dumps(agent.command)}",
        f"env = {json.dumps(names)}",
    ]
    trial.write("settings/retinue.toml", "\n".join([*lines, "sandbox = false", ""]))
    return _retinue(trial, "run", "--json", *flags, task)


def _retinue(trial: Trial, *arguments: str) -> list[str]:
    verb = [arguments[0], *([arguments[1]] if arguments[0] == "runs" else [])]
    settings = ["--config", str(trial.folder / "settings" / "retinue.toml")] if verb[-1] in ("run", "resume") else []
    return [sys.executable, "-m", "retinue", *verb, *settings, *arguments[len(verb) :]]


def answers(prepare: Prepare) -> Work:
    """The agent program is a child that answers."""

    def work(trial: Trial) -> str:
        return trial.repeats(*_child(trial, prepare(trial), f"Say it: {ANSWER}"))

    return work


def asks(prepare: Prepare) -> Work:
    """The agent asks for permission; a person allows its call in one run, and refuses it in another."""

    def work(trial: Trial) -> str:
        agent = prepare(trial)
        for verb, expected in (("approve", True), ("deny", False)):
            file = trial.project / f"{verb}.txt"
            with trial.started(*_child(trial, agent, f"{WRITING} {file}", "--approvals", "wait")) as run:
                question = trial.eventually(
                    lambda: json.loads(trial.run(*_retinue(trial, "approvals", "--json")) or "[]"), run
                )
                if not question:
                    return f"no question was asked about {file.name}"
                trial.run(*_retinue(trial, verb, question[0]["id"]))
                said, _ = run.communicate(timeout=SECONDS)
            if file.exists() is not expected:
                return f"after {verb} the file {'exists' if file.exists() else 'does not exist'}"
            outcome = json.loads(said or "{}")
            if expected and WRITTEN not in outcome.get("text", ""):
                return f"after {verb} the run ended with {said[:300]}"
        return ""

    return work


@contextmanager
def _turn(trial: Trial, prepare: Prepare, file: str) -> Generator[tuple[Agent, subprocess.Popen[str]]]:
    """A run whose agent has called its tool, and waits for its model; raises `TrialFailed` if it makes no call."""
    agent = prepare(trial)
    trial.model.is_held = True
    with trial.started(*_child(trial, agent, f"{WRITING} {trial.project / file}", "--yes")) as run:
        if not trial.eventually(lambda: trial.model.after_calls, run):
            raise TrialFailed("the agent did not call its tool")
        yield agent, run


def _run_id(trial: Trial) -> str:
    """The id of the only run of a trial."""
    (row,) = json.loads(trial.run(*_retinue(trial, "runs", "list", "--json")))
    return row["run_id"]


def resumes(prepare: Prepare) -> Work:
    """retinue is killed in the middle of a turn; the run goes on in its session, and the agent knows what it did."""

    def work(trial: Trial) -> str:
        with _turn(trial, prepare, "resume.txt") as (agent, run):
            time.sleep(SAVING_SECONDS)
            run.send_signal(signal.SIGKILL)
            run.wait()
        trial.model.after_calls.clear()
        trial.model.is_held = False
        time.sleep(agent.loses_sessions_for)
        outcome = json.loads(trial.run(*_retinue(trial, "runs", "resume", "--json", "--yes", _run_id(trial))) or "{}")
        if not trial.model.after_calls:
            return "after the crash the agent did not know what it had done"
        return "" if outcome.get("status") == "completed" and WRITTEN in outcome["text"] else f"it ended with {outcome}"

    return work


def cancels(prepare: Prepare) -> Work:
    """The run is cancelled in the middle of a turn: it ends as cancelled, and no process of the agent is left."""

    def work(trial: Trial) -> str:
        with _turn(trial, prepare, "cancel.txt") as (_, run):
            before = _processes_in(trial.project)
            trial.run(*_retinue(trial, "runs", "cancel", _run_id(trial)))
            said, _ = run.communicate(timeout=SECONDS)
        status = json.loads(said or "{}").get("status")
        if status != "cancelled":
            return f"after the cancel the run ended as {status}"
        if len(before) < 2:
            return f"the agent was not seen at work: {before}"
        left = _processes_in(trial.project)
        return f"after the cancel there are left: {left}" if left else ""

    return work


def _processes_in(folder: Path) -> list[str]:
    """The commands of the processes whose working folder this is; none where the system does not tell it."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if Path(os.readlink(process / "cwd")) == folder:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


def mcp_client(work: Callable[[mcp_clients.Place], str]) -> Work:
    """A client of the MCP server that is no host."""

    def place(trial: Trial) -> str:
        return work(mcp_clients.Place(trial.folder, trial.server(), trial.environment(), trial.programs))

    return place


NODE, FASTMCP = "node", "fastmcp"
"""Sets of programs besides `PACKAGES`."""

TRIALS: dict[str, tuple[str, Work]] = {
    "Claude Code, retinue as MCP server": ("claude", claude),
    "Claude Code, its agent files": ("claude", claude_files),
    "Codex, retinue as MCP server": ("codex", codex),
    "OpenCode, retinue as MCP server": ("opencode", opencode),
    "Gemini CLI, retinue as MCP server": ("gemini", gemini_cli),
    "MCP conformance suite": (NODE, mcp_client(mcp_clients.conformance)),
    "MCP inspector, all tools": (NODE, mcp_client(mcp_clients.inspector)),
    "FastMCP's client, all tools": (FASTMCP, mcp_client(mcp_clients.fastmcp)),
    "gemini --acp, as a child of retinue": ("gemini", answers(gemini_acp)),
    "gemini --acp, asks for permission": ("gemini", asks(gemini_acp)),
    "gemini --acp, after kill -9": ("gemini", resumes(gemini_acp)),
    "gemini --acp, cancelled in a turn": ("gemini", cancels(gemini_acp)),
    "opencode acp, as a child of retinue": ("opencode", answers(opencode_acp)),
    "opencode acp, asks for permission": ("opencode", asks(opencode_acp)),
    "opencode acp, after kill -9": ("opencode", resumes(opencode_acp)),
    "opencode acp, cancelled in a turn": ("opencode", cancels(opencode_acp)),
    "claude-code-acp, as a child of retinue": ("claude-code-acp", answers(claude_code_acp)),
    "claude-code-acp, asks for permission": ("claude-code-acp", asks(claude_code_acp)),
    "claude-code-acp, after kill -9": ("claude-code-acp", resumes(claude_code_acp)),
    "claude-code-acp, cancelled in a turn": ("claude-code-acp", cancels(claude_code_acp)),
    "codex-acp, as a child of retinue": ("codex-acp", answers(codex_acp)),
    "codex-acp, asks for permission": ("codex-acp", asks(codex_acp)),
    "codex-acp, after kill -9": ("codex-acp", resumes(codex_acp)),
    "codex-acp, cancelled in a turn": ("codex-acp", cancels(codex_acp)),
}


def install(packages: Sequence[str], cache: Path) -> Path:
    """Install packages that are missing in the cache; the folder of their programs."""
    cache.mkdir(parents=True, exist_ok=True)
    done = cache / "installed.json"
    present = set(json.loads(done.read_text())) if done.exists() else set[str]()
    if missing := sorted(set(packages) - present):
        print(f"installing {', '.join(missing)} in {cache}", flush=True)
        flags = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(cache)]
        subprocess.run(["npm", "install", *flags, *missing], check=True, stdout=subprocess.DEVNULL)
        done.write_text(json.dumps(sorted(present | set(packages))))
    return cache / "node_modules" / ".bin"


def programs_of(names: set[str], cache: Path) -> dict[str, Path]:
    """Install what these names stand for; the folder of the programs of each."""
    places: dict[str, Path] = {}
    if hosts := names & PACKAGES.keys():
        places |= dict.fromkeys(hosts, install([PACKAGES[name] for name in hosts], cache))
    if NODE in names:
        places[NODE] = install(mcp_clients.NODE_PACKAGES, cache / "clients")
    if FASTMCP in names:
        places[FASTMCP] = mcp_clients.install_fastmcp(cache)
    return places


VERSIONS = {**PACKAGES, NODE: ", ".join(mcp_clients.NODE_PACKAGES[1:]), FASTMCP: mcp_clients.FASTMCP}


def main(words: Sequence[str]) -> int:
    """Make the trials; the number of those that failed."""
    if shutil.which("npm") is None:
        print("skipped: npm is not installed")
        return 0
    chosen = {
        title: trial for title, trial in TRIALS.items() if not words or any(word in title.lower() for word in words)
    }
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retinue-hosts"
    places = programs_of({name for name, _ in chosen.values()}, Path(os.environ.get("HOSTS_CACHE") or default))
    failed = 0
    for title, (name, work) in chosen.items():
        folder = Path(tempfile.mkdtemp(prefix="retinue-hosts-"))
        with ModelServer() as server:
            trial = Trial(folder, server, places[name])
            for each in (trial.home, trial.project):
                each.mkdir()
            began = time.monotonic()
            try:
                wrong = work(trial)
            except subprocess.TimeoutExpired:
                wrong = f"a program did not end within {SECONDS} s"
            except TrialFailed as failure:
                wrong = str(failure)
            failed += bool(wrong)
            state = "FAILED" if wrong else "works "
            print(f"{state}  {title} ({VERSIONS[name]}, {time.monotonic() - began:.0f} s)", flush=True)
            if wrong:
                print(f"        {wrong}; requests: {server.requests[:6]}; output: {folder}/output.txt", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            server.is_held = False
            server.shutdown()
    print(f"{len(chosen) - failed} of {len(chosen)} trials work", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main([word.lower() for word in sys.argv[1:]]))
