"""Approval requests of all runs in a store, and the answers to them, from any process."""

from __future__ import annotations

from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput, StoreError, UnknownName
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.run import Approval
from retinue.engine import Supervisor

log = logger("retinue.app")

MIN_LENGTH = 4
"""Characters of a run's id that a shortened question id needs at least."""


class Approvals:
    """Approval requests. These are operations of the program, never tools of an agent: no run can answer one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def open(self) -> list[Approval]:
        """The tool calls without an answer, in all unfinished runs of the store."""
        rows = await self._supervisor.stored.runs(RunQuery(phase="parked"))
        questions: list[Approval] = []
        for row in rows:
            try:
                questions += await self.of(row.run_id)
            except StoreError as error:
                log.warning("the approvals of run %s cannot be read: %s", row.run_id, error)
        return questions

    async def of(self, run_id: RunId) -> list[Approval]:
        """The questions of one run, without those that have an answer in its inbox."""
        return await self._supervisor.open_questions(run_id)

    async def find(self, name: str) -> Approval:
        """The open question with this id, or with an unambiguous part of it; raises `BadInput` if several match."""
        run, _, place = name.partition("/")
        known = {question.id: question for question in await self.open()}
        if name in known:
            return known[name]
        matching = [one for one in known.values() if len(run) >= MIN_LENGTH and _matches(one, run, place)]
        if len(matching) > 1:
            ids = ", ".join(one.id for one in matching)
            raise BadInput(f"{name!r} matches several approvals: {ids}; give more of the id")
        if not matching:
            raise UnknownName("approval", name, tuple(known))
        return matching[0]

    async def answer(self, question: Approval | str, *, allow: bool, note: str = "") -> bool:
        """Answer a question, given as the object or its id; whether this was the first answer, which counts."""
        if isinstance(question, str):
            run_id = question.partition("/")[0]
            known = {one.id: one for one in (await self.of(run_id) if run_id != question else ())}
            if question not in known:
                raise UnknownName("approval", question, tuple(known))
            question = known[question]
        return await self._supervisor.answer(question, allow=allow, note=note)


def _matches(question: Approval, run: str, place: str) -> bool:
    is_run = question.run_id.startswith(run) or question.run_id.endswith(run)
    return is_run and (not place or place == f"{question.turn}/{question.index}")
