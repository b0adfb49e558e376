"""The public Python surface: what the doors list exists, what is lazy is typed, and no event or error is missing."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from types import ModuleType
from typing import get_args

import pytest

import retinue
import retinue.core.errors
import retinue.errors
import retinue.events
import retinue.messages
import retinue.ports
import retinue.testing
from retinue.core.commands import Write
from retinue.core.inbox import Item
from retinue.core.messages import Delta, Message
from tests.architecture.doors import exports

PUBLIC = (retinue, retinue.errors, retinue.events, retinue.messages, retinue.ports, retinue.testing)
LAZY = (retinue, retinue.errors, retinue.ports, retinue.testing)
PACKAGES = sorted(found.name for found in pkgutil.walk_packages(retinue.__path__, "retinue.") if found.ispkg)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_entry_of_a_door_exists(package: str) -> None:
    door = import_module(package)

    assert [name for name in exports(package) if not hasattr(door, name) and not is_module(f"{package}.{name}")] == []


def is_module(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        return False
    return True


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_entry_of_a_public_module_exists(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_the_lazy_names_are_those_that_type_checkers_see(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [
        (f"{statement.module}:{alias.name}", alias)
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    seen = {alias.asname or alias.name: home for home, alias in imports}

    assert seen == module._HOMES
    assert seen.keys() <= set(module.__all__)
    # An import without `as` is exported only by a literal `__all__`, the only kind that type checkers read.
    assert {alias.name for _, alias in imports if alias.asname is None} <= literal_exports(tree)


def literal_exports(tree: ast.Module) -> set[str]:
    """The entries of a literal `__all__`; none of a computed one."""
    (exported,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    try:
        return set(ast.literal_eval(exported))
    except ValueError:
        return set()


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_an_unknown_name_is_an_attribute_error(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_every_event_is_public() -> None:
    assert {*get_args(retinue.events.Event), *get_args(Item)} <= values(retinue.events)


def test_every_message_and_delta_is_public() -> None:
    assert {*get_args(Message), *get_args(Delta)} <= values(retinue.messages)


def test_every_write_of_a_store_is_public() -> None:
    assert {*get_args(Write)} <= values(retinue.ports)


def test_every_error_is_public() -> None:
    defined = vars(retinue.core.errors).values()
    errors = {value for value in defined if isinstance(value, type) and issubclass(value, Exception)}

    assert errors <= values(retinue.errors)


def values(module: ModuleType) -> set[object]:
    """What a module exports."""
    return {getattr(module, name) for name in module.__all__}
