"""The dialect `buzzllm`: subagents in their own processes, and `retinue call`."""

from __future__ import annotations

import json

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, calls_text, fails, says, together
from tests.compatibility.scenarios.common import LOGGED, at
from tests.compatibility.stage import Stage


@scenario()
def buzzllm_subagents(stage: Stage) -> None:
    """Subagents with and without tools, a failing one, and refused calls."""
    stage.write("notes/pool.txt", "size = 20\nidle = 3\n")
    server = stage.server()
    server.play(
        calls("call_subagent", prompt="Answer at once.", system_prompt="You are brief."),
        calls("call_subagent", prompt="Search the notes.", tool_subset=["bash_find", "bash_read"]),
        calls("call_subagent", prompt="Fail at it."),
        calls("call_subagent", prompt="x", tool_subset=["zzz", "aaa"]),
        calls_text("call_subagent", "{"),
        calls("call_subagent"),
        says("It is the pool."),
    )
    server.play(says("At once."), words="Answer at once.")
    server.play(
        calls("bash_find", path="notes"),
        together(says("Reading. "), calls("bash_read", filepath="notes/pool.txt")),
        says("20 connections."),
        words="Search the notes.",
    )
    server.play(fails(400, "no such model"), words="Fail at it.")
    stage.write("retinue.toml", "[buzzllm]\nwarm_processes = 0\n")
    stage.run(*at(server, "--quiet", dialect="buzzllm"), "Why?", env=LOGGED, ordered=False)
    stage.forked("runs", "--all")
    stage.show_requests()


@scenario()
def buzzllm_call(stage: Stage) -> None:
    """`retinue call`: three wires, tools, a failure, and invalid orders."""
    stage.write("notes/pool.txt", "size = 20\n")
    server = stage.server()
    server.play(says("42"))
    server.play(
        Line(words=("Let me see. ",), thinking="Where?", calls=(("bash_read", '{"filepath":"notes/pool.txt"}'),)),
        says("20 connections."),
        words="Read it.",
    )
    server.play(fails(400, "no such model"), words="Fail at it.")
    chat = {"model": "m", "provider": "openai-chat", "url": f"{server.url}/chat/completions"}

    def call(**order: object) -> None:
        stage.run("call", stdin=json.dumps(order), title=f"retinue call < {json.dumps(order)}")

    call(**chat, prompt="What is 6 times 7?")
    call(**chat, prompt="Read it.", tool_subset=["bash_read"], think=True, temperature=0.5, max_tokens=99)
    call(**chat, prompt="Fail at it.")
    responses = {"model": "m", "provider": "openai-responses", "url": f"{server.url}/responses"}
    call(**responses, prompt="Read it.", system_prompt="You read.", tool_subset=["bash_read"])
    anthropic = {"model": "m", "provider": "anthropic", "url": f"{server.root}/v1/messages"}
    call(**anthropic, prompt="Read it.", tool_subset=["bash_read"])
    call(model="m")
    call(**chat, prompt="x", tool_subset=["zzz"])
    stage.run("call", stdin="nonsense", title="retinue call < nonsense")
    stage.show_requests(whole=True)
