"""A tree of runs at vendors that fail at random, over HTTP in virtual time: the ends of runs, and their charges.

One request in ten is answered with 429, 500, a stream that is cut, one that is malformed, or a slow answer. The full
size is 200 children for each wire; a shorter form is part of every test run.
"""

import json
import re
from dataclasses import replace
from random import Random

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.messages import ToolCall
from retinue.dialects.native import NativeSettings
from retinue.providers.catalog import provider_config
from retinue.providers.pricing import Rates
from retinue.testing.fake_chat import error_response
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.conftest import STRESS
from tests.providers.raw_answers import PROVIDERS, answer

CHILDREN = 200 if STRESS else 40
FAULTS = 0.1
RATES = Rates(input=3.0, output=15.0)
TURNS = 3
"""Requests of a child that meets no fault: two calls, and an answer."""

WIRES = {
    "chat": "openai-chat",
    "responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "bedrock": "bedrock",
}
_JOB = re.compile(rb"Measure job (\d+)[.]")
_ROOT = b"Start all jobs."


@retinue.tool(kind="pure")
def measure(job: int, step: int) -> str:
    """Measure a job."""
    return f"measured job {job} at step {step}"


class FaultyVendor:
    """Plays a root that starts all children and children that make two calls; bills what it counts in its streams."""

    def __init__(self, wire: str, seed: int) -> None:
        self.billed = 0
        """Nanodollars."""
        self.faults: dict[str, list[str]] = {}
        """The faults that each run met, by job."""
        self._wire = wire
        self._random = Random(seed)

    def respond(self, heard: ReceivedRequest) -> FakeResponse:
        named = _JOB.search(heard.raw)
        is_root = _ROOT in heard.raw
        job = "root" if is_root or named is None else named[1].decode()
        usage = (self._random.randint(500, 5000), self._random.randint(20, 400))
        whole = self._root(heard, usage) if job == "root" else self._child(job, heard, usage)
        if self._random.random() >= FAULTS:
            self._bill(*usage)
            return whole
        kind = self._random.choice(("429", "500", "cut", "malformed", "slow"))
        self.faults.setdefault(job, []).append(kind)
        match kind:
            case "429":
                return error_response(429, "Rate limit reached. Please try again in 7s.")
            case "500":
                return error_response(500, "The server had an error.")
            case "slow":
                self._bill(*usage)
                return replace(whole, delay=self._random.uniform(5.0, 90.0), every=1.0)
            case _:
                return self._broken(whole, usage, is_malformed=kind == "malformed")

    def _broken(self, whole: FakeResponse, usage: tuple[int, int], *, is_malformed: bool) -> FakeResponse:
        """A stream that ends before its finish reason; a vendor that counts at the beginning bills the input."""
        sent = self._random.randrange(0, max(1, len(whole.pieces) - 2))
        if self._wire == "anthropic" and sent:
            self._bill(usage[0], 1)  # as the first event says
        pieces = whole.pieces[:sent]
        if is_malformed:
            return replace(whole, pieces=(*pieces, b'data: {"type": "content_block_del\n\n'), ending="cut")
        return replace(whole, pieces=pieces, ending="cut")

    def _root(self, heard: ReceivedRequest, usage: tuple[int, int]) -> FakeResponse:
        if heard.raw.count(b"job-") > 1 and b"is measured" in heard.raw:
            return answer(self._wire, "All jobs are measured.", usage=usage)
        calls = [
            ToolCall("run_agent", json.dumps({"task": f"Measure job {job}."}), f"job-{job}") for job in range(CHILDREN)
        ]
        return answer(self._wire, "", *calls, usage=usage)

    def _child(self, job: str, heard: ReceivedRequest, usage: tuple[int, int]) -> FakeResponse:
        done = heard.raw.count(b"measured job %s at step" % job.encode())
        if done < TURNS - 1:
            call = ToolCall("measure", json.dumps({"job": int(job), "step": done}), f"step-{done}")
            return answer(self._wire, "", call, usage=usage)
        return answer(self._wire, f"job {job} is measured", usage=usage)

    def _bill(self, tokens_in: int, tokens_out: int) -> None:
        self.billed += tokens_in * 3_000 + tokens_out * 15_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wire", PROVIDERS)
async def test_every_run_ends_with_its_true_reason_and_the_ledger_has_what_was_billed(
    wire: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vendor = FaultyVendor(wire, seed=18)
    async with FakeServer(vendor.respond) as server:
        base_url = server.url if wire in ("anthropic", "gemini", "bedrock") else f"{server.url}/v1"
        config = provider_config("house", wire=WIRES[wire], base_url=base_url, prices={"m": RATES})
        async with retinue.open(
            model="house:m",
            provider_configs=[config],
            tools=[measure],
            dialects=["native"],
            dialect_settings={"native": NativeSettings(max_running=CHILDREN)},
            home=retinue.MEMORY,
        ) as r:
            outcome = await r.run("Start all jobs.", limits=retinue.Limits(max_cost=1_000))
            rows = await r.supervisor.stored.runs(RunQuery())
            runs = [await r.supervisor.replay(row.run_id) for row in rows]

    assert (outcome.result, outcome.text) == ("completed", "All jobs are measured.")
    children = [run for run in runs if run.accepted.parent_id is not None]
    assert len(children) == CHILDREN
    for run in children:
        named = _JOB.search(run.accepted.task.encode())
        assert named is not None
        assert run.outcome is not None
        job = named[1].decode()
        ended = (run.outcome.result, run.outcome.reason, run.outcome.text)
        if ended != ("completed", "answered", f"job {job} is measured"):
            # Four attempts in a row that were no answers end a run; waiting does not help against them.
            assert ended[:2] == ("failed", "model_error")
            assert vendor.faults[job][-1] in ("cut", "malformed")
    assert sum(run.cost or 0 for run in runs) == vendor.billed
    met = [kind for kinds in vendor.faults.values() for kind in kinds]
    assert set(met) <= {"429", "500", "cut", "malformed", "slow"}
    assert len(met) > CHILDREN * TURNS * FAULTS / 2
    with capsys.disabled():
        if STRESS:
            failed = sum(run.outcome is not None and run.outcome.result == "failed" for run in children)
            requests, cents = len(server.requests), vendor.billed / 10**7
            print(f"\n{wire}: {requests} requests, {len(met)} faults, {failed} failed runs, {cents:.2f} cents billed")
