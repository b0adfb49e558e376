"""Any settings file either loads or raises `ConfigError`."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from retinue.app.settings_sections import SECTIONS
from retinue.config.settings import load
from retinue.config.toml import read_toml
from retinue.core.errors import ConfigError
from retinue.core.key_paths import KeyPath

Value: TypeAlias = str | float | bool | datetime.date | datetime.time | list["Value"] | dict[str, "Value"]

KEYS = st.sampled_from(
    [
        *("agents", "providers", "tools", "agent", "subagent", "vllm", "dig", "limits", "headers", "modules"),
        *("max_turns", "wire", "timeout", "max_cost", "max_depth", "model", "x y", "é", '"', "", "a.b", "a\n#"),
    ]
)
LEAVES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["'''", '"""', "#", "[x]", "k = 1", "openai-chat", "./a.py", "http://x"]),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.times(),
)
VALUES: st.SearchStrategy[Value] = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4), max_leaves=12
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=4)
SCRAPS = st.lists(
    st.sampled_from(
        [
            *("[agents.a]", "[", "]", "[[", "]]", "{", "}", "=", ",", ".", "\n", "\r\n", " ", "#", "\\", "'", '"'),
            *("'''", '"""', "agents", "max_turns", "tools", "x", "0", "1e5", "nan", "0xff", "true", "1979-05-27"),
        ]
    ),
    max_size=25,
).map("".join)


@given(SCRAPS | st.text(max_size=40))
def test_any_text_loads_or_raises_config_error(text: str) -> None:
    load_error(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=40))
def test_any_bytes_load_or_raise_config_error(body: bytes) -> None:
    load_error(body)


@given(TABLES, st.booleans())
def test_any_tables_load_or_raise_errors_with_lines(tables: dict[str, Value], with_headers: bool) -> None:
    error = load_error(written(tables, with_headers=with_headers).encode())

    for problem in error.problems if error is not None else ():
        assert problem.line is not None
        assert len(str(problem).splitlines()) == 1


@given(TABLES, st.booleans())
def test_every_key_is_found_on_a_line_that_has_it(tables: dict[str, Value], with_headers: bool) -> None:
    text = written(tables, with_headers=with_headers)
    document = read_toml(text, "any.toml")

    for path in paths(tables):
        line = document.line_of(path)
        assert line is not None
        if isinstance(path[-1], str):
            assert string(path[-1]) in text.split("\n")[line - 1]


def load_error(body: bytes) -> ConfigError | None:
    """The `ConfigError` of a file, if any; other exceptions propagate and fail the test."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "retinue.toml").write_bytes(body)
        try:
            load(cwd=Path(folder), sections=SECTIONS)
        except ConfigError as error:
            return error
    return None


def written(tables: dict[str, Value], *, with_headers: bool) -> str:
    """The tables as TOML, with `[headers]` for those at the top or with nothing but inline tables."""
    lines: list[str] = []
    later: list[str] = []
    for key, value in tables.items():
        if with_headers and isinstance(value, dict):
            later += ["", f"[ {string(key)} ] # [no.header]"]
            later += [f"{string(name)} = {inline(below)}" for name, below in value.items()]
        else:
            lines += [f"{string(key)} = {inline(value)} # x = 1"]
    return "\n".join([*lines, *later])


def inline(value: Value) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{string(key)} = {inline(below)}" for key, below in value.items()) + " }"
        case list():
            return "[\n" + "".join(f"  {inline(below)}, # , ]\n" for below in value) + "]"
        case str():
            return string(value)
        case bool():
            return str(value).lower()
        case datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return str(value)


def string(text: str) -> str:
    """A TOML basic string with all special characters escaped."""
    plain = "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in text)
    return f'"{plain}"'


def paths(value: Value, above: KeyPath = ()) -> Iterator[KeyPath]:
    items: list[tuple[str | int, Value]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, below in items:
        yield (*above, key)
        yield from paths(below, (*above, key))
