"""Make a recording from the stored events of a tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.app.engine_types import Supervisor
from retinue.core.agent import ToolSpec
from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput
from retinue.core.events import (
    STOPPED,
    AgentChanged,
    CallReturned,
    Event,
    HistoryCompacted,
    ReplyReceived,
    RunAccepted,
    RunEnded,
    TurnFailed,
)
from retinue.core.ids import RunId, call_key
from retinue.core.ports import (
    Provider,
    Tool,
    cached_price_of,
    counts_exactly,
    longest_reply_of,
    price_of,
    window_of,
)
from retinue.core.run import is_hosted
from retinue.core.state import Run, apply
from retinue.dialects import registry
from retinue.recording.file import (
    FORMAT,
    HOME,
    SESSION,
    WORKSPACE,
    RecordedEnd,
    RecordedFact,
    RecordedFailure,
    RecordedModel,
    RecordedReply,
    RecordedRequest,
    RecordedResult,
    RecordedRun,
    RecordedSpec,
    RecordedTree,
    Recording,
    RunMessages,
    placeholders,
    rewritten,
    run_placeholder,
)

OPTIONS = ("max_output", "temperature", "top_p", "think", "effort")
"""Options of requests that are recorded, and compared in a replay."""


class Definitions(Struct, frozen=True):
    """What the store does not keep: definitions of tools and prices of models. Without it, neither is recorded."""

    tools: Callable[[Run], tuple[ToolSpec, ...] | None] = lambda run: None
    find_tool: Callable[[str, tuple[str, ...]], Tool | None] = lambda name, dialects: None
    find_provider: Callable[[str], Provider | None] = lambda name: None


async def record_tree(supervisor: Supervisor, root_id: RunId, definitions: Definitions | None = None) -> Recording:
    """The recording of an ended tree; raises `BadInput` for one that cannot be played again."""
    rows = await supervisor.stored.runs(RunQuery(root_id=root_id))
    rows = sorted(rows, key=lambda row: (row.depth, row.accepted_at, row.run_id))
    if not rows or rows[0].run_id != root_id:
        raise BadInput(f"{root_id} is no root run: a recording has a whole tree")
    if unfinished := [row.path for row in rows if row.progress.phase != "ended"]:
        raise BadInput(f"the run {unfinished[0]} has not ended: only an ended tree can be recorded")
    if is_hosted(rows[0].label):
        raise BadInput("the calls of this tree came from a program outside, which a recording does not have")
    maker = _Maker({row.run_id: row.path for row in rows}, definitions or Definitions())
    logs = {row.run_id: await supervisor.stored.events(row.run_id) for row in rows}
    for row in rows:
        maker.learn_start(_acceptance(row.path, logs[row.run_id]))
    for row in rows:
        accepted = _acceptance(row.path, logs[row.run_id])
        inherits, history = accepted.inherits, None
        if inherits is not None:
            history = (await supervisor.replay(inherits.run_id, upto=inherits.upto)).history
        run_spec = await supervisor.stored.run_spec(accepted.run_spec)
        maker.add_run(Run(accepted, run_spec, history), logs[row.run_id])
    names = {row.run_id: run_placeholder(row.path) for row in rows}
    names |= surroundings(rows[0].session_id, maker.workspaces)
    recording = msgspec.to_builtins(maker.recording())
    return msgspec.convert(rewritten(recording, placeholders(names)), Recording)


def surroundings(session_id: str, workspaces: Sequence[str]) -> dict[str, str]:
    """Texts that differ between machines and between plays, with their placeholders."""
    home = str(Path.home())
    paths = {home: HOME} | dict.fromkeys(workspaces, WORKSPACE)
    return {path: name for path, name in paths.items() if len(path) > 1} | {session_id: SESSION}


def _acceptance(path: str, log: Sequence[tuple[int, Event]]) -> RunAccepted:
    accepted = log[0][1] if log else None
    if not isinstance(accepted, RunAccepted):
        raise BadInput(f"the events of {path} were deleted")
    return accepted


class _Maker:
    """Collects the facts of a tree with their times."""

    def __init__(self, paths: dict[RunId, str], definitions: Definitions) -> None:
        self._paths = paths
        self._definitions = definitions
        self._dialect_tools = frozenset(registry.tool_names())
        self._calls_with_runs: set[str] = set()
        self._facts: list[tuple[float, RecordedFact]] = []
        self._specs: dict[bytes, RecordedSpec] = {}
        self._models: dict[tuple[str, str], RecordedModel] = {}
        self._tree: RecordedTree | None = None
        self.workspaces: list[str] = [os.getcwd()]

    def recording(self) -> Recording:
        """What was collected; facts of equal times stay in the order in which they were added, parents first."""
        assert self._tree is not None
        return Recording(
            tree=self._tree,
            models=tuple(self._models.values()),
            specs=tuple(self._specs.values()),
            facts=tuple(fact for _, fact in sorted(self._facts, key=lambda each: each[0])),
        )

    def learn_start(self, accepted: RunAccepted) -> None:
        """Note which call started a run."""
        if accepted.key is not None and accepted.parent_id is not None:
            self._calls_with_runs.add("/".join(accepted.key.split("/")[:3]))

    def add_run(self, run: Run, log: Sequence[tuple[int, Event]]) -> None:
        """Add the facts of one run, in their order and not before its start."""
        accepted = run.accepted
        path = accepted.path
        if run.run_spec.workspace and run.run_spec.workspace not in self.workspaces:
            self.workspaces.append(run.run_spec.workspace)
        if accepted.parent_id is None:
            self._tree = RecordedTree(format=FORMAT, task=accepted.task, agent=accepted.agent, spec=self._spec_id(run))
        above = "" if accepted.parent_id is None else self._paths[accepted.parent_id]
        start = RecordedRun(run=path, agent=accepted.agent, task=accepted.task, by=above, label=accepted.label)
        self._facts.append((accepted.at, start))
        conversation, last, handovers = RunMessages(), accepted.at, _turns_with_handover(log)
        for seq, event in log[1:]:
            began, last = last, max(last, event.at)
            match event:
                case ReplyReceived(turn=turn, reply=reply):
                    self._add_request(run, turn, conversation, max(began, last - (event.duration or 0.0)))
                    conversation.reply(reply)
                    made = RecordedReply(
                        run=path, turn=turn, reply=reply, failed=event.failed, failed_cost=event.failed_cost
                    )
                    self._facts.append((last, made))
                case TurnFailed(turn=turn) if event.fault != STOPPED:
                    self._add_request(run, turn, conversation, max(began, last - (event.duration or 0.0)))
                    failure = RecordedFailure(
                        run=path,
                        turn=turn,
                        fault=event.fault,
                        error=event.error,
                        partial=event.partial,
                        usage=event.usage,
                        cost=event.cost,
                    )
                    self._facts.append((last, failure))
                case CallReturned(turn=turn, index=index):
                    conversation.result(index, event.text, failed=event.failed)
                    self._facts.append((last, self._result(run, event, is_handover=turn in handovers)))
                case HistoryCompacted(way="summarised"):
                    raise BadInput(f"the history of {path} was summarised, and the store does not have the summary")
                case RunEnded(outcome=outcome):
                    self._facts.append((last, RecordedEnd(run=path, outcome=outcome)))
                case _:
                    pass
            apply(run, seq, event)

    def _add_request(self, run: Run, turn: int, conversation: RunMessages, at: float) -> None:
        actual, expected = list(run.history), conversation.expected()
        whole = actual[: len(expected)] != expected
        messages = tuple(actual if whole else actual[len(expected) :])
        conversation.request(messages, whole=whole)
        system = None if run.system == run.run_spec.system else run.system
        spec = self._spec_id(run)
        request = RecordedRequest(
            run=run.accepted.path, turn=turn, spec=spec, messages=messages, whole=whole, system=system
        )
        self._facts.append((at, request))

    def _result(self, run: Run, event: CallReturned, *, is_handover: bool) -> RecordedResult:
        name = run.open[event.index].call.name
        tool = self._definitions.find_tool(name, run.run_spec.dialects)
        is_live = (
            is_handover
            or name in self._dialect_tools
            or (tool is not None and tool.kind == "keyed")
            or call_key(run.run_id, event.turn, event.index) in self._calls_with_runs
        )
        return RecordedResult(
            run=run.accepted.path,
            turn=event.turn,
            call=event.index,
            tool=name,
            text=event.text,
            failed=event.failed,
            refused=event.refused,
            live=is_live,
        )

    def _spec_id(self, run: Run) -> str:
        """The id of the spec of a run, which is added if it is new."""
        spec = run.run_spec
        options = {name: value for name in OPTIONS if (value := getattr(spec, name)) not in (None, False)}
        recorded = RecordedSpec(
            id="",
            agent=spec.agent,
            provider=spec.provider,
            model=spec.model,
            system=spec.system,
            tools=self._definitions.tools(run),
            options=options,
        )
        encoded = msgspec.json.encode(recorded)
        if encoded not in self._specs:
            name = spec.agent
            if any(each.id == name for each in self._specs.values()):
                name = f"{spec.agent}-{len(self._specs) + 1}"
            self._specs[encoded] = msgspec.structs.replace(recorded, id=name)
            for provider, model in ((spec.provider, spec.model), *spec.fallback):
                self._add_model(provider, model)
        return self._specs[encoded].id

    def _add_model(self, name: str, model: str) -> None:
        if (name, model) in self._models:
            return
        recorded = RecordedModel(provider=name, model=model)
        if (provider := self._definitions.find_provider(name)) is not None:
            recorded = RecordedModel(
                provider=name,
                model=model,
                price=price_of(provider, model),
                cached_price=cached_price_of(provider, model),
                window=window_of(provider, model),
                longest_reply=longest_reply_of(provider, model),
                counts_exactly=counts_exactly(provider),
            )
        self._models[name, model] = recorded


def _turns_with_handover(log: Sequence[tuple[int, Event]]) -> set[int]:
    """The turns in which the run was handed over to another agent, by a call that has to be made again."""
    turn, found = 0, set[int]()
    for _, event in log:
        if isinstance(event, ReplyReceived):
            turn = event.turn
        elif isinstance(event, AgentChanged):
            found.add(turn)
    return found
