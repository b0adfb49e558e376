"""The wires other than openai-chat: requests byte for byte, and decoded answers."""

from __future__ import annotations

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, fails, says
from tests.compatibility.scenarios.common import SETTINGS, TOOLS
from tests.compatibility.stage import Stage

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def wire(stage: Stage, name: str, path: str, key: str) -> None:
    """A run with thinking and tool calls, structured answers, and an error."""
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", SETTINGS)
    stage.write("number.json", SCHEMA)
    server = stage.server()
    server.play(
        Line(words=("Let me ", "see."), calls=(("look", '{"where":"here"}'),), thinking="Where?", usage=(120, 30, 20)),
        calls("refuse", reason="no"),
        says("Nothing."),
    )
    server.play(says('{"n": 42}'), words="number")
    server.play(fails(403, "wrong key sk-secret"), words="Fail")
    flags = ("run", "--provider", name, "--base-url", server.root + path, "--api-key-env", key, "--dialect", "none")
    env = {key: "sk-secret"}
    model = ("--model", "m")
    tools = ("--tools", "look,refuse", "--system", "You look.")
    stage.forked(*flags, *model, *tools, "--think", "--sse", "What is there?", env=env)
    stage.forked(*flags, *model, "--output-schema", "number.json", "--quiet", "A number?", env=env)
    stage.forked(*flags, *model, "--output-json", "--json", "A number?", env=env)
    stage.forked(*flags, *model, "Fail.", env=env)
    stage.show_requests(whole=True)


@scenario()
def wire_anthropic(stage: Stage) -> None:
    """The wire `anthropic`."""
    wire(stage, "anthropic", "", "ANTHROPIC_API_KEY")


@scenario()
def wire_responses(stage: Stage) -> None:
    """The wire `openai-responses`."""
    wire(stage, "openai-responses", "/v1", "OPENAI_API_KEY")


@scenario()
def wire_gemini(stage: Stage) -> None:
    """The wire `gemini`."""
    wire(stage, "gemini", "", "GEMINI_API_KEY")


@scenario()
def wire_vertexai(stage: Stage) -> None:
    """The wire `vertexai-anthropic`."""
    wire(stage, "vertexai-anthropic", "/v1/projects/p/locations/l", "GOOGLE_ACCESS_TOKEN")
