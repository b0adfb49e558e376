"""Parser of server-sent event streams, independent of how the network splits them.

Only the data of events is returned: in every supported wire it repeats what the other fields (`event`, `id`, `retry`)
say.
"""

from __future__ import annotations

import re

from retinue.core.errors import RetinueError

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_CR = ord("\r")

_one_event = re.compile(rb"(?:event: .*+\n)?data: (.*+)\n\n").fullmatch
"""An event with one line of data, an optional name, and nothing else."""


class EventTooLarge(RetinueError):
    """One event of a stream exceeds the size limit, or never ends."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(f"an event of the stream has {size} bytes or more; the limit is {limit}")
        self.size = size
        self.limit = limit


class EventReader:
    r"""Takes a stream in chunks and returns the data of each complete event.

    Lines may end in LF, CRLF or CR; comments, unknown fields and events without data are skipped; several data lines of
    one event are joined by a newline.

    >>> reader = EventReader()
    >>> reader.feed(b': hello\n\ndata: {"a"')
    []
    >>> reader.feed(b':1}\r\n\r\nevent: x\ndata: two\ndata: lines\n\n')
    [b'{"a":1}', b'two\nlines']
    """

    __slots__ = ("_after_cr", "_begun", "_limit", "_rest")

    def __init__(self, *, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._begun = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes, in order; raises `EventTooLarge`."""
        rest = self._rest
        if self._after_cr or _CR in chunk or not self._begun:
            chunk = self._with_plain_newlines(chunk if self._begun else self._begin(chunk))
        elif not rest and (event := _one_event(chunk)) and len(chunk) <= self._limit:
            return [event[1]]  # the usual case: a slow model sends one event at a time
        # An event in many chunks is joined once, when its end has arrived; only the new chunk is searched for the end.
        end = chunk.rfind(b"\n\n") + 2
        if end < 2:
            if not (rest and chunk.startswith(b"\n") and rest.endswith(b"\n")):
                return self._keep(chunk)
            end = 1
        whole, beginning = (chunk, b"") if end == len(chunk) else (chunk[:end], chunk[end:])
        if rest:
            whole = bytes(rest) + whole
            rest.clear()
        found = _plain(whole) if len(whole) <= self._limit else []
        if not found:
            blocks = whole.split(b"\n\n")
            self._check(max(len(block.lstrip(b"\n")) for block in blocks))
            found = [data for block in blocks if (data := _data_of(block)) is not None]
        if beginning:
            self._keep(beginning)
        return found

    def end(self) -> list[bytes]:
        """The data of a last event without the final empty line, which some servers omit."""
        data = _data_of(bytes(self._rest))
        self._rest.clear()
        return [] if data is None else [data]

    def _begin(self, chunk: bytes) -> bytes:
        """The first bytes of the stream without a byte order mark; empty while they may still become one."""
        chunk = bytes(self._rest) + chunk
        self._rest.clear()
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._rest += chunk
            return b""
        self._begun = True
        return chunk.removeprefix(_BOM)

    def _with_plain_newlines(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        if self._after_cr:  # the CR has ended the line already; an LF after it belongs to it
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if _CR in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _keep(self, beginning: bytes) -> list[bytes]:
        # Empty lines before an event do not count, wherever the network splits the stream.
        self._rest += beginning if self._rest else beginning.lstrip(b"\n")
        # The newline that may begin the end of an event does not count, either.
        self._check(len(self._rest) - self._rest.endswith(b"\n"))
        return []

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(size=size, limit=self._limit)


def _plain(chunk: bytes) -> list[bytes]:
    r"""The data of events that all have exactly one data line, or all a name and one data line, as vendors send them.

    For anything else, which further newlines show, an empty list: it needs the general parser.

    >>> _plain(b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"), _plain(b": hello\n\n")
    ([b'1', b'2'], [])
    """
    if chunk.startswith(b"data: "):
        found = chunk[6:-2].split(b"\n\ndata: ")
        return found if b"\n" not in b"".join(found) else []
    if chunk.startswith(b"event: "):
        found = [block.partition(b"\ndata: ")[2] for block in chunk[7:-2].split(b"\n\nevent: ")]
        return found if chunk.count(b"\n") == 3 * len(found) and all(found) else []
    return []


def _data_of(block: bytes) -> bytes | None:
    """The data lines of one event, or None if it has none."""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None
