"""`import retinue` is light: it loads no store, no network client and no terminal library."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"aiohttp", "sqlite3", "rich", "typer", "mcp", "opentelemetry"}

PROGRAM = """
import json, sys
{work}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded_by(work: str) -> set[str]:
    """The packages that are loaded after `work` in a new interpreter."""
    # Coverage would follow into the new interpreter, with a sqlite3 of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(work=work)], env=environment, check=True, capture_output=True, text=True
    )
    return set(json.loads(said.stdout))


@pytest.mark.parametrize(
    "work",
    ["import retinue", "import retinue; [getattr(retinue, name) for name in retinue.__all__]"],
    ids=["the package", "every public name"],
)
def test_no_optional_or_heavy_package_is_loaded_by(work: str) -> None:
    loaded = loaded_by(work)

    assert "retinue" in loaded
    assert loaded & HEAVY == set()
