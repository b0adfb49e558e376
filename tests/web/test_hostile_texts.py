"""Texts of models in the page, without a browser: what would hide in them is shown, and none of them stops the page."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
]

DOCUMENT = """
const made = () => ({ append() {}, setAttribute() {}, addEventListener() {} });
globalThis.document = { createElement: made, createTextNode: made };
"""


def in_node(tmp_path: Path, code: str) -> str:
    """What a program prints that may import the modules of the page; it has a minute."""
    for name in ("dom.js", "markdown.js"):
        (tmp_path / name).write_bytes((files("retinue.web") / "static" / name).read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "main.js").write_text(f'import {{ visible }} from "./dom.js";\n{DOCUMENT}{code}')
    done = subprocess.run(["node", "main.js"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_a_long_run_of_blanks_below_a_table_is_read_once(tmp_path: Path) -> None:
    """It was tried as a line of a table from each of its blanks, which took minutes."""
    code = """
    const { markdown } = await import("./markdown.js");
    for (const line of [" ".repeat(500000) + "x", "--" + " ".repeat(500000) + "x"]) markdown("a | b\\n" + line);
    console.log("rendered");
    """

    assert in_node(tmp_path, code) == "rendered\n"


@pytest.mark.parametrize("code", [0x034F, 0x115F, 0x200B, 0x202E, 0x2028, 0x2800, 0x3164, 0xFE00, 0xFFA0, 0xE0041])
def test_invisible_characters_of_a_call_are_shown(tmp_path: Path, code: int) -> None:
    shown = in_node(tmp_path, f'console.log(visible("a" + String.fromCodePoint({code}) + "b"));')

    assert shown == f"a\\u{code:04x}b\n"
