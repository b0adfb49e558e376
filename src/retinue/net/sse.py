"""Reads a stream of server-sent events, however the network cut it into pieces.

Only the data of events is handed on: every wire of ours repeats in it what the other fields (`event`, `id`, `retry`)
would say. What the data means is not known here.
"""

from __future__ import annotations

import re

from retinue.core.errors import RetinueError

MAX_EVENT_BYTES = 64 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_CR = ord("\r")

_one_event = re.compile(rb"(?:event: .*+\n)?data: (.*+)\n\n").fullmatch
"""An event with one line of data and perhaps a name, and nothing else."""


class EventTooLarge(RetinueError):
    """One event of a stream is larger than anyone should send, or the stream never ends an event."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(f"an event of the stream has {size} bytes or more; the limit is {limit}")
        self.size = size
        self.limit = limit


class EventReader:
    r"""Takes a stream piece by piece and gives the data of each event that is complete.

    Lines may end in LF, CRLF or CR; comments, unknown fields and events without data are passed over; an event's
    several data lines are joined by a newline.

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
            return [event[1]]  # nearly always, from a model that takes its time
        # An event in many pieces is put together once, when its end is there; only the new piece is searched for it.
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
            self._check(max(map(len, blocks)))
            found = [data for block in blocks if (data := _data_of(block)) is not None]
        if beginning:
            self._keep(beginning)
        return found

    def end(self) -> list[bytes]:
        """The data of a last event that the stream ended without ending it, as careless servers do."""
        data = _data_of(bytes(self._rest))
        self._rest.clear()
        return [] if data is None else [data]

    def _begin(self, chunk: bytes) -> bytes:
        """The stream's first bytes without a byte order mark, or nothing as long as they may become one."""
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
        if self._after_cr:  # a CR ended the line at once; an LF that follows it belongs to it
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if _CR in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _keep(self, beginning: bytes) -> list[bytes]:
        """Nothing yet, but this for later."""
        self._rest += beginning
        self._check(len(self._rest))
        return []

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(size=size, limit=self._limit)


def _plain(chunk: bytes) -> list[bytes]:
    r"""The data of events that all have one line of it, or all a name and then one line, as vendors have it throughout.

    Anything else shows in the number of newlines: it gives an empty list, and has to be read with more care.

    >>> _plain(b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"), _plain(b": hello\n\n")
    ([b'1', b'2'], [])
    """
    if chunk.startswith(b"data: "):
        found = chunk[6:-2].split(b"\n\ndata: ")
        return found if chunk.count(b"\n") == 2 * len(found) else []
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
