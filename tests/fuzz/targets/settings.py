"""Settings files: any bytes are settings, or an error that names the file and, for syntax errors, the line.

The first byte of an input chooses the name of the file, and with it the format and the program that it belongs to.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from retinue.app.settings_file import load_settings
from retinue.config.settings import Settings
from retinue.core.errors import ConfigError
from tests.fuzz.target import Target

FILES = ("retinue.toml", "retinue.yaml", "config.toml", "config.yaml")


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the file; removed at the end of the process."""
    return tempfile.TemporaryDirectory(prefix="retinue-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def check(data: bytes) -> None:
    """The file `data[1:]` is settings or a `ConfigError`."""
    name = FILES[(data[0] if data else 0) % len(FILES)]
    file = Path(folder().name, name)
    file.write_bytes(data[1:])
    try:
        assert isinstance(load_settings(file, cwd=file.parent), Settings)
    except ConfigError as error:
        check_error(error, str(file), len(data))
    finally:
        file.unlink()


def check_error(error: ConfigError, file: str, size: int) -> None:
    """Every problem names the file and a line that it has."""
    assert error.problems
    for problem in error.problems:
        assert problem.file == file
        assert problem.line is None or 1 <= problem.line <= size + 1
        assert problem.complaint
        assert len(str(problem)) < 100_000


WORDS = b"""
    [ ] [[ ]] = . " ' \"\"\" \'\'\' { } # &a *a ? ! true null inf nan 0x1 1979-05-27T07:32:00Z !!python/object:a --- <<:
    agents providers tools risk_profiles runtime_profiles memory cron limits model spec xzatoma zeroclaw meerkat buzzllm
    workspace path prices base_url wire
"""

TARGET = Target(
    check=check,
    seeds=(
        b'\x00[agents.a]\nmodel = "openai:gpt"\nsystem_prompt = """x\n"""\n[agents.a.limits]\nmax_turns = 3\n',
        b'\x00[providers.house]\nwire = "openai-chat"\nbase_url = "http://localhost:1/v1"\n[tools]\nmodules = ["a"]\n',
        b"\x01agents:\n  a:\n    model: openai:gpt\n    tools: [shell, fetch]\nmemory:\n  backend: sqlite\n",
        b"\x01a: &x [1, 2]\nb: *x\nc: {d: !!str 3, <<: {e: 1}}\n",
        b'\x02[agents.a]\nprovider = "x"\n[risk_profiles.r]\nallowed_commands = ["ls"]\n',
        b"\x03provider:\n  type: ollama\nagent:\n  max_turns: 4\n  subagent: {max_depth: 2}\n",
        b"\x00[cron.jobs.a]\nschedule = \"* * * * *\"\ncommand = 'x'\n[zeroclaw]\n[spec]\n[risk_profiles.a]\n",
    ),
    words=(*WORDS.split(), b"\n", b": ", b"- ", b"  "),
    seconds=10.0,
)
