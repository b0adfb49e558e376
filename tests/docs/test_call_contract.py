"""The page about `retinue call` in another language: its program works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import open_in_a_thread
from tests.docs.pages import DOCS, read
from tests.docs.vendor import ADDRESS

(PROGRAM,) = read(DOCS / "reference" / "call.md").of("js")


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize(("model", "printed"), [("qwen3", "42\n"), ("", "Error: the request on stdin is not valid")])
def test_the_program_in_javascript_calls_a_subagent(tmp_path: Path, model: str, printed: str) -> None:
    def answer(heard: ReceivedRequest) -> Line:
        return says("42")

    with open_in_a_thread(FakeChat(answer)) as vendor:
        code = PROGRAM.code.replace(ADDRESS, vendor.base_url).replace('"qwen3"', f'"{model}"')
        (tmp_path / PROGRAM.title).write_text(code)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["node", PROGRAM.title], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(printed)
