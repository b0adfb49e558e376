"""A program of its own that turns the HTML on its standard input into Markdown; `web_text` starts it and stops it.

The page comes from a stranger, so before it is looked at the program gives up what it does not need: files, more memory
and more time than a page deserves.
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
    """Read standard input, write Markdown to standard output."""
    trafilatura = importlib.import_module("trafilatura")  # before the limits: its own files are still to be read
    for which, most in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # not every system has each of them; whoever started this watches too
            resource.setrlimit(which, (most, most))
    html = sys.stdin.buffer.read().decode()
    if "<html" not in html[:5000].lower():  # a fragment, which trafilatura would take for something else
        html = f"<html><body>{html}</body></html>"
    extract = cast("Callable[..., str | None]", trafilatura.extract)
    text = extract(
        html, url=sys.argv[1], output_format="markdown", include_links=True, include_tables=True, include_comments=False
    )
    # A page without an article, such as a list of links, has text all the same.
    sys.stdout.buffer.write(
        (text or cast("Callable[[str], str]", trafilatura.html2txt)(html)).encode("utf-8", "replace")
    )


if __name__ == "__main__":
    main()
