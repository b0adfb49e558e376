"""Check types: examples, README programs and typed answers with mypy, README programs with basedpyright too.

`make check` runs it. The package is checked with basedpyright; users also have mypy, and what they copy has to be clean
in both.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
TYPED = "tests/app/test_typed_output.py"
"""Says which type the answer has for each kind of demanded type."""


def readme_programs(folder: Path) -> list[str]:
    """The Python blocks of the README, each as a file."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    paths = [folder / f"readme_{number}.py" for number in range(1, len(blocks) + 1)]
    for path, block in zip(paths, blocks, strict=True):
        path.write_text(block, encoding="utf-8")
    return [str(path) for path in paths]


def main() -> int:
    """Run both checkers; the exit status is 0 if both are content."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readme = readme_programs(folder)
        examples = sorted(map(str, (ROOT / "examples").glob("*.py")))
        cache = str(ROOT / ".mypy_cache")
        mypy = ["mypy", "--strict", "--follow-imports=silent", "--python-version=3.11", f"--cache-dir={cache}"]
        (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard", "pythonVersion": "3.11"}')
        checks = (
            [str(BIN / mypy[0]), *mypy[1:], *readme, *examples, TYPED],
            [str(BIN / "basedpyright"), "--pythonpath", sys.executable, "--project", name],
        )
        codes = [subprocess.run(command, check=False, cwd=ROOT).returncode for command in checks]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
