"""Memories of agents: the rows, how they are searched, what every backend promises, and routing by agent."""

from __future__ import annotations

import math
import re
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ToolError

DEFAULT_CATEGORY = "core"

MAX_WORDS = 32
"""Different words of a query that are searched for."""

_WORD = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
"""A run of letters and digits; in scripts without spaces, a single character."""


class Memory(Struct, frozen=True, kw_only=True):
    """A stored text of an agent under a key, and the run that wrote it last."""

    id: str
    agent: str
    key: str
    content: str
    category: str = DEFAULT_CATEGORY
    created_at: float
    updated_at: float
    run_id: str = ""
    session_id: str = ""


class Note(Struct, frozen=True, kw_only=True):
    """A text to store, with its agent, run and time."""

    agent: str
    key: str
    content: str
    category: str = DEFAULT_CATEGORY
    at: float
    run_id: str = ""
    session_id: str = ""

    def to_memory(self, before: Memory | None) -> Memory:
        """The memory that stores this text: a new one, or the next version of the one under its key before."""
        return Memory(
            id=uuid.uuid4().hex if before is None else before.id,
            agent=self.agent,
            key=self.key,
            content=self.content,
            category=self.category,
            created_at=self.at if before is None else before.created_at or self.at,
            updated_at=self.at,
            run_id=self.run_id,
            session_id=self.session_id,
        )


class MemorySearch(Struct, frozen=True, kw_only=True):
    """Which memories to recall: those of `agents`, last written from `since` to `until`, both included.

    `query` is any text; the best matches come first. Without a word in it, the newest memories do.
    """

    agents: tuple[str, ...]
    query: str = ""
    limit: int = 5
    since: float | None = None
    until: float | None = None
    without: tuple[str, ...] = ()
    """Categories to leave out."""

    def admits(self, memory: Memory) -> bool:
        """Whether a memory may be recalled, apart from the query."""
        return (
            memory.agent in self.agents
            and memory.category not in self.without
            and (self.since is None or memory.updated_at >= self.since)
            and (self.until is None or memory.updated_at <= self.until)
        )


class Recalled(NamedTuple):
    """A memory, and how well it matches the query, up to 1; None without a query."""

    memory: Memory
    score: float | None = None


class MemoryUnavailable(ToolError):
    """Memories cannot be read or written now; the message has the reason, and no path."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The memory cannot be reached: {reason}")
        self.reason = reason


class MemoryBackend(Protocol):
    """A store of memories, shared by all processes that use it.

    Calls block, and may come from several threads at once. Each is atomic or raises `MemoryUnavailable`. Names of
    agents and keys are any text. An agent has one memory under a key. The caller decides whose memories it may read.
    """

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Store a memory under its key and return the one stored now; with `again`, one written later stays."""
        ...

    def find(self, agent: str, key: str) -> Memory | None:
        """The memory of an agent under a key."""

    def recall(self, search: MemorySearch) -> list[Recalled]:
        """The memories that match a search, the best or newest first."""
        ...

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """Delete the memory under a key, unless it was written after `written_by`; returns whether it was deleted."""
        ...

    def agents(self) -> list[str]:
        """The names of all agents with memories, sorted."""
        ...


def words(text: str) -> list[str]:
    """The words of a text for a search: without case, accents and punctuation.

    >>> words("Deploys: to EU-west_1, naïvely!")
    ['deploys', 'to', 'eu', 'west', '1', 'naively']
    """
    decomposed = _decomposed(_decomposed(text).casefold())
    return _WORD.findall("".join(character for character in decomposed if not unicodedata.combining(character)))


def _decomposed(text: str) -> str:
    """The text in NFKD, up to the order of its accents.

    Python sorts the accents after a letter in a time that grows with the square of their number, and lets no other
    thread work meanwhile: a model writes any number of them. So the text is decomposed in short pieces.
    """
    if text.isascii():
        return text
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return "".join(unicodedata.normalize("NFKD", piece) for piece in pieces)


_PIECE = 64


def query_words(query: str) -> list[str]:
    """The different words of a query, in its order.

    >>> query_words("to be or not to be?"), query_words("*")
    (['to', 'be', 'or', 'not'], [])
    """
    return list(dict.fromkeys(words(query)))[:MAX_WORDS]


def is_prefix(query_word: str) -> bool:
    """Whether a word of a query also matches words that begin with it; a short one would match too many."""
    return len(query_word) >= 3


def newest_first(memories: Sequence[Memory]) -> list[Memory]:
    """Memories in the order of results without a query."""
    return sorted(memories, key=lambda memory: (-memory.updated_at, memory.key, memory.agent))


def best_first(recalled: Iterable[Recalled], limit: int) -> list[Recalled]:

    def order(result: Recalled) -> tuple[float, float, str, str]:
        return -(result.score or 0.0), -result.memory.updated_at, result.memory.key, result.memory.agent

    return sorted(recalled, key=order)[:limit]


def scored(query: Sequence[str], found: Sequence[tuple[Memory, Sequence[str], float]], limit: int) -> list[Recalled]:
    """The best of the memories found, each given with its words and its weight, which is larger for a better match.

    The score is the share of the query's words that a memory has, halved for a weight of 0: half of the words never
    score above 50 %, and of two memories with the same share the one with the larger weight is ahead.
    """
    largest = max((weight for _, _, weight in found), default=0.0)
    results: list[Recalled] = []
    for memory, text, weight in found:
        share = sum(any(_matches(word, each) for each in text) for word in query) / len(query)
        if share:
            relative = weight / largest if largest > 0 else 1.0
            results.append(Recalled(memory, share * (1 + max(relative, 0.0)) / 2))
    return best_first(results, limit)


def search_all(memories: Sequence[Memory], search: MemorySearch, *, total: int | None = None) -> list[Recalled]:
    """The results of a search in these memories, for backends whose index does not weigh them.

    `total` is the number of all memories that the search admits, if these are only those with a word of the query.
    """
    admitted = newest_first([memory for memory in memories if search.admits(memory)])
    query = query_words(search.query)
    if not query:
        return [Recalled(memory) for memory in admitted[: search.limit]]
    texts = [words(f"{memory.key} {memory.content}") for memory in admitted]
    return scored(query, list(zip(admitted, texts, _bm25(query, texts, total), strict=True)), search.limit)


def _bm25(query: Sequence[str], texts: Sequence[Sequence[str]], total: int | None) -> list[float]:
    """The BM25 weight of each text: rare words count more, repeated ones less and less, long texts less."""
    mean = sum(map(len, texts)) / max(len(texts), 1) or 1.0
    weights = [0.0] * len(texts)
    for word in query:
        counts = [sum(_matches(word, each) for each in text) for text in texts]
        having = sum(map(bool, counts))
        rarity = max(math.log(((total or len(texts)) - having + 0.5) / (having + 0.5)), 1e-6)
        for number, (text, count) in enumerate(zip(texts, counts, strict=True)):
            weights[number] += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(text) / mean))
    return weights


def _matches(query_word: str, word: str) -> bool:
    return word == query_word or (is_prefix(query_word) and word.startswith(query_word))


class NoMemory:
    """The `MemoryBackend` of an agent without memory; storing fails, so that the agent does not rely on it."""

    def store(self, note: Note, *, again: bool = False) -> Memory:
        raise ToolError(f"The agent {note.agent!r} keeps no memory (memory backend = none).")

    def find(self, agent: str, key: str) -> Memory | None:
        return None

    def recall(self, search: MemorySearch) -> list[Recalled]:
        return []

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        return False

    def agents(self) -> list[str]:
        return []


class RoutedMemory:
    """A `MemoryBackend` that routes each agent to its own backend, else to the `default`."""

    def __init__(self, default: MemoryBackend, by_agent: Mapping[str, MemoryBackend]) -> None:
        self._default = default
        self._by_agent = by_agent

    def store(self, note: Note, *, again: bool = False) -> Memory:
        return self._backend(note.agent).store(note, again=again)

    def find(self, agent: str, key: str) -> Memory | None:
        return self._backend(agent).find(agent, key)

    def recall(self, search: MemorySearch) -> list[Recalled]:
        agents: dict[MemoryBackend, list[str]] = {}
        for agent in search.agents:
            agents.setdefault(self._backend(agent), []).append(agent)
        searches = ((backend, replace(search, agents=tuple(names))) for backend, names in agents.items())
        results = [result for backend, part in searches for result in backend.recall(part)]
        return best_first(results, search.limit) if len(agents) > 1 else results[: search.limit]

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        return self._backend(agent).forget(agent, key, written_by=written_by)

    def agents(self) -> list[str]:
        backends = (self._default, *self._by_agent.values())
        return sorted({name for backend in backends for name in backend.agents() if self._backend(name) is backend})

    def _backend(self, agent: str) -> MemoryBackend:
        return self._by_agent.get(agent, self._default)
