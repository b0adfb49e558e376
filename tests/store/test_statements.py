"""The SQL text of the SQLite store."""

import ast
import re
from pathlib import Path

import retinue

PACKAGE = Path(retinue.__file__).parent
NUMBERED_PLACEHOLDER = re.compile(r"(?<!\()\?[0-9]")


def test_statements_have_no_numbered_placeholders() -> None:
    """Python 3.12 warns of `?1` with a sequence of values, and a later version refuses it."""
    folders = [PACKAGE / "store", PACKAGE / "tools" / "memory"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    found = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NUMBERED_PLACEHOLDER.search(node.value)
    ]
    assert len(files) > 10
    assert found == []
