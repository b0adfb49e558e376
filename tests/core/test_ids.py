"""Run ids: valid version-7 UUIDs that sort by creation time."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core import ids
from retinue.core.ids import RandomIds, call_key, uuid7

MOMENTS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(milliseconds=MOMENTS, random=RANDOM)
def test_an_id_is_a_version_7_uuid_that_begins_with_its_time(milliseconds: int, random: bytes) -> None:
    made = uuid.UUID(uuid7(milliseconds, random))

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == milliseconds
    assert str(made) == uuid7(milliseconds, random)


@given(milliseconds=MOMENTS, bit=st.integers(0, 73))
def test_all_74_random_bits_are_used(milliseconds: int, bit: int) -> None:
    place = bit if bit < 62 else bit + 2
    flipped = uuid7(milliseconds, (1 << place).to_bytes(10, "big"))

    assert flipped != uuid7(milliseconds, bytes(10))


@given(one=MOMENTS, other=MOMENTS, randoms=st.tuples(RANDOM, RANDOM))
def test_ids_sort_by_creation_time(one: int, other: int, randoms: tuple[bytes, bytes]) -> None:
    earlier, later = sorted((one, other))
    if earlier < later:
        assert uuid7(earlier, randoms[0]) < uuid7(later, randoms[1])


def test_ids_sort_in_creation_order_despite_clock_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([5_000_000, 5_000_001, 3_000_000, 5_900_000, 90_000_000])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(moments))
    source = RandomIds()

    made = [source.new() for _ in range(5)]

    assert made == sorted(made)
    assert [uuid.UUID(text).int >> 80 for text in made] == [5, 6, 7, 8, 90]


def test_many_ids_are_all_different_and_sorted() -> None:
    source = RandomIds()
    made = [source.new() for _ in range(1000)]

    assert made == sorted(set(made))


def test_call_keys_consist_of_run_turn_and_index() -> None:
    assert call_key("run", 3, 0) == "run/3/0"
