"""The calls of any run in a store that wait for a person, and the answers to them: from any process, at any time."""

from __future__ import annotations

import logging

from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput, StoreError, UnknownName
from retinue.core.ids import RunId
from retinue.core.inbox import ApprovalAnswer
from retinue.core.run import Approval
from retinue.engine.approvals import answer_to, open_questions
from retinue.engine.supervisor import Supervisor

log = logging.getLogger("retinue.app")

SHORTEST = 4
"""Characters of a run's id that have to be said at least."""


class Approvals:
    """Questions to people. These are operations of the system, never tools of an agent: no run can answer one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._engine = supervisor.engine

    async def open(self) -> list[Approval]:
        """Calls, in any unfinished run of the store, that wait for a person and that nobody has answered."""
        rows = await self._engine.journal.read(self._engine.store.runs, RunQuery(unfinished_only=True))
        questions: list[Approval] = []
        for row in rows:
            if row.progress.phase == "parked":
                try:
                    questions += await self.of(row.run_id)
                except StoreError as unreadable:
                    log.warning("the questions of run %s cannot be read: %s", row.run_id, unreadable)
        return questions

    async def of(self, run_id: RunId) -> list[Approval]:
        """The questions of one run; one whose answer lies in the inbox already is open no more."""
        live = self._supervisor.registry.live.get(run_id)
        if live is not None:
            return open_questions(live.run)
        run = await self._supervisor.replay(run_id)
        inbox = await self._engine.journal.read(self._engine.store.inbox, run_id)
        answered = {(item.turn, item.index) for item in inbox if isinstance(item, ApprovalAnswer)}
        return [each for each in open_questions(run) if (each.turn, each.index) not in answered]

    async def find(self, name: str) -> Approval:
        """The open question with this id, or with a part of it that means no other."""
        run, _, place = name.partition("/")
        known = {each.id: each for each in await self.open()}
        if name in known:
            return known[name]
        meant = [each for each in known.values() if len(run) >= SHORTEST and _is_meant(each, run, place)]
        if len(meant) > 1:
            raise BadInput(f"{name!r} means several questions: {', '.join(each.id for each in meant)}")
        if not meant:
            raise UnknownName("approval", name, tuple(known))
        return meant[0]

    async def answer(self, question: Approval | str, *, allow: bool, note: str = "") -> bool:
        """Answer a question by itself or its id; whether this was the first answer. Only the first one counts."""
        if isinstance(question, str):
            asking = question.partition("/")[0]
            known = {each.id: each for each in (await self.of(asking) if asking != question else ())}
            if question not in known:
                raise UnknownName("approval", question, tuple(known))
            question = known[question]
        answer = answer_to(question, allow=allow, note=note)
        return await self._supervisor.post(question.run_id, answer, outside=True)


def _is_meant(question: Approval, run: str, place: str) -> bool:
    is_run = question.run_id.startswith(run) or question.run_id.endswith(run)
    return is_run and (not place or place == f"{question.turn}/{question.index}")
