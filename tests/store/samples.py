"""The expected values of the corpus files: every stored class with all fields filled.

The files of a released format never change. Until the release, and when fields are added,
`python -m tests.store.samples` writes the missing files of the newest format.
"""

from pathlib import Path

import msgspec

from retinue.core.agent import Output, RunSpec
from retinue.core.attachments import File, Image
from retinue.core.budget import Amount, Caps, Window
from retinue.core.events import (
    FORMAT,
    AdviceGiven,
    AgentChanged,
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.inbox import (
    ApprovalAnswer,
    Cancel,
    ChildEnded,
    Close,
    Deadline,
    DependencyEnded,
    Input,
    Item,
    TextMessage,
)
from retinue.core.messages import AssistantMessage, Citation, Reply, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.model_options import RequestOptions
from retinue.core.policy import Autonomy, Policy
from retinue.core.run import Exchange, HandleRef, HistoryRef, Lifecycle, LimitMet, Limits, Outcome
from retinue.core.usage import Usage

CORPUS = Path(__file__).parent / "corpus"

_POLICY = Policy(
    autonomy=Autonomy.FULL,
    workspace_only=False,
    allowed_roots=("/srv",),
    allowed_roots_read_only=("/usr/share",),
    allowed_roots_write_only=("/var/out",),
    forbidden_paths=("/srv/secret",),
    allowed_commands=("git", "ls"),
    shell_env_passthrough=("LANG",),
    shell_timeout_secs=5,
    max_actions_per_hour=7,
    max_cost_per_day_cents=11,
    block_high_risk_commands=False,
    require_approval_for_medium_risk=False,
    allowed_tools=("search", "shell"),
    excluded_tools=("web",),
    auto_approve=("search",),
    always_ask=("shell",),
)
_LIMITS = Limits(
    max_turns=20,
    exchange_turns=5,
    max_input_tokens=1000,
    max_output_tokens=2000,
    max_tokens=2500,
    max_cost=1,
    max_calls=30,
    timeout=600.5,
    model_timeout=60.0,
    first_timeout=45.0,
    idle_timeout=30.0,
    tool_timeout=90.0,
    wrap_up=True,
)
_USAGE = Usage(100, 20, 60, 5, 30)
_OUTCOME = Outcome(
    result="exhausted",
    reason="max_turns",
    text="Half of it: 🦉",
    error="20 turns were not enough",
    structured={"answer": [1, 2.5, None, True, "x"]},
    artifacts=("report.md",),
    usage=_USAGE,
    cost=1_500_000,
    turns=20,
    exchanges=2,
    limit=LimitMet("max_turns", 20, 20),
    unstopped=("shell",),
)
_ASSISTANT = AssistantMessage(
    text="Let me look.",
    calls=(ToolCall("search", '{"query": "pool"}', "call_1"), ToolCall("shell", "not json")),
    thinking=(Thinking("hm", "c2ln", "b3BhcXVl"),),
)
_ITEMS: tuple[Item, ...] = (
    TextMessage(key="k1", text="Hurry, please.", origin="peer"),
    Input(key="k2", text="And now?", tools=False, origin="notice"),
    Close(key="k3"),
    Cancel(key="k4", reason="parent_ended", note="no longer needed"),
    Deadline(key="k5", seconds=600.5),
    ApprovalAnswer(key="k6", turn=3, index=1, allow=True, note="go on"),
    ChildEnded(key="k7", run_id="r2", result="completed", notice="r2 is done"),
    DependencyEnded(key="k8", run_id="r3", name="t_03", ok=True, text="found it"),
)
_EVENTS: tuple[Event, ...] = (
    RunAccepted(
        at=1763200000.25,
        run_id="r1",
        session_id="s1",
        root_id="r0",
        parent_id="r0",
        depth=1,
        path="root/1",
        key="r0/1/0",
        agent="researcher",
        run_spec="5f3c",
        task="Why is it slow?",
        policy=_POLICY,
        limits=_LIMITS,
        lifecycle=Lifecycle(keep_alive=True, awaited=True, announce=True, on_parent_end="wait", crash_fails=True),
        inherits=HistoryRef("r0", 12, 3),
        handle=HandleRef("spec", "t_01"),
        label="a look around",
        dialect="spec",
        reserved=True,
        windows=(
            Window("researcher/hour", 3600.0, Caps(input=1, output=2, tokens=3, cost=4, turns=5, calls=6)),
            Window("subagents/r0", 7200.0, Caps(tokens=7), soft=True),
        ),
        after=(("r3", "t_03"),),
        independent=True,
    ),
    RunLeft(at=1763200000.5),
    RunAdopted(at=1763200001.0, driver_id="d2"),
    MailTaken(at=1763200002.0, items=_ITEMS),
    ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(_ASSISTANT, usage=_USAGE, cost=1_500_000, stop="calls", model="m-1", response_id="resp_1"),
    ),
    CallParked(at=1763200004.0, turn=1, index=1, tool="shell", reason="it changes files"),
    CallReturned(at=1763200005.0, turn=1, index=0, text="found nothing", failed=True, crashed=True),
    TurnFailed(at=1763200006.0, turn=2, fault="overloaded", error="529", partial="So f", usage=_USAGE, cost=400_000),
    WrapUpAsked(at=1763200007.0, limit=LimitMet("max_turns", 20, 20), text="Please finish."),
    RepairAsked(at=1763200007.5, error="data must be object", text="Give it again."),
    AdviceGiven(at=1763200007.7, about="repeats", text="The same again."),
    ExchangeEnded(
        at=1763200008.0,
        exchange=Exchange(
            result="exhausted",
            reason="max_turns",
            text="so far",
            error="too long",
            structured={"answer": [1, 2.5, None, True, "x"]},
            turns=5,
            limit=LimitMet("max_turns", 20, 20),
        ),
    ),
    HistoryCompacted(
        at=1763200009.0,
        replaced=4,
        messages=(
            UserMessage("What happened before", origin="engine"),
            _ASSISTANT,
            ToolMessage("search", "nothing", "call_1", failed=True),
        ),
        way="left_out",
        before=190_000,
        after=60_000,
        model="m-1",
        usage=_USAGE,
        cost=700_000,
    ),
    ResultCollected(at=1763200011.0, key="r1/3/0", run_id="r2"),
    RunEnded(at=1763200012.0, outcome=_OUTCOME),
)
CITATION = Citation("https://h.example/pools", "Pools", "A pool has ten.", start=1, end=3)

RUN_SPEC = RunSpec(
    agent="researcher",
    system="You look things up.",
    offered=("search", "shell"),
    dialects=("spec",),
    provider="anthropic",
    model="m-1",
    fallback=(("openai", "m-2"),),
    max_output=4096,
    temperature=0.5,
    think=True,
    output=Output(mode="json_schema", schema='{"type":"object"}', name="verdict"),
    launch_config='{"model":"m"}',
    workspace="/srv/work",
    identity="researcher",
    memory_from=("writer",),
)
LOG: tuple[Event, ...] = (
    RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec=RUN_SPEC.digest(),
        task="What is six times seven?",
        policy=_POLICY,
    ),
    ReplyReceived(
        at=1763200001.0,
        turn=1,
        reply=Reply(AssistantMessage(calls=(ToolCall("multiply", '{"a":6,"b":7}', "c1"),)), stop="calls"),
    ),
    CallReturned(at=1763200002.0, turn=1, index=0, text="42"),
    ReplyReceived(at=1763200003.0, turn=2, reply=Reply(AssistantMessage(text="42"), usage=Usage(30, 1), cost=9)),
    RunEnded(
        at=1763200004.0,
        outcome=Outcome(result="completed", reason="answered", text="42", usage=Usage(30, 1), cost=None, turns=2),
    ),
)


def _named(kind: str, values: tuple[Event | Item, ...]) -> dict[str, Event | Item | Outcome | RunSpec]:
    return {f"{kind}.{type(value).__struct_config__.tag}": value for value in values}


_ADDED: dict[str, Event | Item | Outcome | RunSpec] = {
    "event.returned_refused": CallReturned(
        at=1763200005.0, turn=1, index=1, text="not allowed", failed=True, refused="approval"
    ),
    "event.accepted_per_input": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec=RUN_SPEC.digest(),
        task="What is six times seven?",
        policy=_POLICY,
        lifecycle=Lifecycle(keep_alive=True, per_input=True),
    ),
    "event.accepted_hosted": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec=RUN_SPEC.digest(),
        task="",
        policy=_POLICY,
        lifecycle=Lifecycle(hosted=True),
    ),
    "event.mail_spent_before": MailTaken(
        at=1763200002.0,
        items=(Input(key="k1", text="Are you sure?"),),
        spent_before=Amount(input=900, output=80, cost=1_500_000, turns=3, calls=2),
    ),
    "event.reply_cut_by": ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(AssistantMessage(text="So f"), stop="length"),
        cut_by=LimitMet(
            "max_tokens", 990, 1000, dimension="tokens", left=10, needed=57, held=8, account="researcher/hour"
        ),
    ),
    "event.accepted_retry_for": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec="b1",
        task="Why is it slow?",
        policy=Policy(),
        limits=Limits(retry_for=60.0),
    ),
    "event.accepted_max_repeats": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec="b1",
        task="Why is it slow?",
        policy=Policy(),
        limits=Limits(max_repeats=None),
    ),
    "event.reply_calls_in_text": ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(AssistantMessage(calls=(ToolCall("look"),)), stop="calls", calls_in_text=True),
    ),
    "event.agent_changed": AgentChanged(
        at=1763200011.5, agent="dig", run_spec=RunSpec(agent="dig", system="You dig."), policy=_POLICY
    ),
    "event.returned_duration": CallReturned(at=1763200005.0, turn=1, index=0, text="42", tool="search", duration=0.125),
    "event.accepted_attachments": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec="d1",
        task="What is this?",
        policy=_POLICY,
        inherits=HistoryRef("r0", 4, 2, compact=True),
        attachments=(Image(b"GIF8", "image/gif", "a.gif"), File(b"max = 10", "text/plain", "pool.toml")),
    ),
    "event.accepted_trace": RunAccepted(
        at=1763200000.0,
        run_id="r1",
        session_id="s1",
        root_id="r1",
        run_spec="d1",
        task="Find it.",
        policy=_POLICY,
        trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    "event.reply_duration": ReplyReceived(
        at=1763200003.0, turn=1, reply=Reply(AssistantMessage(text="42")), duration=1.25
    ),
    "event.turn_failed_duration": TurnFailed(at=1763200003.0, turn=1, fault="overloaded", error="busy", duration=60.5),
    "event.compacted_duration": HistoryCompacted(
        at=1763200003.0, replaced=1, messages=(UserMessage("So far."),), duration=2.5
    ),
    "event.mail_attachments": MailTaken(
        at=1763200002.0,
        items=(
            Input(key="k1", text="And this?", attachments=(File(b"max = 10", "text/plain", "pool.toml"),)),
            TextMessage(key="k2", text="See this.", attachments=(Image(b"GIF8", "image/gif", "a.gif"),)),
        ),
    ),
    "event.compacted_attachments": HistoryCompacted(
        at=1763200009.0,
        replaced=1,
        messages=(UserMessage("See this.", attachments=(Image(b"GIF8", "image/gif", "a.gif"),)),),
    ),
    "event.returned_attachments": CallReturned(
        at=1763200005.0,
        turn=1,
        index=0,
        text="",
        attachments=(Image(b"GIF8", "image/gif", "a.gif"), File(b"%PDF", "application/pdf", "b.pdf")),
    ),
    "event.compacted_result_attachments": HistoryCompacted(
        at=1763200009.0,
        replaced=1,
        messages=(ToolMessage("look", "", attachments=(Image(b"GIF8", "image/gif", "a.gif"),)),),
    ),
    "event.reply_server_tools": ReplyReceived(
        at=1763200003.0,
        turn=2,
        reply=Reply(
            AssistantMessage(text="Ten.", citations=(CITATION,)), server_tools=(("web_search", 2),), stop="pause"
        ),
    ),
    "event.ended_citations": RunEnded(
        at=1763200006.0,
        outcome=Outcome(result="completed", reason="answered", text="Ten.", citations=(CITATION,)),
    ),
    "event.exchange_ended_citations": ExchangeEnded(
        at=1763200006.0,
        exchange=Exchange(result="completed", reason="answered", text="Ten.", citations=(CITATION,)),
    ),
    "event.reply_call_error": ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(AssistantMessage(text='{"name": "loook"}'), call_error="there is no tool named 'loook'"),
    ),
    "event.reply_failed_attempts": ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(AssistantMessage(text="42"), usage=None),
        failed=Usage(input=5000, output=12),
        failed_cost=15_060_000,
        estimated=Usage(input=40, output=1),
        estimated_cost=122_000,
    ),
    "event.compacted_estimated": HistoryCompacted(
        at=1763200003.0,
        replaced=1,
        messages=(UserMessage("So far."),),
        estimated=Usage(input=40, output=1),
        estimated_cost=122_000,
    ),
    "event.ended_estimated": RunEnded(
        at=1763200003.0,
        outcome=Outcome(
            result="completed",
            reason="answered",
            text="42",
            estimated=Usage(input=40, output=1),
            estimated_cost=122_000,
        ),
    ),
    "event.reply_written_1h": ReplyReceived(
        at=1763200003.0,
        turn=1,
        reply=Reply(AssistantMessage(text="42"), usage=Usage(input=1000, output=5, written=900, written_1h=900)),
    ),
}
"""Fields that were added after the release of their format."""

EXPECTED: dict[int, dict[str, Event | Item | Outcome | RunSpec]] = {
    1: {
        **_named("event", _EVENTS),
        **_named("item", _ITEMS),
        "outcome": _OUTCOME,
        "brief": RUN_SPEC,
        "brief.sampling": RunSpec(agent="researcher", max_output=4096, temperature=0.5, top_p=0.9),
        "brief.options": RunSpec(
            agent="researcher",
            effort="low",
            options=RequestOptions(
                stop=("END",),
                seed=7,
                service_tier="flex",
                tool_choice="auto",
                parallel_tool_calls=True,
                cache_ttl="1h",
                stream=False,
                betas=("beta-1",),
                extra_body='{"user":"search"}',
                extra_headers=(("X-Team", "search"),),
            ),
        ),
        "brief.batch": RunSpec(agent="reader", options=RequestOptions(batch_hours=24.0)),
        "brief.tags": RunSpec(agent="researcher", tags=("gpu", "eu")),
        "brief.priority": RunSpec(agent="researcher", priority=5),
        "brief.ceiling": RunSpec(agent="researcher", tool_ceiling=("search", "spawn")),
        **_ADDED,
    },
}
"""By format and name: the value to which the file of that name must decode."""


def folder_of(format: int) -> Path:
    """The folder of a format's files."""
    return CORPUS / f"format_{format}"


def write_missing() -> None:
    """Write the missing files of the newest format."""
    folder = folder_of(FORMAT)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {f"{name}.json": _pretty(value) + b"\n" for name, value in EXPECTED[FORMAT].items()}
    contents["log.jsonl"] = b"".join(msgspec.json.encode(event) + b"\n" for event in LOG)
    for name, content in contents.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


if __name__ == "__main__":
    write_missing()
