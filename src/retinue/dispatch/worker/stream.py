"""What a child process says on its stdout, read the way the contract wants it: the words of `output_text` and no more.

Any spacing will do, and whatever is no server-sent event is passed over. That a block ended with an error is remembered
for the case that the process fails, and that the response ended is how one knows that nothing is missing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.core.errors import ProviderError

LONGEST_LINE = 64 * 1024 * 1024
FAILED = "Error: "


class CallStream:
    r"""Fed with bytes as they come; gives back the words in them.

    >>> stream = CallStream()
    >>> stream.feed(b'noise\nevent: output_text\ndata: {"delta":"Hel'), stream.feed(b'lo"}\n\nevent: response_end\n')
    ([], ['Hello'])
    >>> stream.text, stream.complete, stream.reason
    ('Hello', True, '')
    """

    def __init__(self) -> None:
        self.reason = ""
        """Why the process says that it failed, if it does."""
        self.complete = False
        self._words: list[str] = []
        self._event = ""
        self._line_so_far: list[bytes] = []
        self._length = 0

    @property
    def text(self) -> str:
        """All words so far."""
        return "".join(self._words)

    def feed(self, data: bytes) -> list[str]:
        """The words that these bytes complete; raises `ProviderError` where words cannot be read."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._line_so_far, lines[0]))
            self._line_so_far, self._length = [], 0
        self._line_so_far.append(rest)
        self._length += len(rest)
        if self._length > LONGEST_LINE:
            raise ProviderError(f"Subagent wrote a line of more than {LONGEST_LINE} bytes", fault="internal")
        said = [words for line in lines if (words := self._line(line.strip()))]
        self._words += said
        return said

    def end(self) -> list[str]:
        """The words of a last line without an end."""
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
