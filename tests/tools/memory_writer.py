"""A process that writes memories: `python -m tests.tools.memory_writer KIND FOLDER NAME COUNT`."""

from __future__ import annotations

import sys
from pathlib import Path

from retinue.tools.memory.backend import Note
from retinue.tools.memory.memory_tools import open_memory


def main(kind: str, folder: str, name: str, count: str) -> None:
    """Write under keys of this process, and with each under a key that all writers share."""
    memory = open_memory(kind, Path(folder), folder=Path(folder))
    for number in range(int(count)):
        memory.store(Note(agent="me", key=f"{name}-{number}", content=f"words of {name}", at=float(number)))
        memory.store(Note(agent="me", key="shared", content=name, at=float(number)))
        memory.forget("me", f"{name}-{number - 1}")


if __name__ == "__main__":
    main(*sys.argv[1:])
