"""Reading of whole files up to a size, so that a sparse file or an endless device does not take all memory."""

from __future__ import annotations

import errno
from pathlib import Path

MIB = 1024 * 1024


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes; raises `OSError`, also for a larger one."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most // MIB} MiB")
    return content
