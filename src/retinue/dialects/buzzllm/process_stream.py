"""Reads the stdout of a child process as the public contract says: the text of `output_text` events and no other.

Any spacing is accepted, and lines that are no server-sent event are ignored. A block that ended with an error gives the
reason if the process fails; the event `response_end` shows that nothing is missing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.core.errors import ProviderError

MAX_LINE_BYTES = 64 * 1024 * 1024
FAILED = "Error: "


class CallStream:
    r"""An incremental parser: fed with bytes as they come, it returns the text in them.

    >>> stream = CallStream()
    >>> stream.feed(b'noise\nevent: output_text\ndata: {"delta":"Hel'), stream.feed(b'lo"}\n\nevent: response_end\n')
    ([], ['Hello'])
    >>> stream.text, stream.complete, stream.reason
    ('Hello', True, '')
    """

    def __init__(self) -> None:
        self.reason = ""
        """The error that the process reported, if any."""
        self.complete = False
        self._pieces: list[str] = []
        self._event = ""
        self._line_so_far: list[bytes] = []
        self._length = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def feed(self, data: bytes) -> list[str]:
        """The text that these bytes complete; raises `ProviderError` for text that cannot be read."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._line_so_far, lines[0]))
            self._line_so_far, self._length = [], 0
        self._line_so_far.append(rest)
        self._length += len(rest)
        if self._length > MAX_LINE_BYTES:
            raise ProviderError(f"Subagent wrote a line of more than {MAX_LINE_BYTES} bytes", fault="internal")
        found = [text for line in lines if (text := self._line(line.strip()))]
        self._pieces += found
        return found

    def end(self) -> list[str]:
        """The text of a last line without a newline."""
        return self.feed(b"\n")

    def _line(self, line: bytes) -> str:
        name, colon, value = line.partition(b":")
        if colon and name == b"event":
            self._event = value.strip().decode("utf-8", "replace")
            self.complete = self.complete or self._event == "response_end"
        elif colon and name == b"data" and self._event in ("output_text", "block_end"):
            return self._data(value.strip())
        return ""

    def _data(self, value: bytes) -> str:
        try:
            delta = msgspec.json.decode(value, type=dict[str, Any]).get("delta", "")
        except (msgspec.DecodeError, UnicodeError):
            delta = None
        if self._event == "block_end":
            if isinstance(delta, str) and delta.startswith(FAILED):
                self.reason = delta.removeprefix(FAILED)
            return ""
        if not isinstance(delta, str):
            raise ProviderError("Subagent wrote an output_text event that cannot be read", fault="internal")
        return delta
