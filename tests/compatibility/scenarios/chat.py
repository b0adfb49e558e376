"""`retinue chat` with a pipe as stdin: inputs, commands, delegation, and continued sessions."""

from __future__ import annotations

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import ModelServer, calls, fails, says
from tests.compatibility.scenarios.common import SETTINGS, TOOLS
from tests.compatibility.stage import Stage


def talk(server: ModelServer, *more: str) -> tuple[str, ...]:
    """The arguments of `retinue chat` with a model server."""
    return ("chat", "--base-url", server.url, "--model", "m", *more)


@scenario()
def chat_conversation(stage: Stage) -> None:
    """A conversation of two processes: multi-line inputs, invalid commands, and an error of the model."""
    server = stage.server()
    server.play(says("Hello."), says("Four."), says("Noted."), says("It maps names."), fails(400, "no such model"))
    first = 'Hi!\n\nTwo and\\\ntwo?\n/statsu\n/cost now\n"""\n/status\nexit\n"""\n'
    stage.run(*talk(server, "--session", "audit"), stdin=first)
    second = "//etc/hosts is what?\nAnd now?\n"
    stage.forked(*talk(server, "--session", "audit", "--quiet"), stdin=second)
    stage.forked(*talk(server, "--quiet"), stdin='"""\nhalf\n')
    stage.forked(*talk(server, "--quiet"), stdin="exit\nHi!\n")
    stage.forked("runs", "--json", "--session", "audit")
    stage.show_requests()


@scenario()
def chat_commands(stage: Stage) -> None:
    """The commands of a chat, and delegation switched on and off."""
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", SETTINGS + '\n[agents.dig]\ndescription = "Digs."\nsystem_prompt = "You dig."\n')
    server = stage.server()
    server.play(
        says("Hello."),
        calls("subagent", label="dig", task_prompt="Find it."),
        says("It was the pool."),
        says("Alone again."),
        says("New."),
    )
    server.play(says("The pool."), says("In short: the pool."), words="Find it.")
    inputs = "Hi!\n/status\n/tools\nPlease delegate this.\n/status\n/agents\n/cost\n/subagents off\nAnd now?\n/clear\n"
    # With agents, delegation is on from the start, in another dialect; words switch it on where it is configured.
    stage.write("plain.toml", f"{SETTINGS}[agent.subagent]\nmax_executions = 9\n")
    flags = ("--config", "plain.toml", "--tools", "look", "--session", "work", "--quiet")
    stage.run(*talk(server, *flags), stdin=inputs + "/status\nHi!\n")
    stage.forked(*talk(server, "--dialect", "spec", "--quiet"), stdin="/tools\n/subagents\n/subagents maybe\n/quit\n")
    stage.forked(*talk(server), stdin="/help\n", stdout="help")
    stage.forked("runs", "--all")
