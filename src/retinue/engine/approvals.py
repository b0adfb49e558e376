"""Questions to a person: which calls wait for one, and bringing the answer to the run.

A child can never approve: answers come from outside the tree, through the inbox, and name the call they are about.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import cast

from retinue.core.commands import Post
from retinue.core.errors import StoreError
from retinue.core.inbox import ApprovalAnswer
from retinue.core.run import Approval
from retinue.core.state import Run
from retinue.engine.context import Approver, EngineContext
from retinue.engine.foreign_errors import words_of
from retinue.engine.live_run import LiveRun
from retinue.engine.tool_calls import NOBODY

log = logging.getLogger("retinue.engine")


class Unanswered(Exception):
    """Raised by a callback that leaves its question open: for another terminal, or for another day."""


def open_questions(run: Run) -> list[Approval]:
    """The calls of a run that wait for a person."""
    accepted = run.accepted
    return [
        Approval(
            run_id=accepted.run_id,
            path=accepted.path,
            turn=run.turns,
            index=call.index,
            tool=call.call.name,
            arguments=call.call.arguments,
            reason=call.parked_reason,
        )
        for call in run.open
        if call.awaits_approval
    ]


def answer_to(question: Approval, *, allow: bool, note: str = "") -> ApprovalAnswer:
    """The item that answers a question; a second answer to the same question is the same item."""
    return ApprovalAnswer(
        key=f"answer/{question.turn}/{question.index}", turn=question.turn, index=question.index, allow=allow, note=note
    )


def ask_for_approvals(live: LiveRun, engine: EngineContext) -> None:
    """Put a run's open questions to the callback, if there is one; others answer through the inbox.

    Where nobody can be asked, a question that an earlier process has left is answered with no.
    """
    if engine.approver != "wait":
        for question in open_questions(live.run):
            mark = f"asked/{question.turn}/{question.index}"
            if mark not in live.memo:
                live.memo[mark] = True
                task = asyncio.get_running_loop().create_task(_ask(live, question, engine.approver, engine))
                engine.errands.add(task)
                task.add_done_callback(engine.errands.discard)


async def _ask(live: LiveRun, question: Approval, approver: Approver, engine: EngineContext) -> None:
    try:
        if live.last_write is not None:
            await live.last_write.wait()  # whoever hears of a question can find it in the store
        allow, note = await _said(question, approver)
    except (Unanswered, StoreError):
        return
    except Exception as error:
        log.exception("the approval callback failed")
        allow, note = False, f"the approval callback failed: {words_of(error) or type(error).__name__}"
    answer = answer_to(question, allow=allow, note=note)
    if live.deliver(answer):
        engine.journal.write(Post(run_id=live.run_id, item=answer))


async def _said(question: Approval, approver: Approver) -> tuple[bool, str]:
    if not callable(approver):
        return False, NOBODY
    said = approver(question)
    answer = cast("object", await said if inspect.isawaitable(said) else said)
    if not isinstance(answer, bool):
        raise TypeError(f"it answered {answer!r}; expected True or False")  # "no" is true to Python
    return answer, ""
