"""Pin the development environment: resolve the extras `dev` and `docs` anew and write constraints.txt.

`make constraints` runs it with one Python, `make constraints PYTHONS="python3.11 python3.14"` with several. Each Python
resolves in a fresh virtual environment, within the bounds of constraints.in, and installs nothing. A package whose
version depends on the Python gets one line for each range of Pythons, with a marker. A package that only some Pythons
need has a line without a marker: a constraint on a package that is not installed has no effect.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
BOUNDS = ROOT / "constraints.in"
PROJECT = "retinue"
EXTRAS = "dev,docs"

Python = tuple[int, int]
"""Major and minor version, as (3, 11)."""

Versions = Mapping[str, str]
"""Versions of packages by name."""


def main(pythons: Sequence[str]) -> None:
    """Resolve with each Python and write the file."""
    resolved = dict(resolve(python) for python in pythons)
    lines = list(constraints(resolved))
    CONSTRAINTS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{CONSTRAINTS.name}: {len(lines)} lines, resolved with {', '.join(map(_dotted, sorted(resolved)))}")


def resolve(python: str) -> tuple[Python, Versions]:
    """The version of `python`, and the packages that pip would install with it into an empty environment."""
    with tempfile.TemporaryDirectory(prefix="retinue-constraints-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        report = Path(folder) / "report.json"
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        asked = ["--dry-run", "--ignore-installed", "--report", str(report), "-c", str(BOUNDS), f"{ROOT}[{EXTRAS}]"]
        subprocess.run([*pip, *asked], check=True, cwd=folder)
        return read_report(report.read_text(encoding="utf-8"))


def read_report(text: str) -> tuple[Python, Versions]:
    """The Python and the packages in an installation report of pip; the project itself is left out.

    >>> packages = '[{"metadata": {"name": "a", "version": "1"}}, {"metadata": {"name": "retinue", "version": "2"}}]'
    >>> read_report('{"environment": {"python_version": "3.11"}, "install": %s}' % packages)
    ((3, 11), {'a': '1'})
    """
    report = json.loads(text)
    major, minor = report["environment"]["python_version"].split(".")
    found = {each["metadata"]["name"]: each["metadata"]["version"] for each in report["install"]}
    return (int(major), int(minor)), {name: version for name, version in found.items() if name != PROJECT}


def constraints(resolved: Mapping[Python, Versions]) -> Iterator[str]:
    """The lines of the file, sorted by name.

    >>> list(constraints({(3, 11): {"b": "1", "A": "1"}, (3, 12): {"b": "1"}, (3, 14): {"b": "2"}}))
    ['A==1', 'b==1; python_version < "3.14"', 'b==2; python_version >= "3.14"']
    """
    names = {_canonical(name): name for versions in resolved.values() for name in versions}
    for canonical in sorted(names):
        name = names[canonical]
        pythons = [python for python in sorted(resolved) if name in resolved[python]]
        yield from _lines(name, {python: resolved[python][name] for python in pythons})


def _lines(name: str, versions: Mapping[Python, str]) -> Iterator[str]:
    """One line, or one for each range of Pythons that has another version than the range before."""
    starts = [
        python
        for before, python in zip([None, *versions], versions, strict=False)
        if before is None or versions[before] != versions[python]
    ]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        above = f'python_version >= "{_dotted(start)}"' if start != starts[0] else ""
        below = f'python_version < "{_dotted(end)}"' if end else ""
        marker = " and ".join(filter(None, (above, below)))
        yield f"{name}=={versions[start]}" + (f"; {marker}" if marker else "")


def _dotted(python: Python) -> str:
    return ".".join(map(str, python))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
