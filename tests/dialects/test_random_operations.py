"""Eight concurrent callers in `spec` and `meerkat`: their results agree with a simple model of the contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

import retinue
from retinue.dialects.meerkat.answers import child_name
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.dialects.spec.settings import SpecSettings
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from tests.conftest import STRESS
from tests.dialects.random_operations import Answer, Mind, Operation, Play, World

ROUNDS = 5
PLAYS = 10_000 if STRESS else 240
BLOCKS = 10

Status = Literal["running", "completed", "gone"]


# ---- spec -----------------------------------------------------------------------------------------------------------


@dataclass
class Tasks:
    """The tasks of a session, by id, as its contract has them."""

    status: dict[str, Status] = field(default_factory=dict[str, Status])
    given: int = 0

    @property
    def running(self) -> int:
        return sum(status == "running" for status in self.status.values())


class SpecWorld(World[Tasks]):
    """One session that eight orchestrators share; at most six tasks run."""

    limit = 6

    def harness(self, store: MemoryStore) -> Harness:
        worker = retinue.Agent(name="worker", description="Works", system_prompt="You work.")
        return Harness(
            store=store,
            dialects=("spec",),
            provider=self.mind,  # pyright: ignore[reportArgumentType] any object with the one method
            agents=(worker,),
            dialect_settings={"spec": SpecSettings(max_running=self.limit)},
        )

    def model(self) -> Tasks:
        return Tasks()

    def copy(self, model: Tasks) -> Tasks:
        return Tasks(dict(model.status), model.given)

    def choose(self, chance: random.Random, caller: int, key: int) -> Operation:
        if not self.names or chance.random() < 0.35:
            return Operation("spawn", caller, key)
        kind = chance.choice(("status", "status", "collect", "collect", "cancel", "finish", "finish", "wait"))
        target = chance.choice((*self.names, "t_99")) if kind != "finish" else chance.choice(self.names)
        return Operation(kind, caller, key, target)

    def call(self, operation: Operation) -> tuple[str, dict[str, object]]:
        match operation.kind:
            case "spawn":
                return "subagent", {"action": "spawn", "agent": "worker", "task": f"task {operation.key}"}
            case "wait":
                return "subagent", {"action": "wait", "task_ids": [operation.target], "timeout_ms": 0}
            case action:
                return "subagent", {"action": action, "task_id": operation.target}

    def learn(self, operation: Operation, answer: Answer) -> None:
        if operation.kind == "spawn" and isinstance(answer, dict) and "task_id" in answer:
            self.names.append(answer["task_id"])

    def apply(self, model: Tasks, operation: Operation, answer: Answer) -> bool:
        name = operation.target
        status = model.status.get(name, "gone")
        match operation.kind:
            case "finish":
                if status == "running":
                    model.status[name] = "completed"
                return answer == "finished"
            case "spawn":
                if model.running >= self.limit:
                    return code(answer) == "MAX_TASKS_EXCEEDED"
                model.given += 1
                new = f"t_{model.given:02d}"
                model.status[new] = "running"
                return answer == {"task_id": new, "agent": "worker", "status": "running"}
            case "wait":
                if status == "gone":
                    return code(answer) == "TASK_NOT_FOUND"
                done, pending = ([name], []) if status == "completed" else ([], [name])
                return answer == {"done": done, "pending": pending, "timed_out": bool(pending)}
            case "status":
                if status == "gone":
                    return code(answer) == "TASK_NOT_FOUND"
                turns = (1,) if status == "completed" else (0, 1)
                return without_hint(answer) in [told(name, status, number) for number in turns]
            case action:
                return self._taken(model, action, name, status, answer)

    def _taken(self, model: Tasks, action: str, name: str, status: Status, answer: Answer) -> bool:
        if status == "gone":
            return code(answer) == "TASK_NOT_FOUND"
        if status == "completed":
            model.status[name] = "gone"
            return answer == told(name, "completed", 1) | {"result": "done, 1 messages"}
        if action == "collect":
            return code(answer) == "TASK_NOT_READY"
        model.status[name] = "gone"
        # Its model may have spoken a moment before: then the words are there, and the task has not ended yet.
        silent, spoken = ({"result": None}, {"result": "done, 1 messages"})
        return answer in (told(name, "cancelled", 0) | silent, told(name, "cancelled", 1) | spoken)


def told(name: str, status: str, turns: int) -> dict[str, object]:
    return {"task_id": name, "agent": "worker", "status": status, "turns_used": turns}


def without_hint(answer: Answer) -> object:
    return {key: value for key, value in answer.items() if key != "hint"} if isinstance(answer, dict) else answer


def code(answer: Answer) -> object:
    return answer.get("error") if isinstance(answer, dict) else None


# ---- meerkat --------------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A sub-agent, as its contract has it."""

    caller: int
    state: Literal["running", "completed", "cancelled"] = "running"


@dataclass
class MeerkatWorld(World[dict[str, Child]]):
    """Three trees with several callers each, in each of which at most four sub-agents run."""

    owner: dict[str, int] = field(default_factory=dict[str, int])
    forks: set[str] = field(default_factory=set[str])
    hosts: set[str] = field(default_factory=set[str])
    limit = 4

    def harness(self, store: MemoryStore) -> Harness:
        limits = ConcurrencyLimits(max_concurrent_agents=self.limit, max_concurrent_ops=1000)
        return Harness(
            store=store,
            dialects=("meerkat",),
            provider=self.mind,  # pyright: ignore[reportArgumentType] any object with the one method
            dialect_settings={"meerkat": MeerkatSettings(enable_comms=True, concurrency_limits=limits)},
        )

    def model(self) -> dict[str, Child]:
        return {}

    def copy(self, model: dict[str, Child]) -> dict[str, Child]:
        return {name: Child(child.caller, child.state) for name, child in model.items()}

    def choose(self, chance: random.Random, caller: int, key: int) -> Operation:
        caller %= 3  # several of them share a tree
        mine = [name for name in self.names if self.owner[name] == caller]
        if not mine or chance.random() < 0.35:
            return Operation(chance.choice(("agent_spawn", "agent_spawn", "agent_fork", "host")), caller, key)
        kinds = ("agent_status", "agent_status", "agent_cancel", "agent_list", "send_message", "finish", "finish")
        kind, target = chance.choice(kinds), chance.choice(mine)
        # A host does not end with an answer: it is let speak, and stays.
        return Operation("release" if kind == "finish" and target in self.hosts else kind, caller, key, target)

    def call(self, operation: Operation) -> tuple[str, dict[str, object]]:
        match operation.kind:
            case "agent_spawn" | "agent_fork":
                return operation.kind, {"prompt": f"prompt {operation.key}"}
            case "host":
                return "agent_spawn", {"prompt": f"prompt {operation.key}", "host_mode": True}
            case "agent_list":
                return operation.kind, {}
            case "send_message":
                return operation.kind, {"to": self._name(operation.target), "body": "hello"}
            case kind:
                return kind, {"agent_id": operation.target}

    def _name(self, agent_id: str) -> str:
        return child_name(agent_id, "fork" if agent_id in self.forks else "sub-agent")

    def learn(self, operation: Operation, answer: Answer) -> None:
        if operation.kind in ("agent_spawn", "agent_fork", "host") and isinstance(answer, dict):
            name = answer["agent_id"]
            assert name not in self.owner, "an id was given twice"
            self.names.append(name)
            self.owner[name] = operation.caller
            if operation.kind == "agent_fork":
                self.forks.add(name)
            if operation.kind == "host":
                self.hosts.add(name)

    def apply(self, model: dict[str, Child], operation: Operation, answer: Answer) -> bool:
        mine = {name: child for name, child in model.items() if child.caller == operation.caller}
        running = [name for name, child in mine.items() if child.state == "running"]
        child = model.get(operation.target)
        match operation.kind:
            case "agent_spawn" | "agent_fork" | "host":
                return self._started(model, operation, answer, len(running))
            case "release":
                return answer == "released"
            case "agent_list":
                return self._listed(mine, answer)
            case "finish":
                if child is None:
                    return False
                if child.state == "running":
                    child.state = "completed"
                return answer == "finished"
            case "send_message":
                if child is None:
                    return False
                offline = "Execution failed: Peer offline (no ack received)"
                return answer == ({"status": "sent"} if child.state == "running" else offline)
            case "agent_cancel":
                return child is not None and self._cancelled(child, operation.target, answer)
            case _:
                if child is None or not isinstance(answer, dict):
                    return False
                return (answer["agent_id"], answer["state"]) == (operation.target, child.state)

    def _started(self, model: dict[str, Child], operation: Operation, answer: Answer, running: int) -> bool:
        if running >= self.limit:
            what = "fork agent" if operation.kind == "agent_fork" else "spawn sub-agent"
            return answer == f"Execution failed: Cannot {what}: concurrency or depth limit reached"
        if not isinstance(answer, dict):
            return False
        model[answer["agent_id"]] = Child(operation.caller)
        return answer["state"] == "running"

    def _listed(self, mine: dict[str, Child], answer: Answer) -> bool:
        if not isinstance(answer, dict):
            return False
        states = [child.state for child in mine.values()]
        counts = (states.count("running"), states.count("completed"), states.count("cancelled"), len(states))
        listed = {row["id"]: row["state"] for row in answer["agents"]}
        fields = ("running_count", "completed_count", "failed_count", "total_count")
        return listed == {name: child.state for name, child in mine.items()} and counts == tuple(
            answer[each] for each in fields
        )

    def _cancelled(self, child: Child, name: str, answer: Answer) -> bool:
        was_running, state = child.state == "running", child.state
        if was_running:
            child.state = "cancelled"
        message = (
            "Sub-agent cancelled successfully"
            if was_running
            else f"Cannot cancel sub-agent: already {state} (only running agents can be cancelled)"
        )
        expected = {"agent_id": name, "success": was_running, "previous_state": state, "message": message}
        return answer == expected


# ---- plays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("with_crashes", [False, True], ids=["alive", "dropped"])
@pytest.mark.parametrize("make", [SpecWorld, MeerkatWorld], ids=["spec", "meerkat"])
async def test_results_of_eight_callers_agree_with_some_sequential_order(
    make: Callable[[int, Mind], World[Any]], with_crashes: bool, block: int
) -> None:
    crashes = 0
    for number in range(PLAYS // 4 // BLOCKS):
        play = Play(make(block * 100_000 + number, Mind()))
        await play.run(ROUNDS, with_crashes=with_crashes)
        crashes += play.crashes
    assert (crashes > 0) == with_crashes
