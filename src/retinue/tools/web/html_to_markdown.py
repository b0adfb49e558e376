"""A program that converts HTML on its standard input to Markdown; `extract.py` starts and stops it.

The page is untrusted, so the program first limits itself: no file writes, and little memory and time.
"""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

SECONDS = 20
MEMORY = 1 << 30


def main() -> None:
    """Read HTML from standard input, write Markdown to standard output."""
    trafilatura = importlib.import_module("trafilatura")  # before the limits: its own files are still to be read
    for which, limit in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with suppress(ValueError, OSError):  # unsupported on this system; the parent process has a timeout as well
            resource.setrlimit(which, (limit, limit))
    html = sys.stdin.buffer.read().decode()
    if "<html" not in html[:5000].lower():  # a fragment, which trafilatura would misread
        html = f"<html><body>{html}</body></html>"
    extract = cast("Callable[..., str | None]", trafilatura.extract)
    text = extract(
        html, url=sys.argv[1], output_format="markdown", include_links=True, include_tables=True, include_comments=False
    )
    # A page without an article, such as a list of links, still has text.
    sys.stdout.buffer.write(
        (text or cast("Callable[[str], str]", trafilatura.html2txt)(html)).encode("utf-8", "replace")
    )


if __name__ == "__main__":
    main()
