"""Reading of whole files up to a size, so that a sparse file or an endless device does not take all memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MIB = 1024 * 1024


def read_bounded(path: Path, most: int, *, only_file: bool = False) -> bytes:
    """The content of a file of at most `most` bytes; raises `OSError`, also for a larger one.

    With `only_file`, a pipe or a device is an error, and not waited for.
    """
    flags = os.O_RDONLY | (getattr(os, "O_NONBLOCK", 0) if only_file else 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if only_file and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most // MIB} MiB")
    return content
