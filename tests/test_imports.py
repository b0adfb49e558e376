"""`import retinue` is light: whoever only wants a name does not pay for a store, a network or a terminal."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"aiohttp", "sqlite3", "rich", "typer", "mcp", "opentelemetry"}
MOST_CPU_SECONDS = 0.120

PROGRAM = """
import json, sys, time
began = time.process_time()
{work}
spent = time.process_time() - began
print(json.dumps([spent, sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""


def fresh(work: str) -> tuple[float, set[str]]:
    """CPU seconds that `work` costs a new interpreter, and the packages that are loaded after it."""
    # Coverage would follow into the new interpreter, with a sqlite3 of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(work=work)], env=environment, check=True, capture_output=True, text=True
    )
    spent, loaded = json.loads(said.stdout)
    return spent, set(loaded)


@pytest.mark.parametrize(
    "work",
    ["import retinue", "import retinue; [getattr(retinue, name) for name in retinue.__all__]"],
    ids=["the package", "every public name"],
)
def test_no_optional_or_heavy_package_is_loaded_by(work: str) -> None:
    _, loaded = fresh(work)

    assert "retinue" in loaded
    assert loaded & HEAVY == set()


def test_importing_costs_little_cpu() -> None:
    assert min(fresh("import retinue")[0] for _ in range(3)) <= MOST_CPU_SECONDS
