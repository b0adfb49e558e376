"""The entries of one session, and the `shared_context` tool on them without a store."""

import json
from typing import cast

from retinue.core.commands import Decision
from retinue.dialects.arguments import compact_json
from retinue.dialects.error_codes import CodedRefusal
from retinue.dialects.shared_context.actions import decide, look
from retinue.dialects.shared_context.requests import Delete, TakeSnapshot, WriteEntry, parse
from tests.dialects.spec.harness import Answer

AT = 1771597800.0  # 2026-02-20T14:30:00Z
NOON = "2026-02-20T14:30:00Z"
ROOT, WRITER, READER = "orchestrator", "subagent:writer:t_01", "subagent:reader:t_02"


class Context:
    """The entries of one session, and the tool as its participants use it."""

    def __init__(self) -> None:
        self.key_value: dict[str, bytes] = {}

    def call(self, arguments: object, *, by: str = ROOT, at: float = AT) -> Answer:
        """What a model reads after calling the tool with these arguments."""
        try:
            action = parse(json.dumps(arguments))
            if not isinstance(action, WriteEntry | Delete | TakeSnapshot):
                return json.loads(compact_json(look(action, self.key_value, participant=by, at=at)))
        except CodedRefusal as refusal:
            return refusal.answer
        decision = decide(action, self.key_value, participant=by, at=at)
        self.apply(decision)
        return json.loads(decision.answer)

    def apply(self, decision: Decision) -> None:
        """Let the decision happen, as a store does."""
        assert not set(decision.puts) & set(decision.drops)
        assert set(decision.drops) <= set(self.key_value)
        self.key_value.update(decision.puts)
        for key in decision.drops:
            del self.key_value[key]

    def write(self, key: str, value: str, *, by: str = ROOT, at: float = AT, **fields: object) -> Answer:
        """Write an entry."""
        return self.call({"action": "write", "key": key, "value": value} | fields, by=by, at=at)

    def read(self, key: str, *, by: str = ROOT, at: float = AT) -> Answer:
        """Read an entry."""
        return self.call({"action": "read", "key": key}, by=by, at=at)

    def history(self, key: str, *, by: str = ROOT, **fields: object) -> Answer:
        """Read what an entry was before."""
        return self.call({"action": "read_history", "key": key} | fields, by=by)


def missing(key: str) -> Answer:
    return {"error": "KEY_NOT_FOUND", "message": f"Key not found: '{key}'"}


def rows(answer: Answer, name: str) -> list[Answer]:
    return cast("list[Answer]", answer[name])
