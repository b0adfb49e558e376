"""A settings file that would take long to read is refused before it is parsed, with its line and what is too much."""

import tomllib
from pathlib import Path

import pytest

from retinue.app.settings_file import load_settings
from retinue.core.errors import ConfigError

TABLES = "".join(f"[t{number}]\n" for number in range(80_000))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retinue.toml", "a." * 100_000 + "a = 1\n", "retinue.toml:1: not readable: a key of more than 64 parts"),
        (
            "retinue.toml",
            "x = 1\n[" + "a . " * 20_000 + "a]\n",
            "retinue.toml:2: not readable: a key of more than 64 parts",
        ),
        (
            "retinue.toml",
            'x = {"a"' + ".'b'" * 20_000 + " = 1}\n",
            "retinue.toml:1: not readable: a key of more than 64 parts",
        ),
        ("retinue.toml", TABLES, "retinue.toml:20001: not readable: more than 20000 values"),
        ("retinue.toml", "a = [" + "1," * 400_000 + "]", "retinue.toml:1: not readable: more than 20000 values"),
        ("retinue.yaml", "a: [" + "1, " * 300_000 + "]", "retinue.yaml:1: not readable: more than 20000 values"),
        ("retinue.yaml", "a: b\n" * 200_000, "retinue.yaml:30000: not readable: more than 20000 values"),
    ],
    ids=["dots", "header", "inline", "tables", "items", "yaml items", "yaml keys"],
)
def test_a_file_that_takes_long_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    """The line in a message says how far YAML is read; `tomllib`, which takes minutes or hours, is not called."""

    def parsed(text: str) -> None:
        pytest.fail(f"{len(text)} characters were parsed")

    (tmp_path / name).write_text(text)
    monkeypatch.setattr(tomllib, "loads", parsed)
    with pytest.raises(ConfigError) as refused:
        load_settings(cwd=tmp_path)

    assert str(refused.value) == message


@pytest.mark.parametrize("name", ["retinue.toml", "retinue.yaml"])
def test_a_sparse_file_of_gigabytes_is_refused_by_its_size(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(ConfigError) as refused:
        load_settings(cwd=tmp_path)

    assert str(refused.value) == f"{name}: not readable: larger than 1 MiB"


def test_long_texts_in_a_file_are_no_values(tmp_path: Path) -> None:
    prompt = "one.two.three, = [x]\n" * 20_000
    (tmp_path / "retinue.toml").write_text(
        f'[agents.a]\nsystem_prompt = """\n{prompt}"""\nmodel = "openai:x"  # {"a." * 5000}\n'
    )

    assert load_settings(cwd=tmp_path).agents["a"].system_prompt == prompt
