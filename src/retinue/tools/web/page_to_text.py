"""A program that converts a page on its standard input to text; `extract.py` starts and stops it.

HTML becomes Markdown, JSON is indented. The page is untrusted, so the program first limits itself: no file writes, and
little memory and time.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

IMPORT_PATH = "RETINUE_IMPORT_PATH"
"""The variable with the folders of packages; no others are used."""
SECONDS = 20
MEMORY = 1 << 30

MOST_TIMES = 10
"""How many times its own size JSON may become: deep in it, every number is on a line with hundreds of blanks."""

_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]', re.DOTALL)


def limit_this_process() -> None:
    """Allow no file to be written, and little memory and time to be used."""
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


def markdown_of(page: bytes, url: str) -> str:
    """The text of an HTML page."""
    trafilatura = importlib.import_module("trafilatura")  # before the limits: its own files are still to be read
    limit_this_process()
    html = page.decode()
    if "<html" not in html[:5000].lower():  # a fragment, which trafilatura would misread
        html = f"<html><body>{html}</body></html>"
    extract = cast("Callable[..., str | None]", trafilatura.extract)
    text = extract(
        html, url=url, output_format="markdown", include_links=True, include_tables=True, include_comments=False
    )
    # A page without an article, such as a list of links, still has text.
    return text or cast("Callable[[str], str]", trafilatura.html2txt)(html)


def indented_size(page: bytes) -> int:
    """An upper bound of the size of indented JSON, without making it.

    >>> indented_size(b'{"a":[1,2]}')
    29
    """
    size, depth = len(page), 0
    for token in _JSON_TOKEN.finditer(page):
        first = token[0][0]
        if first == 0x22:  # a string
            continue
        depth += (first in b"[{") - (first in b"]}" and depth > 0)
        size += 1 if first == 0x3A else 1 + 2 * depth
    return size


def indented(page: bytes) -> bytes:
    """JSON with indentation; as it came if that made it too long, and if it is no JSON."""
    msgspec = importlib.import_module("msgspec")
    limit_this_process()
    if indented_size(page) > MOST_TIMES * len(page):
        return page
    try:
        return msgspec.json.format(page, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return page


def main(kind: str, url: str = "") -> None:
    """Read a page from standard input, write its text to standard output."""
    sys.path += os.environ.get(IMPORT_PATH, "").split(os.pathsep)
    page = sys.stdin.buffer.read()
    sys.stdout.buffer.write(indented(page) if kind == "json" else markdown_of(page, url).encode("utf-8", "replace"))


if __name__ == "__main__":
    main(*sys.argv[1:])
