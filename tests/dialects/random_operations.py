"""Eight callers that ask for random things at once, and a simple model that says what they may hear.

Whatever was answered has to be explained by some order in which the things happened one after another: that order is
searched for. The process may be dropped at any write; calls that were under way are then entered again with the same
key, as the engine does, and count once.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from retinue.core.errors import StoreError
from retinue.core.ids import call_key
from retinue.core.messages import AssistantMessage, Reply, UserMessage
from retinue.core.ports import CallContext, Publish, Request
from retinue.core.usage import Usage
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from tests.internals import engine_of, live_run

CALLERS = 8
Answer = dict[str, Any] | str


class Mind:
    """A model that answers a child when the test lets it, and a caller never."""

    def __init__(self) -> None:
        self.released: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """One answer, in the end."""
        if request.agent != "main" and request.run_id not in self.released:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(request.run_id, []).append(waiter)
            await waiter
        elif request.agent == "main":
            await asyncio.get_running_loop().create_future()
        messages = [message.text for message in request.messages if isinstance(message, UserMessage)]
        text = f"done, {len(messages)} messages"
        return Reply(AssistantMessage(text=text), usage=Usage(10, 5))

    def release(self, run_id: str) -> None:
        """Let a child answer, now and in any later life."""
        self.released.add(run_id)
        for waiter in self._waiting.pop(run_id, []):
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True)
class Operation:
    """One thing that one caller asks for; `target` is the name of the task or sub-agent that it is about."""

    kind: str
    caller: int
    key: int
    target: str = ""


M = TypeVar("M")


@dataclass
class World(ABC, Generic[M]):
    """A dialect on a harness: how an operation is made, and what the model says about it."""

    seed: int
    mind: Mind = field(default_factory=Mind)
    names: list[str] = field(default_factory=list[str])
    """Every name that was given so far."""

    @abstractmethod
    def harness(self, store: MemoryStore) -> Harness:
        """The retinue that is asked."""

    @abstractmethod
    def model(self) -> M:
        """The model, before anything has happened."""

    @abstractmethod
    def copy(self, model: M) -> M:
        """A model that can be tried without harm."""

    @abstractmethod
    def choose(self, chance: random.Random, caller: int, key: int) -> Operation:
        """The next thing that a caller asks for."""

    @abstractmethod
    def call(self, operation: Operation) -> tuple[str, dict[str, object]]:
        """Tool and arguments of an operation."""

    @abstractmethod
    def apply(self, model: M, operation: Operation, answer: Answer) -> bool:
        """Let an operation happen in the model; whether it may have been answered like this there."""

    def learn(self, operation: Operation, answer: Answer) -> None:
        """A name was given."""


def driven_session(harness: Harness) -> str:
    """The session that all callers are in."""
    return harness.retinue.session_id


class Play(Generic[M]):
    """Rounds of eight operations at once, held against the model after each."""

    def __init__(self, world: World[M]) -> None:
        self.world = world
        self.chance = random.Random(world.seed)
        self.model = world.model()
        self.roots: list[str] = []
        self.turn = 1
        self.crashes = 0

    async def run(self, rounds: int, *, with_crashes: bool) -> None:
        """Play so many rounds."""
        harness = self.world.harness(MemoryStore())
        await harness.open()
        for number in range(CALLERS):
            self.roots.append((await harness.retinue.spawn(f"call {number}", key=f"root {number}")).run_id)
        for _ in range(rounds):
            operations = [self.world.choose(self.chance, caller, index) for index, caller in enumerate(self._callers())]
            drops_after = self.chance.randrange(1, 12) if with_crashes and self.chance.random() < 0.4 else None
            answers = await self._round(harness, operations, drops_after)
            self._explain(operations, answers)
            self.turn += 1
        await harness.kill()

    def _callers(self) -> list[int]:
        return [self.chance.randrange(CALLERS) for _ in range(CALLERS)]

    async def _round(self, harness: Harness, operations: Sequence[Operation], drops_after: int | None) -> list[Answer]:
        answers: dict[int, Answer] = {}
        if drops_after is not None:
            assert harness._crashing_store is not None
            harness._crashing_store.limit = harness._crashing_store.written + drops_after
        again = False
        while len(answers) < len(operations):
            missing = [index for index in range(len(operations)) if index not in answers]
            pauses = [self.chance.choice((0.0, 0.0, 0.001, 0.002)) for _ in missing]
            async with asyncio.timeout(3600):
                results = await asyncio.gather(
                    *(
                        self._ask(harness, operations[index], index, pause, again=again)
                        for index, pause in zip(missing, pauses, strict=True)
                    ),
                    return_exceptions=True,
                )
            for index, one in zip(missing, results, strict=True):
                if isinstance(one, StoreError):
                    continue
                if isinstance(one, BaseException):
                    raise one
                answers[index] = one
                self.world.learn(operations[index], one)
            assert harness._crashing_store is not None
            if harness._crashing_store.limit is not None:
                self.crashes += 1
                await harness.restart()
                again = True
        return [answers[index] for index in range(len(operations))]

    async def _ask(self, harness: Harness, operation: Operation, index: int, pause: float, *, again: bool) -> Answer:
        await asyncio.sleep(pause)
        supervisor = harness.retinue.supervisor
        if operation.kind == "release":
            self.world.mind.release(operation.target)
            return "released"
        if operation.kind == "finish":
            given = harness.store.handles(driven_session(harness), "spec")
            run_id = next((run for name, run, _ in given if name == operation.target), operation.target)
            self.world.mind.release(run_id)
            await supervisor.wait([run_id])
            return "finished"
        tool_name, arguments = self.world.call(operation)
        root = self.roots[operation.caller]
        run = live_run(harness.retinue, root)
        run_spec, accepted = run.run_spec, run.accepted
        tool = engine_of(harness.retinue).toolbox.find(tool_name, run_spec.dialects)
        assert tool is not None
        context = CallContext(
            run_id=root,
            session_id=accepted.session_id,
            root_id=root,
            key=call_key(root, self.turn, index),
            turn=self.turn,
            index=index,
            depth=0,
            agent=accepted.agent,
            path=accepted.path,
            handle=None,
            policy=run.policy,
            offered=run_spec.offered,
            again=again,
        )
        text = (await tool.call(json.dumps(arguments), context)).text
        # A result that a caller has received is on disk: it is written after the changes of the call.
        await engine_of(harness.retinue).journal.flush()
        return json.loads(text) if text.startswith("{") else text

    def _explain(self, operations: Sequence[Operation], answers: Sequence[Answer]) -> None:
        """Find an order in which the model answers the same; that is what has happened."""
        found = self._search(self.model, tuple(range(len(operations))), operations, answers)
        if found is None:
            told = "\n".join(f"{each} -> {answer}" for each, answer in zip(operations, answers, strict=True))
            raise AssertionError(f"seed {self.world.seed}, round {self.turn}: no order explains\n{told}\n{self.model}")
        self.model = found

    def _search(
        self, model: M, left: tuple[int, ...], operations: Sequence[Operation], answers: Sequence[Answer]
    ) -> M | None:
        if not left:
            return model
        for index in left:
            tried = self.world.copy(model)
            if self.world.apply(tried, operations[index], answers[index]):
                rest = tuple(other for other in left if other != index)
                if (found := self._search(tried, rest, operations, answers)) is not None:
                    return found
        return None
