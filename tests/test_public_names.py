"""Every public name explains itself, with an example that runs."""

import ast
import doctest
import importlib
import inspect

import pytest

import retinue
from retinue.dialects import registry
from retinue.dialects.base import SettingsSection

CONSTANTS = ("MEMORY", "__version__")
"""Values have no docstring of their own: the first is explained by the text below it, the second by its name."""

EXPLAINED_BY_EXAMPLE = [name for name in retinue.__all__ if name not in CONSTANTS]


@pytest.mark.parametrize("name", EXPLAINED_BY_EXAMPLE)
def test_a_public_name_has_a_docstring_with_an_example(name: str) -> None:
    docstring = getattr(retinue, name).__doc__ or ""

    # `--doctest-modules` runs them; here they only have to be there.
    assert doctest.DocTestParser().get_examples(docstring) != []


def test_memory_is_explained_where_it_is_defined() -> None:
    module, _, constant = retinue._HOMES["MEMORY"].partition(":")
    statements = ast.parse(inspect.getsource(importlib.import_module(module))).body
    (place,) = [
        place
        for place, statement in enumerate(statements)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == constant
    ]

    match statements[place + 1]:
        case ast.Expr(value=ast.Constant(value=str() as explanation)):
            assert "memory" in explanation
        case other:
            pytest.fail(f"{constant} is followed by {ast.unparse(other)!r} and not by an explanation")


@pytest.mark.parametrize("section", tuple(registry.having(lambda entry: entry.settings)), ids=lambda each: each.name)
def test_the_settings_of_every_dialect_are_public(section: SettingsSection) -> None:
    assert getattr(retinue, section.type.__name__) is section.type
