"""Random graphs of dependent tasks: the limit of running tasks holds, also after crashes."""

import asyncio
import json
import random

import pytest

import retinue
from retinue.core.errors import StoreError
from retinue.core.messages import AssistantMessage, Reply, ToolCall, ToolMessage
from retinue.core.ports import Publish, Request
from retinue.core.usage import Usage
from retinue.dialects.spec.settings import SpecSettings
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from tests.conftest import STRESS

WEBS = 400 if STRESS else 40
TASKS = 9


class Minds:
    """An orchestrator that spawns a web of tasks, waits for all and collects them; workers that take their time."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        ids = [f"t_{number:02d}" for number in range(1, TASKS + 1)]
        self.after = [[], *(chance.sample(ids[:n], chance.randint(1, min(2, n))) for n in range(1, TASKS))]
        self.seconds = [chance.randint(5, 9) for _ in ids]
        spawn = {"action": "spawn", "agent": "worker"}
        self.lines: list[list[dict[str, object]]] = [
            *([{**spawn, "task": str(number), "depends_on": after}] for number, after in enumerate(self.after)),
            [{"action": "wait", "task_ids": ids}],
            [{"action": "collect", "task_id": task_id} for task_id in ids],
        ]
        self.at_work = self.most = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next line of the orchestrator, or a worker's only one."""
        if request.agent == "main":
            turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
            lines = self.lines[turn] if turn < len(self.lines) else []
            calls = tuple(ToolCall("subagent", json.dumps(line)) for line in lines)
            return Reply(AssistantMessage(text="" if calls else "All in.", calls=calls), usage=Usage(1, 1))
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await asyncio.sleep(self.seconds[int(request.messages[0].text)])
        finally:
            self.at_work -= 1
        return Reply(AssistantMessage(text="done"), usage=Usage(1, 1))


@pytest.mark.promise("SPEC-7.4-PLACE", "SPEC-4.3-FIVE", "SPEC-KEYED")
@pytest.mark.parametrize("with_crashes", [False, True], ids=["alive", "dropped"])
async def test_running_tasks_never_exceed_the_limit_and_every_task_runs(with_crashes: bool) -> None:
    reached: set[int] = set()
    crashes = 0
    for seed in range(WEBS):
        chance = random.Random(seed)
        minds, limit = Minds(seed), chance.randint(1, 3)
        harness = Harness(
            store=MemoryStore(),
            dialects=("spec",),
            provider=minds,  # pyright: ignore[reportArgumentType] any object with the one method
            agents=(retinue.Agent(name="worker", description="Works", system_prompt="You work."),),
            dialect_settings={"spec": SpecSettings(max_running=limit)},
        )
        await harness.open(killed_after=chance.randint(10, 60) if with_crashes else None)
        run_id = ""
        try:
            run = await harness.retinue.spawn("Go.", key="story")
            run_id = run.run_id
            await run.wait()
        except StoreError:
            crashes += 1
            await harness.restart()
            outcome = await (await harness.retinue.spawn("Go.", key="story")).wait()
            assert outcome.text == "All in.", outcome
        history = (await harness.retinue.supervisor.replay(run_id)).history
        read = [json.loads(message.text) for message in history if isinstance(message, ToolMessage)]
        await harness.close()
        assert [each["status"] for each in read[-TASKS:]] == ["completed"] * TASKS, (seed, read)
        assert minds.most <= limit, seed
        reached.add(minds.most)
    assert (reached, crashes > 0) == ({1, 2, 3}, with_crashes)
