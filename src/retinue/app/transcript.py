"""The events of a run as a readable conversation: messages, tool calls and their results, notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, assert_never

from msgspec import Struct

from retinue.core import events, inbox
from retinue.core.agent import SERVER_PREFIX
from retinue.core.attachments import with_labels
from retinue.core.messages import Citation, Reply, ToolCall
from retinue.core.run import Outcome
from retinue.core.text import clean_line, plural, rfc3339
from retinue.core.usage import count, money, tokens_text

EntryKind = Literal["task", "words", "thinking", "reply", "call", "result", "note", "error", "end"]


class TranscriptEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the conversation; `name` is the tool of a call, or the author of a message."""

    at: str
    kind: EntryKind
    text: str = ""
    name: str = ""
    turn: int | None = None
    failed: bool = False


class RunEntries:
    """The entries of one run, made from its events in their order."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], ToolCall] = {}

    def entries(self, event: events.Event) -> list[TranscriptEntry]:
        """The entries of the next event."""
        return list(_entries(event, self._calls))


CALLS_IN_TEXT = "the model wrote its calls as text; they were recognised"


def entries(history: Iterable[events.Event]) -> list[TranscriptEntry]:
    conversation = RunEntries()
    return [entry for event in history for entry in conversation.entries(event)]


def _entries(event: events.Event, calls: dict[tuple[int, int], ToolCall]) -> Iterator[TranscriptEntry]:
    at = rfc3339(event.at)
    match event:
        case events.RunAccepted(task=task, attachments=attachments):
            yield TranscriptEntry(at=at, kind="task", text=with_labels(task, attachments))
        case events.ReplyReceived(turn=turn, reply=reply):
            thoughts = "\n".join(thinking.text for thinking in reply.message.thinking if thinking.text)
            if thoughts:
                yield TranscriptEntry(at=at, kind="thinking", turn=turn, text=thoughts)
            if reply.message.text or not reply.message.calls:
                yield TranscriptEntry(at=at, kind="reply", turn=turn, text=reply.message.text)
            if reply.server_tools or reply.message.citations:
                yield TranscriptEntry(at=at, kind="note", turn=turn, text=_sources(reply))
            if reply.calls_in_text:
                yield TranscriptEntry(at=at, kind="note", turn=turn, text=CALLS_IN_TEXT)
            for index, call in enumerate(reply.message.calls):
                calls[turn, index] = call
                yield TranscriptEntry(at=at, kind="call", turn=turn, name=call.name, text=call.readable)
        case events.CallReturned(turn=turn, index=index, failed=failed):
            name = calls[turn, index].name if (turn, index) in calls else ""
            text = with_labels(event.text, event.attachments)
            yield TranscriptEntry(at=at, kind="result", turn=turn, name=name, text=text, failed=failed)
        case events.MailTaken(items=items):
            for item in items:
                yield from _mail(at, item)
        case events.TurnFailed(fault="stopped", turn=turn, error=error):
            yield TranscriptEntry(at=at, kind="note", turn=turn, text=f"the model call was {error}")
        case events.TurnFailed(turn=turn, error=error, partial=partial):
            if partial:
                yield TranscriptEntry(at=at, kind="reply", turn=turn, text=partial, failed=True)
            yield TranscriptEntry(at=at, kind="error", turn=turn, text=error)
        case events.CallParked(turn=turn, tool=tool, reason=reason):
            yield TranscriptEntry(
                at=at, kind="note", turn=turn, text=f"{tool} waits for a person: {reason or 'needs approval'}"
            )
        case events.WrapUpAsked(text=text) | events.RepairAsked(text=text) | events.AdviceGiven(text=text):
            yield TranscriptEntry(at=at, kind="words", name="retinue", text=text)
        case events.ExchangeEnded(exchange=exchange):
            yield TranscriptEntry(at=at, kind="note", text=f"exchange {exchange.result} ({exchange.reason})")
        case events.RunLeft():
            yield TranscriptEntry(at=at, kind="note", text="its process went away; the run can go on later")
        case events.RunAdopted():
            yield TranscriptEntry(at=at, kind="note", text="another process went on with the run")
        case events.HistoryCompacted():
            yield TranscriptEntry(at=at, kind="note", text=_compaction(event))
        case events.AgentChanged(agent=agent):
            yield TranscriptEntry(at=at, kind="note", text=f"handed over to the agent {agent}")
        case events.ResultCollected(run_id=run_id):
            yield TranscriptEntry(at=at, kind="note", text=f"collected the result of run {run_id}")
        case events.RunEnded(outcome=outcome):
            yield _end(at, outcome)
        case _:
            assert_never(event)


def source_lines(citations: Sequence[Citation]) -> list[str]:
    """The sources of an answer, each once, numbered and without control characters.

    >>> source_lines([Citation("https://h.example/a", "Pools"), Citation("https://h.example/a", "Pools")])
    ['[1] Pools <https://h.example/a>']
    """
    sources = dict.fromkeys((each.title, each.url) for each in citations if each.title or each.url)
    texts = (f"{title} <{url}>" if title and url else title or f"<{url}>" for title, url in sources)
    return [f"[{number}] {clean_line(text[:MAX_SOURCE])}" for number, text in enumerate(texts, start=1)]


MAX_SOURCE = 500
"""Characters of a source that are shown."""


def _sources(reply: Reply) -> str:
    """What the vendor's tools did for a reply, and the sources that it names."""
    uses = [f"{SERVER_PREFIX}{name} was used {plural(count, 'time')}" for name, count in reply.server_tools]
    return "\n".join(("; ".join(uses) or "sources:", *source_lines(reply.message.citations)))


def _compaction(event: events.HistoryCompacted) -> str:
    """How the history was compacted; the entries above still have what was left out."""
    first = "the first message" if event.replaced == 1 else f"the first {event.replaced} messages"
    match event.way:
        case "shortened":
            what = f"long texts in {first} were left out"
        case "summarised":
            what = f"{first} were summarised" + (f" by {event.model}" if event.model else "")
        case "left_out":
            what = f"{first} were left out without a summary"
        case _:
            assert_never(event.way)
    sizes = f": about {tokens_text(event.before)} became {count(event.after)}" if event.before else ""
    return f"to make room, {what}{sizes}"


def _mail(at: str, item: inbox.Item) -> Iterator[TranscriptEntry]:
    match item:
        case inbox.TextMessage(text=text, origin=origin) | inbox.Input(text=text, origin=origin):
            yield TranscriptEntry(at=at, kind="words", name=origin, text=with_labels(text, item.attachments))
        case inbox.ChildEnded(notice=notice, run_id=run_id, result=result):
            yield TranscriptEntry(at=at, kind="words", name="notice", text=notice or f"run {run_id} {result}")
        case inbox.Cancel(reason=reason, note=note):
            yield TranscriptEntry(at=at, kind="note", text=f"cancelled: {note or reason}")
        case inbox.Deadline(seconds=seconds):
            yield TranscriptEntry(at=at, kind="note", text=f"its {seconds:g} seconds are over")
        case inbox.ApprovalAnswer(allow=allow, note=note):
            yield TranscriptEntry(
                at=at, kind="note", text=f"a person said {'yes' if allow else 'no'}{f': {note}' if note else ''}"
            )
        case inbox.DependencyEnded(name=name, ok=ok):
            yield TranscriptEntry(
                at=at, kind="note", text=f"{name}, which it waited for, has {'completed' if ok else 'failed'}"
            )
        case inbox.Close():
            yield TranscriptEntry(at=at, kind="note", text="no more input comes")
        case _:
            assert_never(item)


def _end(at: str, outcome: Outcome) -> TranscriptEntry:
    facts = f"{outcome.result} ({outcome.reason})"
    spent = f"{plural(outcome.usage.input, 'token')} in, {outcome.usage.output} out"
    cost = "" if outcome.cost in (None, 0) else f", {money(outcome.cost)}"
    error = f": {outcome.error}" if outcome.error else ""
    return TranscriptEntry(at=at, kind="end", text=f"{facts}{error}, {spent}{cost}", failed=not outcome.ok)
