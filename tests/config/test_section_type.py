"""Section declarations: nesting, overlaps and unsupported types."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from retinue.config.section_type import Section, tree_of
from retinue.config.settings import Settings
from tests.config.settings_files import settings


class Sea(Struct, frozen=True):
    deep: bool = False


class Odd(Struct, frozen=True):
    number: complex = 0j


def section(name: str, kind: type[Struct] = Sea) -> Section:
    return Section(name=name, type=kind, about="Water.")


def test_any_declared_section_is_loaded(tmp_path: Path) -> None:
    found = settings(tmp_path, "[far.sea]\ndeep = true\n", [section("far.sea"), section("near")])

    assert found.sections == {"far.sea": Sea(deep=True), "near": Sea()}
    assert found.section("far.sea", Sea) == Sea(deep=True)
    assert Settings().section("far.sea", Sea) == Sea()


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a.b"), ("a.b", "a")])
def test_overlapping_section_names_are_rejected(names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="section"):
        tree_of([section(name) for name in names])


def test_an_unsupported_field_type_raises_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        settings(tmp_path, "[odd]\nnumber = 1\n", [section("odd", Odd)])
