"""Every promise has a test, and every promise that a test names exists."""

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.dialects.promise import Promise

LISTS: dict[str, tuple[Promise, ...]] = {
    file.parent.name: importlib.import_module(f"tests.dialects.{file.parent.name}.promises").PROMISES
    for file in sorted(Path(__file__).parent.glob("*/promises.py"))
}


@pytest.mark.parametrize("dialect", LISTS)
def test_every_promise_has_a_test(dialect: str) -> None:
    proven = _ids_named_by_tests()

    assert [promise for promise in LISTS[dialect] if promise.id not in proven] == []


def test_every_test_names_promises_that_exist() -> None:
    promised = {promise.id for listed in LISTS.values() for promise in listed}

    assert sorted(_ids_named_by_tests() - promised) == []


@pytest.mark.parametrize("dialect", LISTS)
def test_every_promise_has_its_own_id_and_is_one_sentence(dialect: str) -> None:
    ids = Counter(promise.id for promise in LISTS[dialect])

    assert [id for id, count in ids.items() if count > 1] == []
    assert [promise for promise in LISTS[dialect] if not promise.text.endswith(".") or ". " in promise.text] == []


@cache
def _ids_named_by_tests() -> frozenset[str]:
    """The arguments of every `@pytest.mark.promise(...)` of all tests, read without importing anything."""
    files = Path(__file__).parents[1].rglob("test_*.py")
    return frozenset(id for file in files if ".promise(" in (text := file.read_text()) for id in _ids_named_in(text))


def _ids_named_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="promise"), args=arguments):
                yield from (ast.literal_eval(argument) for argument in arguments)
            case _:
                pass
