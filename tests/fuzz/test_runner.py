"""The fuzzing loop finds a planted fault, writes it down once and small, and repeats its inputs from a seed."""

from pathlib import Path

import pytest

from retinue.net.sse import EventReader
from tests.fuzz.runner import fuzz, keep
from tests.fuzz.target import Target, TooSlow, cpu_limit


def refuse_brackets(data: bytes) -> None:
    assert b"[" not in data, "a bracket"


def test_a_finding_is_written_once_shrunk_and_logged(tmp_path: Path) -> None:
    lines: list[str] = []

    result = fuzz(
        Target(check=refuse_brackets), [b"abc" * 20], tmp_path, seed=1, seconds=60, inputs=500, log=lines.append
    )

    (finding,) = result.findings
    assert (result.inputs, finding.data) == (500, b"[")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"["]
    assert finding.file.name.startswith("finding-1-")
    assert len(lines) == 1
    assert "AssertionError: a bracket" in lines[0]


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []
        fuzz(
            Target(check=inputs.append, words=(b"word",)), [b"a: 1\n", b"[2]"], tmp_path, seed=7, seconds=60, inputs=200
        )
        seen.append(inputs)

    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100


def test_inputs_that_reach_new_lines_are_kept(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        EventReader().feed(data)

    target = Target(check=read, words=(b"data: ", b"\n\n", b"\r"))
    result = fuzz(target, [b"x"], tmp_path, seed=3, seconds=60, inputs=3000)

    assert result.findings == []
    assert result.kept
    assert keep(result, tmp_path) == len(list(tmp_path.iterdir())) > 0


def test_an_endless_input_is_a_finding_even_where_the_exception_is_swallowed(tmp_path: Path) -> None:
    def swallow(_data: bytes) -> None:
        try:
            while True:
                pass
        except BaseException:
            return

    with pytest.raises(TooSlow), cpu_limit(0.05):
        swallow(b"")
    result = fuzz(Target(check=swallow, seconds=0.05), [b""], tmp_path, seed=1, seconds=60, inputs=3)
    assert [type(finding.problem) for finding in result.findings] == [TooSlow]
