"""Approval of tool calls by a person: asks the approver, and delivers the answer to the run.

A run can never approve a call: answers come from outside the tree, through the inbox, and name the call.
"""

from __future__ import annotations

import inspect
import logging
from typing import cast

from retinue.core.commands import Post
from retinue.core.errors import StoreError
from retinue.core.inbox import ApprovalAnswer
from retinue.core.run import Approval
from retinue.engine.context import Approver, EngineContext
from retinue.engine.foreign_errors import message_of
from retinue.engine.live_run import LiveRun
from retinue.engine.tool_calls import NO_APPROVER

log = logging.getLogger("retinue.engine")


class Unanswered(Exception):
    """Raised by an approver that leaves its question open, for another terminal or a later process."""


def answer_to(question: Approval, *, allow: bool, note: str = "") -> ApprovalAnswer:
    """The inbox item that answers a question; a second answer to the same question has the same key."""
    return ApprovalAnswer(
        key=f"answer/{question.turn}/{question.index}", turn=question.turn, index=question.index, allow=allow, note=note
    )


def request_approvals(live: LiveRun, engine: EngineContext) -> None:
    """Ask the approver the open questions of a run, each once; with `wait` the answers come through the inbox.

    Without an approver, a question that an earlier process has left is refused.
    """
    if engine.approver != "wait":
        for question in live.run.open_questions():
            mark = f"asked/{question.turn}/{question.index}"
            if mark not in live.memo:
                live.memo[mark] = True
                engine.start_background(_ask(live, question, engine.approver, engine))


async def _ask(live: LiveRun, question: Approval, approver: Approver, engine: EngineContext) -> None:
    try:
        if live.last_write is not None:
            await live.last_write.wait()  # the approver can find its question in the store
        allow, note = await _decision(question, approver)
    except (Unanswered, StoreError):
        return
    except Exception as error:
        log.exception("the approval callback failed")
        allow, note = False, f"the approval callback failed: {message_of(error) or type(error).__name__}"
    answer = answer_to(question, allow=allow, note=note)
    if live.deliver(answer):
        engine.journal.write(Post(run_id=live.run_id, item=answer))


async def _decision(question: Approval, approver: Approver) -> tuple[bool, str]:
    if not callable(approver):
        return False, NO_APPROVER
    returned = approver(question)
    answer = cast("object", await returned if inspect.isawaitable(returned) else returned)
    if not isinstance(answer, bool):
        raise TypeError(f"it answered {answer!r}; expected True or False")  # a non-empty "no" would count as true
    return answer, ""
