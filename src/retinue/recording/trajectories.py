"""What the runs of a tree did, for assertions: calls of tools in their order, delegations, messages, and costs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from retinue.app.handle import RunHandle
from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput
from retinue.core.events import CallReturned, Event, MailTaken, ReplyReceived, RunAccepted
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Input, TextMessage
from retinue.core.usage import NANO, NO_USAGE, Usage, add_cost


class MadeCall(Struct, frozen=True, kw_only=True):
    """One tool call of a tree. `arguments` is the text that the model wrote."""

    path: str
    agent: str
    turn: int
    tool: str
    arguments: str
    text: str = ""
    failed: bool = False


class ReadMessage(Struct, frozen=True, kw_only=True):
    """A message that a run has read. `by` is the agent that sent it, empty if it came from outside of the tree."""

    path: str
    by: str
    to: str
    text: str


class Trajectory(Struct, frozen=True, kw_only=True):
    """What a tree did. `calls` are in the order in which they returned, over all runs.

    `delegations` are pairs of agents, of a run and of the run that it started, in the order of the starts. `messages`
    are those that working runs have read, in that order, without tasks, results and notices of ends.
    `turns` are the replies of all runs, `usage` and `cost` (dollars, None if unknown) what they used.

    >>> Trajectory(calls=(), delegations=(("lead", "dig"),), turns=3).assert_delegated("lead", "dig")
    """

    calls: tuple[MadeCall, ...] = ()
    delegations: tuple[tuple[str, str], ...] = ()
    messages: tuple[ReadMessage, ...] = ()
    turns: int = 0
    usage: Usage = NO_USAGE
    cost: float | None = 0.0

    def tools(self, agent: str | None = None) -> list[str]:
        """The names of the called tools in order, of all runs or of those of one agent."""
        return [call.tool for call in self.calls if agent is None or call.agent == agent]

    def assert_tools(self, *names: str, agent: str | None = None, exactly: bool = False) -> None:
        """Assert that these tools were called in this order, with others between them unless `exactly`."""
        called = self.tools(agent)
        if exactly:
            assert called == list(names), f"expected the calls {list(names)}, found {called}"
            return
        rest = iter(called)
        for name in names:
            assert name in rest, f"expected the calls {list(names)} in this order, found {called}"

    def assert_not_called(self, *names: str) -> None:
        """Assert that none of these tools was called."""
        found = [name for name in self.tools() if name in names]
        assert not found, f"expected no call of {', '.join(names)}, found {found}"

    def assert_delegated(self, by: str, to: str) -> None:
        """Assert that a run of the first agent started one of the second."""
        assert (by, to) in self.delegations, f"expected {by} to start {to}, found {list(self.delegations)}"

    def assert_messaged(self, by: str, to: str, text: str = "") -> None:
        """Assert that a run of the second agent has read a message of one of the first, which contains `text`.

        An empty `by` is a caller from outside of the tree.
        """
        found = [(each.by, each.to, each.text) for each in self.messages]
        sent = any((each_by, each_to) == (by, to) and text in each for each_by, each_to, each in found)
        assert sent, (
            f"expected a message of {by or 'the caller'} to {to}{f' with {text!r}' if text else ''}, found {found}"
        )

    def assert_within(
        self,
        *,
        turns: int | None = None,
        calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        runs: int | None = None,
    ) -> None:
        """Assert that the whole tree used no more than these numbers; `cost` is in dollars, `runs` without the root."""
        used = (
            ("turns", self.turns, turns),
            ("calls", len(self.calls), calls),
            ("tokens", self.usage.total, tokens),
            ("runs", len(self.delegations), runs),
        )
        for name, number, most in used:
            assert most is None or number <= most, f"expected at most {most} {name}, found {number}"
        if cost is not None:
            assert self.cost is not None, f"expected a cost of at most {cost} dollars, and a price is not known"
            assert self.cost <= cost, f"expected a cost of at most {cost} dollars, found {self.cost}"


async def trajectory_of(retinue: Retinue, run: RunHandle | RunId | None = None) -> Trajectory:
    """What the tree of a root run did; without `run`, of the newest root run."""
    stored = retinue.supervisor.stored
    if run is None:
        newest = await stored.runs(RunQuery(roots_only=True, limit=1))
        if not newest:
            raise BadInput("trajectory_of: no run was started")
        run = newest[0].run_id
    root_id = run if isinstance(run, str) else run.run_id
    rows = await stored.runs(RunQuery(root_id=root_id))
    logs = [[event for _, event in await stored.events(row.run_id)] for row in rows]
    return _of_events(logs)


def _of_events(logs: Iterable[list[Event]]) -> Trajectory:
    """What runs did, by their events."""
    calls: list[tuple[float, MadeCall]] = []
    starts: list[tuple[float, str | None, RunAccepted]] = []
    read: list[tuple[float, str, RunAccepted, str]] = []
    turns, usage = 0, NO_USAGE
    cost: int | None = 0
    for events in logs:
        accepted, reply = events[0], None
        if not isinstance(accepted, RunAccepted):
            continue
        starts.append((accepted.at, accepted.parent_id, accepted))
        for event in events:
            if isinstance(event, ReplyReceived):
                reply, turns = event.reply, turns + 1
                usage += (reply.usage or NO_USAGE) + event.failed
                cost = add_cost(cost, add_cost(reply.cost, event.failed_cost))
            elif isinstance(event, MailTaken):
                texts = [item for item in event.items if isinstance(item, TextMessage | Input)]
                read += [(event.at, _sender(item.key), accepted, item.text) for item in texts]
            elif isinstance(event, CallReturned) and reply is not None:
                call = reply.message.calls[event.index]
                made = MadeCall(
                    path=accepted.path,
                    agent=accepted.agent,
                    turn=event.turn,
                    tool=call.name,
                    arguments=call.arguments,
                    text=event.text,
                    failed=event.failed,
                )
                calls.append((event.at, made))
    agents = {accepted.run_id: accepted.agent for _, _, accepted in starts}
    return Trajectory(
        calls=tuple(made for _, made in sorted(calls, key=lambda each: each[0])),
        delegations=tuple(
            (agents.get(parent, ""), accepted.agent)
            for _, parent, accepted in sorted(starts, key=lambda each: each[0])
            if parent is not None
        ),
        messages=tuple(
            ReadMessage(path=accepted.path, by=agents.get(sender, ""), to=accepted.agent, text=text)
            for _, sender, accepted, text in sorted(read, key=lambda each: each[0])
        ),
        turns=turns,
        usage=usage,
        cost=None if cost is None else cost / NANO,
    )


def _sender(key: Key) -> RunId:
    """The run whose call sent a message, by the key of the message; what a caller chose is no run of the tree."""
    return key.removeprefix("peer/").partition("/")[0]
