"""The model behind the examples of the documentation: it knows what to say to each question that a page asks."""

from pathlib import Path
from typing import Any

from retinue.providers.script import Line, calls, hangs, says
from retinue.testing.fake_chat import replies
from retinue.testing.fake_server import Heard

ADDRESS = "http://localhost:8000/v1"
"""Where pages say that a model is; the examples are run with the address of this one."""


class Vendor:
    """Answers by what it was asked; at night it falls silent once, and leaves a mark for those who wait for that."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, heard: Heard) -> Line:
        """The next line of this conversation."""
        messages: list[dict[str, Any]] = heard.body["messages"]
        said = "\n".join(str(message["content"]) for message in messages if message["role"] in ("system", "user"))
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if "You find causes." in said:
            return _researcher(replies(heard))
        if "checkout slow at night" in said and replies(heard) == 3 and not self._mark.exists():
            self._mark.touch()
            return hangs()
        if "checkout slow" in said:
            return _lead(results)
        if "capital of France" in said:
            return says('{"capital": "Paris", "country": "France"}')
        if "endless story" in said:
            return hangs()
        if "slow story" in said and not self._mark.exists():
            self._mark.touch()
            return hangs()
        return says("42")


def _lead(results: list[str]) -> Line:
    match results:
        case []:
            return calls("shared_context", action="write", key="problem_summary", value="Checkout is slow.")
        case [_]:
            return calls("subagent", action="spawn", agent="researcher", task="Find the cause of problem_summary.")
        case [_, _]:
            return calls("read_dashboard", service="checkout")
        case [*_, last] if len(results) == 3 or "TASK_NOT_READY" in last:
            return calls("subagent", action="collect", task_id="t_01")
        case _:
            return says("The pool has 20 connections, and all of them are in use.")


def _researcher(turn: int) -> Line:
    return (
        calls("shared_context", action="read", key="problem_summary"),
        calls("shared_context", action="write", key="findings_summary", value="The pool is used up."),
        says("The pool is used up. Details are in findings_summary."),
    )[turn]
