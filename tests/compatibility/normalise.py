"""Placeholders for ids, times, durations, processes, ports, paths and estimated sizes.

Ids are numbered in the order in which they are learned. An id has the same number in all documents of a scenario, so
the identity of ids is still compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ARTIFACT = re.compile(r"(?<![0-9A-Za-z])a_[0-9a-f]{16}(?![0-9A-Za-z])")
_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8,32}(?![0-9A-Za-z])")

_PROCESSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r'"host":"[^"]*"'), '"host":"<host>"'),
    (re.compile(r'"process":"\d+:\d+"'), '"process":"<pid>:<start>"'),
)
"""Replaced before ids, because the name of a host contains a UUID."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        # The years 2020 and 2100 are kept: scenarios use them for fixed times.
        (r"(?!2020)20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?", "<time>"),
        (r"(?<![\w.])1[6-9]\d{8}(?:\.\d+)?(?![\w.])", "<epoch>"),
        (r"(?<!\d)0001[6-9]\d{8}\.\d+(?=/)", "<epoch>"),
        (r"(?<!within) +(?:\d+\.\d s|\d+m \d\ds)(?!\w)", " <took>"),
        (r"( ok| failed) +\d+\.\d(?= )", r"\1 <took>"),
        (r"((?:duration|running|elapsed)_(?:ms|secs|seconds)\\*\"?[=:] ?)\d+(?:\.\d+)?", r"\1<took>"),
        (r"(\"seconds\": ?)\d+\.\d+", r"\1<took>"),
        # Fields that are new since 0.1; the corpus of the store proves that events without them are read.
        (r'(\{"type":"returned".*),"tool":"[^"]*"(?:,"duration":[\d.e-]+)?(?=\}$)', r"\1"),
        (r'(\{"type":"(?:reply|turn_failed|compacted)".*),"duration":[\d.e-]+(?=\}$)', r"\1"),
        (r"process \d+ on \S+", "process <pid> on <host>"),
        (r"(?<=retinue[ /])\d+\.\d+\.\d+\w*", "<version>"),
        # The estimate of a prompt grows with every word in the description of a tool.
        (r"(needed at least \$?|\"needed\":)\d+(?:\.\d+)?", r"\1<size>"),
    )
)


class Names:
    """The placeholders of one scenario."""

    def __init__(self) -> None:
        self._fixed: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def fix(self, text: str, placeholder: str) -> None:
        """Set the placeholder of a literal text, such as a path or a port."""
        self._fixed[text] = f"<{placeholder}>"

    def learn(self, raw: str, kind: str) -> str:
        """The placeholder of an id; a new id gets the next number of its kind."""
        if raw not in self._ids:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            name = self._ids[raw] = f"<{kind}-{number}>"
            if UUID.fullmatch(raw):
                bare = raw.replace("-", "")
                self._parts |= {bare: f"{name}:hex", bare[:12]: f"{name}:begin", raw[-8:]: f"{name}:end"}
        return self._ids[raw]

    def normal(self, text: str) -> str:
        """The text with placeholders; new ids are learned."""
        return self._replace(text, self.learn)

    def masked(self, text: str) -> str:
        """The text with placeholders; all new ids have the same placeholder, and none is learned."""
        return self._replace(text, lambda raw, kind: self._ids.get(raw, f"<{kind}>"))

    def normal_lines(self, lines: Iterable[str], *, ordered: bool) -> list[str]:
        """Lines with placeholders; lines whose order depends on concurrency are sorted."""
        return [self.normal(line) for line in (lines if ordered else sorted(lines, key=self.masked))]

    def _replace(self, text: str, name: Callable[[str, str], str]) -> str:
        for raw in sorted(self._fixed, key=len, reverse=True):
            text = text.replace(raw, self._fixed[raw])
        for pattern, placeholder in _PROCESSES:
            text = pattern.sub(placeholder, text)
        text = UUID.sub(lambda found: name(found[0], "id"), text)
        text = _DIGEST.sub(lambda found: name(found[0], "digest"), text)
        text = _ARTIFACT.sub(lambda found: name(found[0], "artifact"), text)
        text = _HEX.sub(lambda found: self._parts.get(found[0]) or _key(found[0], name), text)
        for pattern, placeholder in _PATTERNS:
            text = pattern.sub(placeholder, text)
        return text


def _key(raw: str, name: Callable[[str, str], str]) -> str:
    return name(raw, "key") if len(raw) == 32 else raw
