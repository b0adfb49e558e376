"""Events, mail, outcomes and briefs as bytes, and back, also from bytes that an older retinue wrote.

What is stored is JSON behind the number of its format: `1{"type":"reply",...}`. Fields are only added, with defaults,
so one format lives long; anything else is a new one, with an upcaster here that lifts what is older by one step.

A large body is kept once as a blob named by its hash, and the place where it would stand holds the name: `@5f3c...`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from retinue.core.agent import RunSpec, blob_hash
from retinue.core.errors import PolicyError, StoreCorrupt, UnknownFormat
from retinue.core.events import FORMAT, Event
from retinue.core.inbox import Item
from retinue.core.run import Outcome

LARGE: Final = 16 * 1024
"""Bytes from which a body is a blob of its own."""

Kind = Literal["event", "item", "outcome", "brief"]
Tree: TypeAlias = dict[str, Any]
"""A stored object before it has a type: what `json` would make of it."""

Upcaster: TypeAlias = Callable[[Kind, Tree], Tree]
"""Lifts a tree of one format to the next. Items and outcomes also stand inside events: lift them there as well."""

UPCASTERS: Mapping[int, Upcaster] = {}
"""By the format that they lift; there is one format so far."""

T = TypeVar("T")


class Codec:
    """Writes one format and reads it and every older one.

    >>> from retinue.core.inbox import TextMessage
    >>> codec = Codec()
    >>> codec.encode(TextMessage(key="k", text="hello"))
    b'1{"type":"words","key":"k","text":"hello"}'
    >>> codec.item(_)
    TextMessage(key='k', text='hello', origin='caller')
    """

    __slots__ = ("_begin", "_encode", "_events", "_format", "_items", "_outcomes", "_tag", "_upcasters")

    def __init__(self, format: int = FORMAT, upcasters: Mapping[int, Upcaster] = UPCASTERS) -> None:
        self._format = format
        self._upcasters = upcasters
        self._tag = str(format).encode()
        self._begin = self._tag + b"{"
        self._encode = msgspec.json.Encoder().encode
        self._events = cast("Callable[[memoryview], Event]", msgspec.json.Decoder(Event).decode)
        self._items = cast("Callable[[memoryview], Item]", msgspec.json.Decoder(Item).decode)
        self._outcomes = msgspec.json.Decoder(Outcome).decode

    def encode(self, value: Event | Item | Outcome | RunSpec) -> bytes:
        """The bytes of a value in the newest format."""
        try:
            return self._tag + self._encode(value)
        except UnicodeEncodeError:
            # Half a surrogate pair, as some tools and models produce it, has no bytes. One such text must not keep
            # the whole batch of other runs from being stored.
            return self._tag + self._encode(_readable(msgspec.to_builtins(value)))

    def event(self, body: bytes) -> Event:
        """The event that these bytes tell of."""
        return self._decode("event", body, self._events, cast("type[Event]", Event))

    def item(self, body: bytes) -> Item:
        """The inbox item that these bytes tell of."""
        return self._decode("item", body, self._items, cast("type[Item]", Item))

    def outcome(self, body: bytes) -> Outcome:
        """The outcome that these bytes tell of."""
        return self._decode("outcome", body, self._outcomes, Outcome)

    def outcome_if_known(self, body: bytes) -> Outcome | None:
        """An outcome for a list, which also shows runs that only a newer retinue can read."""
        try:
            return self.outcome(body)
        except UnknownFormat:
            return None

    def run_spec(self, body: bytes) -> RunSpec:
        """The brief that these bytes tell of."""
        return self._decode("brief", body, msgspec.json.Decoder(RunSpec).decode, RunSpec)

    def _decode(self, kind: Kind, body: bytes, decode: Callable[[memoryview], T], type_: type[T]) -> T:
        try:
            if body.startswith(self._begin):
                return decode(memoryview(body)[len(self._tag) :])
            return msgspec.convert(self._lifted(kind, body), type_)
        except (msgspec.MsgspecError, PolicyError, UnicodeDecodeError) as wrong:
            raise StoreCorrupt(f"a stored {kind} cannot be read: {wrong}; it begins with {body[:60]!r}") from wrong

    def _lifted(self, kind: Kind, body: bytes) -> Tree:
        tag, content = untagged(body)
        if tag > self._format:
            raise UnknownFormat(f"a stored {kind}", found=tag, known=self._format)
        tree = msgspec.json.decode(content, type=dict[str, Any])
        if kind == "event" and tree.get("type") == "accepted":
            tree.setdefault("format", tag)  # its default is today's format, and this run is older
        for step in range(tag, self._format):
            tree = self._upcasters[step](kind, tree)
        return tree


def untagged(body: bytes) -> tuple[int, memoryview]:
    """The format of a stored body, and the JSON behind it."""
    tag = body[: body.find(b"{")]
    if not tag.isdigit():
        raise StoreCorrupt(f"stored bytes have no format: they begin with {body[:60]!r}")
    return int(tag), memoryview(body)[len(tag) :]


def split_large(body: bytes) -> tuple[bytes, str | None]:
    """What stands in the place of a body, and the name of the blob if it has to be one.

    A blob is named by the hash of its JSON alone, so that a brief is stored under the digest it is known by.
    """
    if len(body) < LARGE:
        return body, None
    digest = blob_hash(bytes(untagged(body)[1]))
    return b"@" + digest.encode(), digest


def blob_name(stored: bytes) -> str | None:
    """The blob that stands behind these bytes, if they are a name."""
    return stored[1:].decode() if stored.startswith(b"@") else None


def checked_blob(digest: str, body: bytes | None) -> bytes:
    """A blob that is there and is what its name says."""
    if body is None:
        raise StoreCorrupt(f"blob {digest} is missing: restore the store from a copy, or prune the runs that need it")
    if blob_hash(bytes(untagged(body)[1])) != digest:
        raise StoreCorrupt(f"blob {digest} was changed after it was written: restore the store from a copy")
    return body


def readable(text: str) -> str:
    """The text without halves of surrogate pairs, which no encoding can hold.

    >>> readable("a\\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _readable(tree: object) -> object:
    if isinstance(tree, str):
        return readable(tree)
    if isinstance(tree, dict):
        return {_readable(name): _readable(value) for name, value in cast("dict[object, object]", tree).items()}
    if isinstance(tree, list | tuple):
        return [_readable(value) for value in cast("list[object]", tree)]
    return tree
