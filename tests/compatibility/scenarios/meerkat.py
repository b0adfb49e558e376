"""The dialect `meerkat`: spawned and forked sub-agents, budgets, and messages between parent and child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Conversation, Line, Played, calls, calls_text, fails, says
from tests.compatibility.scenarios.common import LOGGED, SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

INHERIT = '\n[sub_agents]\ndefault_model = "inherit"\n'
IDS = r'"agent_id":"([0-9a-f-]{36})"'
NAMES = r'"name":"((?:sub-agent|fork)-[0-9a-f]{12})"'


def about(tool: str, nth: int) -> Callable[[Conversation], Line]:
    """A call with the id of the sub-agent that was started as the `nth`."""
    return lambda heard: calls(tool, agent_id=heard.found(IDS)[nth])


@scenario()
def meerkat_spawn(stage: Stage) -> None:
    """Sub-agents that complete and one that is cancelled; status and list before and after."""
    stage.write("retinue.toml", SETTINGS + INHERIT)
    stage.write("mytools.py", TOOLS)
    server = stage.server()
    server.play(
        calls("agent_spawn", prompt="Dig in the logs.", tool_access={"policy": "allow_list", "tools": ["look"]}),
        calls("agent_spawn", prompt="Read the pool.", system_prompt="You read.", budget={"max_turns": 3}),
        calls("agent_list"),
        about("agent_status", 0),
        server.releasing("logs", says("Waiting for the logs.")),
        about("agent_status", 0),
        server.releasing("pool", says("Waiting for the pool.")),
        about("agent_status", 1),
        calls("agent_spawn", prompt="Never end."),
        server.after("never", about("agent_cancel", 2)),
        about("agent_status", 2),
        about("agent_cancel", 2),
        calls("agent_list"),
        says("It was the pool."),
    )
    server.play(calls("look", where="logs"), says("Nothing in the logs.", hold="logs"), words="Dig in the logs.")
    server.play(says("The pool is too small.", hold="pool"), words="Read the pool.")
    server.play(says("Never.", hold="never"), words="Never end.")
    stage.run(*at(server, "--tools", "look", "--quiet", dialect="meerkat"), "Why?", env=LOGGED, ordered=False)
    stage.forked("runs", "--all")
    stage.show_requests()


@scenario()
def meerkat_fork(stage: Stage) -> None:
    """Forks with three budget policies, and forks that keep the tools of their parent."""
    stage.write("retinue.toml", SETTINGS + INHERIT)
    stage.write("mytools.py", TOOLS)
    server = stage.server()

    def forks(prompt: str, **more: object) -> tuple[Played, Played]:
        """A call that forks, and the next line: for the fork its answer, for the parent a reply without calls."""

        def waits(heard: Conversation) -> Line:
            if heard.last_words.endswith(prompt):
                server.wait_for_request(f"parent of {heard.first_words} {prompt}")
                return says(f"I did: {prompt}", tag=f"fork: {prompt}")
            server.mark(f"parent of {heard.first_words} {prompt}")
            return says("Waiting.")

        return calls("agent_fork", prompt=prompt, **more), waits

    lines = (
        calls("look", where="here"),
        *forks("Look below."),
        *forks("Look above.", budget_policy="fixed:2000"),
        *forks("Look aside.", budget_policy="remaining"),
        about("agent_status", 0),
        says("All looked at."),
    )
    server.play(*lines)
    flags = at(server, "--tools", "look", "--quiet", "--max-tokens", "90000", dialect="meerkat")
    stage.forked(*flags, "Why?", env=LOGGED, ordered=False)
    stage.write("retinue.toml", SETTINGS + INHERIT + "fork_keeps_tools = true\n")
    stage.forked(*flags, "Why again?")
    stage.show_requests()


@scenario()
def meerkat_comms(stage: Stage) -> None:
    """A sub-agent in host mode that answers a message and a request, and the list of peers."""
    stage.write("retinue.toml", INHERIT + "enable_comms = true\n")
    server = stage.server()
    idle = "SELECT count(*) FROM runs WHERE phase = 'idle'"

    def to(tool: str, **more: object) -> Callable[[Conversation], Line]:
        return lambda heard: calls(tool, to=heard.found(NAMES)[0], **more)

    server.play(
        calls("list_peers"),
        calls("agent_spawn", prompt="Keep the books.", host_mode=True, budget={"max_tokens": 5000}),
        stage.when(idle, to("send_message", body="Book 250 cents.")),
        server.releasing("book", says("Booking.")),
        stage.when(idle, to("send_request", intent="sum", params={"of": "all"})),
        server.releasing("sum", says("Summing.")),
        stage.when(idle, calls("list_peers")),
        calls("send_message", to="unknown", body="Hello?"),
        calls_text("send_message", '{"to": 7}'),
        about("agent_status", 0),
        says("So far: 250 cents."),
    )

    def respond(heard: Conversation) -> Line:
        request = heard.found(r"\[request ([0-9a-f-]{36}) from parent")[0]
        return calls("send_response", to="parent", in_reply_to=request, status="completed", result={"sum": 250})

    server.play(
        says("Ready."),
        replace(calls("send_message", to="parent", body="It is booked."), hold="book"),
        says("Booked."),
        lambda heard: replace(respond(heard), hold="sum"),
        says("Summed."),
        words="Keep the books.",
    )
    stage.forked(*at(server, "--quiet", dialect="meerkat"), "How much?", env=LOGGED, ordered=False)
    stage.show_requests()


@scenario()
def meerkat_refusals(stage: Stage) -> None:
    """Refused calls: arguments, ids, models, providers and limits; failing sub-agents."""
    limits = "\n[sub_agents.concurrency_limits]\nmax_children_per_agent = 1\n"
    stage.write("retinue.toml", INHERIT + "default_budget = 20000\n" + limits)
    server = stage.server()
    server.play(
        calls_text("agent_spawn", "{"),
        calls("agent_spawn"),
        calls("agent_spawn", prompt=" "),
        calls("agent_spawn", prompt="x", colour="red"),
        calls("agent_spawn", prompt="x", provider="unknown"),
        calls("agent_spawn", prompt="x", provider="anthropic", model="claude-opus-4-6"),
        calls("agent_spawn", prompt="x", model="gpt-0"),
        calls("agent_spawn", prompt="x", tool_access="some"),
        calls("agent_fork", prompt=""),
        calls("agent_status", agent_id="x"),
        calls("agent_status", agent_id="00000000-0000-7000-8000-000000000000"),
        calls("agent_cancel", agent_id="00000000-0000-7000-8000-000000000000"),
        calls("agent_list", all=True),
        calls("agent_spawn", prompt="Fail at it."),
        server.releasing("fail", says("Waiting.")),
        about("agent_status", 0),
        calls("agent_spawn", prompt="Go round.", budget={"max_turns": 1}),
        server.releasing("round", says("Waiting.")),
        about("agent_status", 1),
        calls("agent_spawn", prompt="Never end."),
        calls("agent_spawn", prompt="Never end."),
        calls("agent_fork", prompt="Never end."),
        server.after("never", about("agent_cancel", 2)),
        says("So be it."),
    )
    server.play(fails(400, "no such model", hold="fail"), words="Fail at it.")
    server.play(replace(calls("nonsense"), hold="round"), words="Go round.")
    server.play(says("Never.", hold="never"), words="Never end.")
    stage.forked(*at(server, "--quiet", dialect="meerkat"), "Go.", env=LOGGED, ordered=False)
    stage.show_requests()
