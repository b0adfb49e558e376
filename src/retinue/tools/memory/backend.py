"""Memories of agents: the rows, how they are searched, what every backend promises, and routing by agent."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import ToolError

DEFAULT_CATEGORY = "core"

MOST_WORDS = 32
"""How many different words of a question are looked for."""

_WORD = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
"""A run of letters and digits; where writing has no spaces, a single sign."""


class Memory(Struct, frozen=True, kw_only=True):
    """Something that an agent remembers under a key, and who wrote it down last."""

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
    """Something to be remembered, stamped with who writes it and when."""

    agent: str
    key: str
    content: str
    category: str = DEFAULT_CATEGORY
    at: float
    run_id: str = ""
    session_id: str = ""


class Search(Struct, frozen=True, kw_only=True):
    """Which memories to recall: those of `agents`, written last from `since` to `until`, both included.

    `query` is any text; the best fitting come first. Without a word in it, the newest do.
    """

    agents: tuple[str, ...]
    query: str = ""
    limit: int = 5
    since: float | None = None
    until: float | None = None
    without: tuple[str, ...] = ()
    """Categories to leave out."""

    def admits(self, memory: Memory) -> bool:
        """Whether a memory may be recalled, whatever it says."""
        return (
            memory.agent in self.agents
            and memory.category not in self.without
            and (self.since is None or memory.updated_at >= self.since)
            and (self.until is None or memory.updated_at <= self.until)
        )


class Recalled(NamedTuple):
    """A memory, and how well it fits what was asked for, up to 1; None where nothing was."""

    memory: Memory
    score: float | None = None


class MemoryUnavailable(ToolError):
    """Memories cannot be read or written now; says why, and names no place."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The memory cannot be reached: {reason}")
        self.reason = reason


class MemoryBackend(Protocol):
    """A place that keeps memories, shared by all processes that are told of it.

    Its calls take real time, and may come from several threads at once. Each happens as a whole or raises
    `MemoryUnavailable`. Names of agents and keys are any text. An agent has one memory under a key; whose memories a
    caller may see is the caller's business.
    """

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Remember something, instead of what was under that key; the memory that is there now.

        With `again`, which says that the note may have been stored before, a memory that was written later stays.
        """
        ...

    def find(self, agent: str, key: str) -> Memory | None:
        """What an agent remembers under a key."""
        ...

    def recall(self, search: Search) -> list[Recalled]:
        """The memories that were asked for, the best or newest first."""
        ...

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """Remove what an agent remembers under a key, unless it was written after that moment; whether it was there."""
        ...

    def agents(self) -> list[str]:
        """Everyone who remembers something, by name."""
        ...


def words(text: str) -> list[str]:
    """The words of a text as memories are searched by: without case, accents and punctuation.

    >>> words("Deploys: to EU-west_1, naïvely!")
    ['deploys', 'to', 'eu', 'west', '1', 'naively']
    """
    spread = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", spread) if not unicodedata.combining(sign))
    return _WORD.findall(plain)


def asked_words(query: str) -> list[str]:
    """The different words of a question, in its order.

    >>> asked_words("to be or not to be?"), asked_words("*")
    (['to', 'be', 'or', 'not'], [])
    """
    return list(dict.fromkeys(words(query)))[:MOST_WORDS]


def begins_words(asked: str) -> bool:
    """Whether an asked word also means the words that begin with it; short ones would mean too many."""
    return len(asked) >= 3


def newest_first(memories: Sequence[Memory]) -> list[Memory]:
    """Memories in the order in which they are shown when nothing is asked for."""
    return sorted(memories, key=lambda memory: (-memory.updated_at, memory.key, memory.agent))


def scored(asked: Sequence[str], found: Sequence[tuple[Memory, Sequence[str], float]], limit: int) -> list[Recalled]:
    """The best of what was found: each memory with its words and its weight, which is larger for a better fit.

    The score is the share of asked words that a memory has, halved for one that weighs nothing: half of the words
    never access more than 50 %, and of two memories with the same share the weightier one is ahead.
    """
    heaviest = max((call_risk for _, _, call_risk in found), default=0.0)
    results: list[Recalled] = []
    for memory, its_words, call_risk in found:
        share = sum(_has(its_words, word) for word in asked) / len(asked)
        if share:
            nearness = call_risk / heaviest if heaviest > 0 else 1.0
            results.append(Recalled(memory, share * (1 + max(nearness, 0.0)) / 2))
    results.sort(key=lambda each: (-(each.score or 0.0), -each.memory.updated_at, each.memory.key, each.memory.agent))
    return results[:limit]


def searched(memories: Sequence[Memory], search: Search) -> list[Recalled]:
    """What `search` recalls of these memories, for places that have no index."""
    admitted = newest_first([memory for memory in memories if search.admits(memory)])
    asked = asked_words(search.query)
    if not asked:
        return [Recalled(memory) for memory in admitted[: search.limit]]
    texts = [words(f"{memory.key} {memory.content}") for memory in admitted]
    weights = _bm25(asked, texts)
    return scored(asked, list(zip(admitted, texts, weights, strict=True)), search.limit)


def _bm25(asked: Sequence[str], texts: Sequence[Sequence[str]]) -> list[float]:
    """The usual weight of each text: rare words count more, repeated ones less and less, long texts are held back."""
    mean = sum(map(len, texts)) / max(len(texts), 1) or 1.0
    weights = [0.0] * len(texts)
    for word in asked:
        counts = [sum(_fits(word, each) for each in text) for text in texts]
        having = sum(map(bool, counts))
        rarity = max(math.log((len(texts) - having + 0.5) / (having + 0.5)), 1e-6)
        for number, (text, count) in enumerate(zip(texts, counts, strict=True)):
            weights[number] += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(text) / mean))
    return weights


def _has(its_words: Sequence[str], asked: str) -> bool:
    return any(_fits(asked, word) for word in its_words)


def _fits(asked: str, word: str) -> bool:
    return word == asked or (begins_words(asked) and word.startswith(asked))


class NoMemory:
    """The `MemoryBackend` of an agent that is to remember nothing."""

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Refuse: who is told that something was stored would rely on it."""
        raise ToolError(f"The agent {note.agent!r} keeps no memory (memory backend = none).")

    def find(self, agent: str, key: str) -> Memory | None:
        """Nothing."""
        return None

    def recall(self, search: Search) -> list[Recalled]:
        """Nothing."""
        return []

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """There is nothing to forget."""
        return False

    def agents(self) -> list[str]:
        """Nobody."""
        return []


class RoutedMemory:
    """A `MemoryBackend` over several: `by_agent` where an agent has a place of its own, else the `usual` one."""

    def __init__(self, usual: MemoryBackend, by_agent: Mapping[str, MemoryBackend]) -> None:
        self._usual = usual
        self._by_agent = by_agent

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Remember something, where its agent keeps things."""
        return self._of(note.agent).store(note, again=again)

    def find(self, agent: str, key: str) -> Memory | None:
        """What an agent remembers under a key."""
        return self._of(agent).find(agent, key)

    def recall(self, search: Search) -> list[Recalled]:
        """The memories that were asked for, of all places together, the best or newest first."""
        agents: dict[MemoryBackend, list[str]] = {}
        for agent in search.agents:
            agents.setdefault(self._of(agent), []).append(agent)
        found = [
            each for place, theirs in agents.items() for each in place.recall(replace(search, agents=tuple(theirs)))
        ]
        if len(agents) > 1:
            found.sort(
                key=lambda each: (
                    -(each.score or 0.0),
                    -each.memory.updated_at,
                    each.memory.key,
                    each.memory.agent,
                )
            )
        return found[: search.limit]

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """Remove what an agent remembers under a key, unless it was written after that moment."""
        return self._of(agent).forget(agent, key, written_by=written_by)

    def agents(self) -> list[str]:
        """Everyone who remembers something, by name."""
        places = (self._usual, *self._by_agent.values())
        return sorted({agent for place in places for agent in place.agents() if self._of(agent) is place})

    def _of(self, agent: str) -> MemoryBackend:
        return self._by_agent.get(agent, self._usual)
