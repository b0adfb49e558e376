"""Spans and metrics of runs, made from their events.

Trace and span ids follow from the ids of runs and the numbers of turns and calls. So any process knows the id of a span
that another one will export: a tree that is resumed elsewhere goes on in the same trace, and the spans of a process
that was killed can be exported again, byte for byte, from the stored events. A span is exported when its work ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from retinue.core.events import CallReturned, Event, HistoryCompacted, ReplyReceived, RunAccepted, RunEnded, TurnFailed
from retinue.core.ids import RunId
from retinue.core.messages import AssistantMessage, UserMessage
from retinue.core.run import Outcome
from retinue.core.state import OpenCall, Run
from retinue.core.usage import NANO, NO_USAGE, Usage
from retinue.telemetry import genai
from retinue.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE = "retinue"

TRACEPARENT = "TRACEPARENT"
"""The environment variable with the trace context of the process that started this one."""

_CONTEXT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

TOKEN_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
SECOND_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The bounds of histograms that the conventions prescribe."""

Attributes = dict[str, Any]


class TraceContext(NamedTuple):
    """A parsed `traceparent`."""

    trace_id: int
    span_id: int
    flags: int

    @classmethod
    def parse(cls, text: str) -> TraceContext | None:
        """The context in a text; None for an invalid one.

        >>> TraceContext.parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").flags
        1
        >>> TraceContext.parse("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is None
        True
        """
        found = _CONTEXT.fullmatch(text)
        return None if found is None else cls(int(found[1], 16), int(found[2], 16), int(found[3], 16))

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def _hash(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest(), "big") or 1


def trace_id_of(root_id: RunId) -> int:
    """The id of the trace of a tree that was not started inside another trace."""
    return _hash(root_id, 16)


def run_span_id(run_id: RunId) -> int:
    """The id of the span `invoke_agent` of a run."""
    return _hash(run_id, 8)


def chat_span_id(run_id: RunId, turn: int) -> int:
    """The id of the span `chat` of a turn."""
    return _hash(f"{run_id}/{turn}/chat", 8)


def call_span_id(run_id: RunId, turn: int, index: int) -> int:
    """The id of the span `execute_tool` of a call."""
    return _hash(f"{run_id}/{turn}/{index}", 8)


def parent_span_id(accepted: RunAccepted) -> int:
    """The id of the span that a child belongs to: the tool call that started it, if its key names one, else its parent.

    Calls of a program outside, in the name of a hosted run, have no span: their children belong to the run.
    """
    assert accepted.parent_id is not None
    turn, index = _call_of_key(accepted)
    if turn is None or turn < 1 or index is None:
        return run_span_id(accepted.parent_id)
    return call_span_id(accepted.parent_id, turn, index)


def _call_of_key(accepted: RunAccepted) -> tuple[int | None, int | None]:
    prefix = f"{accepted.parent_id}/"
    if accepted.key is None or not accepted.key.startswith(prefix):
        return None, None
    parts = accepted.key.removeprefix(prefix).split("/")
    if len(parts) < 2 or not all(part.isdecimal() and len(part) < 10 for part in parts[:2]):
        return None, None
    return int(parts[0]), int(parts[1])


class DerivedIds:
    """An id generator for an SDK's tracer: gives out the ids that were set for the next span, else those of `base`."""

    def __init__(self, base: Any) -> None:
        self._base = base
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id or self._base.generate_trace_id()

    def generate_span_id(self) -> int:
        return self.span_id or self._base.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return False


class _RunTimes:
    """Times of a run that its state does not have: of its last event and its last reply."""

    __slots__ = ("last", "reply")

    def __init__(self, at: float) -> None:
        self.last = self.reply = at


class OtelTracing:
    """The `Tracing` port for providers of OpenTelemetry's SDK. Contents are exported only with `capture`."""

    def __init__(
        self,
        tracer_provider: TracerProvider,
        meter_provider: MeterProvider | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._tracer: Any = tracer_provider.get_tracer(SCOPE, __version__)
        self._ids = DerivedIds(getattr(self._tracer, "id_generator", None))
        self._tracer.id_generator = self._ids
        self._capture = genai.captures(environment)
        self._caller = environment.get(TRACEPARENT, "").strip()
        self._times: dict[RunId, _RunTimes] = {}
        self._is_sampled = lru_cache(4096)(self._decide)
        self._metrics = _Metrics(meter_provider) if meter_provider is not None else None

    # ---- the trace context ------------------------------------------------------------------------------------------

    def context_of_caller(self) -> str:
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            return str(TraceContext(current.trace_id, current.span_id, int(current.trace_flags) & 1))
        caller = TraceContext.parse(self._caller)
        return "" if caller is None else str(caller)

    def context_of_run(self, accepted: RunAccepted) -> str:
        return self._context(accepted, run_span_id(accepted.run_id))

    def context_of_tool_call(self, accepted: RunAccepted, turn: int, index: int) -> str:
        if accepted.lifecycle.hosted:
            return self.context_of_run(accepted)
        return self._context(accepted, call_span_id(accepted.run_id, turn, index))

    def _context(self, accepted: RunAccepted, span_id: int) -> str:
        trace_id, flags = self._trace(accepted)
        return str(TraceContext(trace_id, span_id, flags))

    @contextmanager
    def within(self, context: str) -> Generator[None]:
        parsed = TraceContext.parse(context)
        if parsed is None:
            yield
            return
        token = otel_context.attach(_as_context(parsed, base=otel_context.get_current()))
        try:
            yield
        finally:
            otel_context.detach(token)

    def _trace(self, accepted: RunAccepted) -> tuple[int, int]:
        """The id and the flags of the trace of a run."""
        caller = TraceContext.parse(accepted.trace)
        if caller is not None:
            return caller.trace_id, caller.flags
        trace_id = trace_id_of(accepted.root_id)
        return trace_id, int(self._is_sampled(trace_id))

    def _decide(self, trace_id: int) -> bool:
        sampler = getattr(self._tracer, "sampler", None)
        return sampler is None or sampler.should_sample(None, trace_id, "invoke_agent").decision.is_sampled()

    # ---- spans ------------------------------------------------------------------------------------------------------

    def record(self, run: Run, event: Event) -> None:
        self._record(run, event, again=False)

    def record_again(self, run: Run, event: Event, *, since: float) -> None:
        """Receive a stored event of a run whose process is gone: its spans are exported again if it is not older.

        Spans keep their ids, so that a collector that has them receives the same ones. Metrics are not counted twice.
        """
        self._record(run, event, again=True, export=event.at >= since)

    def _record(self, run: Run, event: Event, *, again: bool, export: bool = True) -> None:
        accepted = run.accepted
        times = self._times.get(accepted.run_id)
        if times is None:
            times = self._times[accepted.run_id] = _RunTimes(accepted.at)
        if export:
            match event:
                case ReplyReceived():
                    self._reply(run, event, times, again=again)
                case CallReturned():
                    self._call(run, run.open[event.index], event, times)
                case TurnFailed():
                    self._failed_turn(run, event, times, again=again)
                case HistoryCompacted(duration=float()):
                    self._summary(run, event, again=again)
                case RunEnded():
                    self._end(run, event, times)
                case _:
                    pass
        times.last = event.at
        if isinstance(event, ReplyReceived):
            times.reply = event.at
        elif isinstance(event, RunEnded):
            del self._times[accepted.run_id]

    def _reply(self, run: Run, event: ReplyReceived, times: _RunTimes, *, again: bool) -> None:
        reply, usage = event.reply, event.reply.usage
        attributes = self._chat_attributes(run, event.turn) | {
            "gen_ai.response.finish_reasons": (genai.FINISH_REASONS[reply.stop],)
        }
        if reply.model:
            attributes["gen_ai.response.model"] = reply.model
        if reply.response_id:
            attributes["gen_ai.response.id"] = reply.response_id
        if usage is not None:
            attributes |= genai.usage_attributes(usage)
        attributes |= _cost(reply.cost)
        if self._capture:
            attributes |= self._contents(run, reply.message, genai.FINISH_REASONS[reply.stop])
        began = _began(event.at, event.duration, times.last)
        self._export_chat(run, chat_span_id(run.run_id, event.turn), began, event.at, attributes)
        if self._metrics is not None and not again:
            self._metrics.chat(attributes, event.duration, (usage or NO_USAGE) + event.failed, reply.cost)

    def _failed_turn(self, run: Run, event: TurnFailed, times: _RunTimes, *, again: bool) -> None:
        attributes = self._chat_attributes(run, event.turn) | {"error.type": event.fault} | _cost(event.cost)
        if event.usage.total:
            attributes |= genai.usage_attributes(event.usage)
        if self._capture:
            attributes |= self._contents(run, AssistantMessage(event.partial) if event.partial else None, genai.FAILED)
        began = _began(event.at, event.duration, times.last)
        error = event.error if self._capture else event.fault
        span_id = _hash(f"{run.run_id}/{event.turn}/failed/{run.seq}", 8)
        self._export_chat(run, span_id, began, event.at, attributes, error)
        if self._metrics is not None and not again:
            self._metrics.chat(attributes, event.duration, event.usage, event.cost)

    def _summary(self, run: Run, event: HistoryCompacted, *, again: bool) -> None:
        """The model call that summarised older turns."""
        attributes = self._chat_attributes(run, None) | {"retinue.purpose": "summary"}
        attributes |= genai.usage_attributes(event.usage) | _cost(event.cost)
        if event.model:
            attributes["gen_ai.response.model"] = event.model
        began = _began(event.at, event.duration, event.at)
        self._export_chat(run, _hash(f"{run.run_id}/{run.seq}/summary", 8), began, event.at, attributes)
        if self._metrics is not None and not again:
            self._metrics.chat(attributes, event.duration, event.usage, event.cost)

    def _chat_attributes(self, run: Run, turn: int | None) -> Attributes:
        spec = run.run_spec
        asked: dict[str, object] = {
            "gen_ai.request.max_tokens": spec.max_output,
            "gen_ai.request.temperature": spec.temperature,
            "gen_ai.request.top_p": spec.top_p,
            "retinue.turn": turn,
        }
        return (
            {"gen_ai.operation.name": "chat"}
            | _common(run)
            | {name: value for name, value in asked.items() if value is not None}
        )

    def _contents(self, run: Run, reply: AssistantMessage | None, finish_reason: str) -> Attributes:
        contents = {"gen_ai.input.messages": genai.messages_text(run.history)}
        if run.system:
            contents["gen_ai.system_instructions"] = genai.instructions_text(run.system)
        if reply is not None:
            contents["gen_ai.output.messages"] = genai.output_text(reply, finish_reason)
        return contents

    def _export_chat(
        self, run: Run, span_id: int, began: float, ended: float, attributes: Attributes, error: str | None = None
    ) -> None:
        name = f"chat {attributes['gen_ai.request.model']}".rstrip()
        parent = run_span_id(run.run_id)
        self._export(name, SpanKind.CLIENT, run.accepted, span_id, parent, began, ended, attributes, error)

    def _call(self, run: Run, call: OpenCall, event: CallReturned, times: _RunTimes) -> None:
        began = event.at if event.duration is None else _began(event.at, event.duration, times.reply)
        error = None
        if event.failed:
            error = event.refused or ("crashed" if event.crashed else "tool_error")
        self._export_call(run, call, event.turn, began, event.at, error, result=event.text)

    def _export_call(
        self, run: Run, call: OpenCall, turn: int, began: float, ended: float, error: str | None, *, result: str | None
    ) -> None:
        name = call.call.name
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.agent.name": run.run_spec.agent,
            "gen_ai.conversation.id": run.accepted.session_id,
            "retinue.run.id": run.run_id,
            "retinue.run.path": run.accepted.path,
            "retinue.turn": turn,
        }
        if call.call.id:
            attributes["gen_ai.tool.call.id"] = call.call.id
        if error is not None:
            attributes["error.type"] = error
        if self._capture:
            attributes["gen_ai.tool.call.arguments"] = call.call.arguments[: genai.MAX_CONTENT]
            if result is not None:
                attributes["gen_ai.tool.call.result"] = result[: genai.MAX_CONTENT]
        span_id, parent = call_span_id(run.run_id, turn, call.index), run_span_id(run.run_id)
        title = f"execute_tool {name}"[:200]
        self._export(title, SpanKind.INTERNAL, run.accepted, span_id, parent, began, ended, attributes, error)

    def _end(self, run: Run, event: RunEnded, times: _RunTimes) -> None:
        outcome, accepted = event.outcome, run.accepted
        if outcome.result != "exhausted":  # whose open calls were not made
            for call in run.open:
                if call.result is None:  # it may have started runs, whose spans are below this one
                    self._export_call(run, call, run.turns, times.reply, event.at, outcome.reason, result=None)
        attributes: Attributes = {"gen_ai.operation.name": "invoke_agent"} | _common(run)
        attributes |= {
            "retinue.end_reason": outcome.reason,
            "retinue.turns": outcome.turns,
            "retinue.depth": accepted.depth,
        }
        attributes |= genai.usage_attributes(outcome.usage) | _cost(outcome.cost)
        for name, text in (("retinue.label", accepted.label), ("retinue.dialect", accepted.dialect)):
            if text:
                attributes[name] = text
        error = None
        if outcome.result != "completed":
            error = attributes["error.type"] = outcome.reason
        if self._capture:
            attributes["gen_ai.input.messages"] = genai.messages_text([UserMessage(accepted.task)])
            finish_reason = genai.FINISH_REASONS["end"] if outcome.result == "completed" else genai.FAILED
            attributes["gen_ai.output.messages"] = genai.output_text(AssistantMessage(outcome.text), finish_reason)
            error = _message_of(outcome) if error is not None else None
        title = f"invoke_agent {run.run_spec.agent}".rstrip()
        parent = None if accepted.parent_id is None else parent_span_id(accepted)
        span_id = run_span_id(run.run_id)
        self._export(title, SpanKind.INTERNAL, accepted, span_id, parent, accepted.at, event.at, attributes, error)

    def _export(
        self,
        name: str,
        kind: SpanKind,
        accepted: RunAccepted,
        span_id: int,
        parent: int | None,
        began: float,
        ended: float,
        attributes: Attributes,
        error: str | None,
    ) -> None:
        trace_id, flags = self._trace(accepted)
        caller = TraceContext.parse(accepted.trace)
        if parent is not None:
            context = _as_context(TraceContext(trace_id, parent, flags))
        elif caller is not None:
            context = _as_context(caller, is_remote=True)
        else:
            context = otel_context.Context()
        self._ids.trace_id, self._ids.span_id = trace_id, span_id
        try:
            span = self._tracer.start_span(
                name, context=context, kind=kind, attributes=attributes, start_time=_nanoseconds(min(began, ended))
            )
        finally:
            self._ids.trace_id = self._ids.span_id = 0
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end(_nanoseconds(ended))


class _Metrics:
    """The metrics of model calls; names and bounds are those of the GenAI conventions, but for the cost."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, __version__)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BOUNDS,
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECOND_BOUNDS,
        )
        self._cost = meter.create_counter("retinue.cost", unit="{USD}", description="Cost of model calls.")

    def chat(self, attributes: Attributes, seconds: float | None, usage: Usage, cost: int | None) -> None:
        names = ("operation.name", "provider.name", "request.model", "response.model")
        about = {key: attributes[key] for name in names if (key := f"gen_ai.{name}") in attributes}
        if seconds is not None:
            ended = {"error.type": attributes["error.type"]} if "error.type" in attributes else {}
            self._duration.record(seconds, about | ended)
        for kind, number in (("input", usage.input), ("output", usage.output)):
            if number:
                self._tokens.record(number, about | {"gen_ai.token.type": kind})
        if cost:
            self._cost.add(cost / NANO, about)


def _common(run: Run) -> Attributes:
    spec, accepted = run.run_spec, run.accepted
    return {
        "gen_ai.provider.name": genai.provider_name(spec.provider),
        "gen_ai.request.model": spec.model,
        "gen_ai.agent.name": spec.agent,
        "gen_ai.conversation.id": accepted.session_id,
        "retinue.run.id": accepted.run_id,
        "retinue.run.path": accepted.path,
    }


def _cost(cost: int | None) -> Attributes:
    return {} if cost is None else {"retinue.cost.usd": cost / NANO}


def _message_of(outcome: Outcome) -> str:
    return outcome.error or outcome.reason


def _began(ended: float, duration: float | None, otherwise: float) -> float:
    return otherwise if duration is None else ended - duration


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


def _as_context(
    parent: TraceContext, *, base: otel_context.Context | None = None, is_remote: bool = False
) -> otel_context.Context:
    span_context = SpanContext(parent.trace_id, parent.span_id, is_remote, TraceFlags(parent.flags))
    return trace.set_span_in_context(NonRecordingSpan(span_context), base or otel_context.Context())
