"""Text of web pages for a model: HTML becomes Markdown, JSON is indented, other text stays as it is.

HTML and JSON are read in a process of its own (`page_to_text.py`). Some pages, even small ones, keep a parser busy for
minutes or make gigabytes of text, and a thread could not be stopped; and a parser of untrusted input should not have
the keys, memory and files of this process.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from retinue.core.errors import ToolError
from retinue.local.programs import import_path, why_untrusted
from retinue.net.fetcher import Fetched, NotText
from retinue.tools.web.page_to_text import IMPORT_PATH

READING_SECONDS = 15.0
MAX_TEXT_BYTES = 20 * 1024 * 1024
"""The longest text of a page. A page itself has at most a quarter of that; links become longer."""
MISSING = (
    "reading web pages needs trafilatura, which is not installed here; "
    "install the extra `fetch` from the repository: pip install '.[fetch]'"
)

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_JSON = re.compile(r"application/(?:json|[\w.-]+\+json)|text/json")
_CHARSET_IN_PAGE = re.compile(rb"<meta[^>]{0,200}?charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.IGNORECASE)
_CHARSETS = re.compile(
    r"utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rut]|gb2312|gbk|gb18030|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+"
    r"|mac-\w+|tis-620"
)
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# Control characters, marks that turn the direction of writing, and the invisible letters of the "tag" block, in which
# a page can hide words from people and not from models. Joiners stay: scripts and emoji need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


class UnreadablePage(ToolError):
    """A page was fetched, and its text could not be extracted."""


def visible(text: str) -> str:
    """The text without invisible characters; lines end with a plain newline.

    >>> visible("a\\r\\nb\\x1b[31m\\u202e c\\U000e0041")
    'a\\nb[31m c'
    """
    return _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def single_line(text: str, limit: int) -> str:
    """The visible text on one line, cut to `limit` characters."""
    return " ".join(visible(text).split())[:limit]


async def page_text(page: Fetched, *, seconds: float = READING_SECONDS, agents_write: Sequence[str] = ()) -> str:
    """The page as text, Markdown if it is HTML; raises `UnreadablePage`, or `NotText` for binary data."""
    text = decoded(page)
    if "\x00" in text:
        raise NotText(page.url, content_type="binary data")
    kind = page.content_type or ("text/html" if text.lstrip()[:1] == "<" else "text/plain")
    if kind in _HTML:
        if importlib.util.find_spec("trafilatura") is None:
            raise UnreadablePage(MISSING)
        text = await _converted(text, "html", page.url, seconds=seconds, agents_write=agents_write)
        if not text.strip():
            raise UnreadablePage("the page has no text")
    elif _JSON.fullmatch(kind):
        with contextlib.suppress(UnreadablePage):  # then it is text as it came
            text = await _converted(text, "json", seconds=seconds, agents_write=agents_write)
    return visible(text).strip()


def decoded(page: Fetched) -> str:
    """The page's characters, by the charset of its server, else of the page, else UTF-8, else what browsers guess."""
    body = page.body
    for mark, charset in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(charset, "replace")
    in_page = _CHARSET_IN_PAGE.search(body[:4096]) if page.content_type in _HTML or not page.content_type else None
    for name in (page.charset, in_page[1].decode("ascii", "replace") if in_page else None):
        if charset := _known_charset(name):
            return body.decode(charset, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _known_charset(name: str | None) -> str | None:
    """A charset of the web by that name; Python has other codecs, and some of them can take forever."""
    try:
        charset = codecs.lookup((name or "").strip()).name
    except (LookupError, ValueError):
        return None
    if charset in ("ascii", "iso8859-1"):
        return "cp1252"  # as browsers do: pages with these labels mean that
    return charset if _CHARSETS.fullmatch(charset) else None


async def _converted(page: str, *arguments: str, seconds: float, agents_write: Sequence[str]) -> str:
    """The text that `page_to_text.py` makes of a page; raises `UnreadablePage`."""
    # Variables of Python are ignored, no key is passed, and nothing is imported from a folder that agents may write.
    folders = (os.getcwd(), *agents_write)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    kept = [each for each in libraries if os.path.isabs(each) and not why_untrusted(each, agents_write=folders)]
    environment = {IMPORT_PATH: os.pathsep.join(import_path(agents_write=folders)), "LD_LIBRARY_PATH": ":".join(kept)}
    try:
        reader = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("page_to_text.py")),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        raise UnreadablePage(f"nothing can be started to read the page: {error.strerror}") from error
    try:
        async with asyncio.timeout(seconds):
            data = page.encode("utf-8", "replace")
            _, text = await asyncio.gather(_write(reader.stdin, data), _read(reader, MAX_TEXT_BYTES))
            await reader.wait()
    except TimeoutError as error:
        raise UnreadablePage(f"the page could not be read within {seconds:g} seconds") from error
    finally:
        if reader.returncode is None:
            reader.kill()
            # asyncio notices the end of a process only once its pipe is read to the end.
            while reader.stdout is not None and await reader.stdout.read(1 << 16):
                pass
            await reader.wait()
    if reader.returncode != 0:
        raise UnreadablePage("the page is too large or too strange to be read")
    return text.decode("utf-8", "replace")


async def _write(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    assert pipe is not None
    with contextlib.suppress(ConnectionError):  # its exit status says that it failed
        pipe.write(data)
        await pipe.drain()
    pipe.close()


async def _read(reader: asyncio.subprocess.Process, most: int) -> bytes:
    """What the process prints; one that prints more than `most` bytes is killed, as its exit status then says."""
    assert reader.stdout is not None
    pieces: list[bytes] = []
    while piece := await reader.stdout.read(1 << 16):
        most -= len(piece)
        if most >= 0:
            pieces.append(piece)
        elif reader.returncode is None:
            reader.kill()
    return b"".join(pieces)
