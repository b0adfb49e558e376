"""Lines of TOML keys, in every notation of TOML."""

from __future__ import annotations

import pytest

from retinue.config.toml import read_toml
from retinue.core.key_paths import KeyPath

TEXT = '''\
# a = 1
top = """
inside = 1
[inside]
"""
dotted."quoted \\u0061".bare = [ 1, # , ]
  "]", [2,
  3], { deep = """
  """, er = 'x' },
]
[ first . second ]
key = 'a#b' # c
[first]
other = 1979-05-27 07:32:00Z
[[items]]
name = "a"
[items.below]
here = true
[[items]]
name = "b"
[[items.nested]]
x = { y.z = 1 }
[items.below]
here = false
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("inside",), None),
        (("a",), None),
        (("dotted",), 6),
        (("dotted", "quoted a"), 6),
        (("dotted", "quoted a", "bare"), 6),
        (("dotted", "quoted a", "bare", 0), 6),
        (("dotted", "quoted a", "bare", 1), 7),
        (("dotted", "quoted a", "bare", 2, 0), 7),
        (("dotted", "quoted a", "bare", 2, 1), 8),
        (("dotted", "quoted a", "bare", 3, "deep"), 8),
        (("dotted", "quoted a", "bare", 3, "er"), 9),
        (("first",), 11),
        (("first", "second"), 11),
        (("first", "second", "key"), 12),
        (("first", "other"), 14),
        (("items",), 15),
        (("items", 0), 15),
        (("items", 0, "name"), 16),
        (("items", 0, "below", "here"), 18),
        (("items", 1), 19),
        (("items", 1, "name"), 20),
        (("items", 1, "nested", 0, "x", "y", "z"), 22),
        (("items", 1, "below", "here"), 24),
        (("items", 2), None),
    ],
)
def test_a_key_is_found_on_its_line(path: KeyPath, line: int | None) -> None:
    assert read_toml(TEXT, "x.toml").line_of(path) == line
    assert read_toml(TEXT.replace("\n", "\r\n"), "x.toml").line_of(path) == line


def test_a_missing_key_has_the_line_of_its_table() -> None:
    document = read_toml(TEXT, "x.toml")

    assert document.nearest_line(("items", 1, "below", "gone", "too")) == 23
    assert document.nearest_line(("gone",)) is None


def test_too_deeply_nested_arrays_keep_earlier_lines() -> None:
    depth = 200
    document = read_toml(f"[a]\nb = {'[' * depth}{']' * depth}\n", "x.toml")

    assert document.line_of(("a", "b")) == 2
