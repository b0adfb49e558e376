"""Limits of runs: turns, tokens, cost, tool calls, time, and the context window."""

from __future__ import annotations

from dataclasses import replace

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Conversation, Line, calls, says
from tests.compatibility.scenarios.common import SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

PRICES = """
[providers.near]
wire = "openai-chat"
base_url = "{url}"
prices = {{ m = {{ input = 1000.0, output = 2000.0 }} }}

[agents.limited]
tools = ["look"]
limits = {{ max_calls = 1, wrap_up = false }}
"""


@scenario()
def limits_of_runs(stage: Stage) -> None:
    """Every limit, with and without a wrap-up turn."""
    server = stage.server()
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", SETTINGS + PRICES.format(url=server.url))
    round_and_round = [calls("look", where="here")] * 6
    server.play(*round_and_round)
    server.play(*round_and_round[:2], says("I saw nothing."), words="Wrap up.")
    server.play(says("Never.", hold="never"), words="Never end.")
    stage.forked(*at(server, "--tools", "look", "--max-turns", "3"), "Wrap up.")
    stage.forked(*at(server, "--tools", "look", "--max-turns", "2", dialect="spec"), "Go round.")
    stage.forked(*at(server, "--tools", "look", "--max-turns", "2", "--json", dialect="spec"), "Go round.")
    stage.forked(*at(server, "--tools", "look", "--max-tokens", "5"), "Go round.")
    stage.forked(*at(server, "--tools", "look", "--max-tokens", "350", dialect="xzatoma"), "Go round.")
    near = ("run", "--provider", "near", "--model", "m", "--dialect", "none", "--tools", "look")
    stage.forked(*near, "--max-cost", "0.001", "Go round.")
    stage.forked(*near, "--max-cost", "0.001", "--json", "Go round.")
    stage.forked(*near, "--agent", "limited", "Go round.")
    stage.forked(*at(server, "--timeout", "0.2"), "Never end.")
    stage.forked(*at(server, "--timeout", "0.2", "--json"), "Never end.")
    stage.forked(*at(server, "--timeout", "0.2", "--sse"), "Never end.")


@scenario()
def limits_of_context(stage: Stage) -> None:
    """A conversation that exceeds the context window and is summarised."""
    server = stage.server()
    stage.write("mytools.py", TOOLS)
    window = f'[providers.small]\nwire = "openai-chat"\nbase_url = "{server.url}"\ncontext_window = 3000\n'
    stage.write("retinue.toml", SETTINGS + window)
    looks = [
        replace(calls("look", where=f"place {number} " + "far away " * 160), usage=(400 * number + 500, 10, 0))
        for number in range(6)
    ]
    # A summary takes the place of earlier replies, so their number does not select the line.
    lines = iter([*looks, says("I looked everywhere.")])

    def following(_: Conversation) -> Line:
        return next(lines)

    server.play(*[following] * 7)
    # The request for a summary is a separate conversation.
    server.play(says("Nothing was seen so far."), words="The record below")
    stage.forked(
        "run", "--provider", "small", "--model", "m", "--dialect", "none", "--tools", "look", "--quiet", "Look around."
    )
    rows = stage.query("runs", "--json").json
    stage.forked("runs", "show", rows[0]["run_id"])
    stage.show_requests()
