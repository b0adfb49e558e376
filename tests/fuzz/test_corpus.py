"""Every input of every corpus is handled, findings of earlier sessions among them."""

from pathlib import Path

import pytest

from tests.fuzz.runner import MAX_CORPUS_BYTES
from tests.fuzz.target import CORPUS, corpus_files, load, names, problem_of


@pytest.mark.parametrize("name", names())
def test_every_input_of_the_corpus_is_handled(name: str) -> None:
    target = load(name)
    inputs = {f"seed {number}": data for number, data in enumerate(target.seeds)}
    inputs |= {file.name: file.read_bytes() for file in corpus_files(name)}

    assert inputs
    found = {where: repr(problem) for where, data in inputs.items() if (problem := problem_of(target, data))}
    assert found == {}


def test_every_corpus_has_a_target_and_stays_small() -> None:
    sizes = {folder.name: size_of(folder) for folder in CORPUS.iterdir()} if CORPUS.is_dir() else {}

    assert set(sizes) <= set(names())
    assert [name for name, size in sizes.items() if size > MAX_CORPUS_BYTES] == []


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
