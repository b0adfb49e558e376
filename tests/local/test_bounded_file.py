"""Whole files are read up to a size: a sparse file and an endless device are refused."""

from pathlib import Path

import pytest

from retinue.app.launch.model_choice import script_of
from retinue.app.structured_output import BadSchema, make_output
from retinue.core.errors import BadInput
from retinue.local.bounded_file import MIB, read_bounded


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(3 << 30)
    return path


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * MIB)

    assert len(read_bounded(tmp_path / "a", MIB)) == MIB
    for path in (sparse(tmp_path / "b"), Path("/dev/zero")):
        with pytest.raises(OSError, match=r"larger than 1 MiB$"):
            read_bounded(path, MIB)


def test_a_script_and_a_schema_of_gigabytes_are_refused(tmp_path: Path) -> None:
    file = sparse(tmp_path / "big.json")
    with pytest.raises(BadInput) as script:
        script_of(str(file))
    with pytest.raises(BadSchema) as schema:
        make_output(file)

    assert str(script.value) == f"the script {file} cannot be read: larger than 64 MiB"
    assert str(schema.value) == f"{file} is not a usable JSON Schema: larger than 1 MiB"
