"""Instances that are made faster are the same as those that their class makes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Request, maker_of

CONTEXT: dict[str, Any] = {
    **{"run_id": "r", "session_id": "s", "root_id": "r", "key": "k", "turn": 1, "index": 0, "depth": 0},
    **{"agent": "main", "path": "main", "handle": None, "policy": Policy(), "offered": ()},
}


@pytest.mark.parametrize(
    ("cls", "given"), [(Request, {"model": "m", "system": "", "messages": []}), (CallContext, CONTEXT)]
)
def test_made_instances_equal_those_of_the_class(cls: type[Any], given: dict[str, Any]) -> None:
    made = maker_of(cls)(**given)
    assert type(made) is cls
    assert made == cls(**given)
    assert repr(made) == repr(cls(**given))
    assert replace(made) == copy.copy(made) == made
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(cls)[0].name, "other")
    with pytest.raises(FrozenInstanceError):
        delattr(made, fields(cls)[0].name)


def test_defaults_are_not_shared() -> None:
    make_request = maker_of(Request)
    first, second = (make_request(model="m", system="", messages=[]) for _ in range(2))
    assert first.memo is not second.memo


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TypeError, match=r"Request.__init__.* missing .*'messages'"):
        maker_of(Request)(model="m", system="")  # pyright: ignore[reportCallIssue] the point of the test


def test_a_made_context_can_be_pickled() -> None:
    made = maker_of(CallContext)(**CONTEXT)
    assert pickle.loads(pickle.dumps(made)) == made
