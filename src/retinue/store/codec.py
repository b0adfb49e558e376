"""Encoding of events, inbox items, outcomes and run specs as bytes, and decoding of this and all older formats.

A stored body is JSON after its format number: `1{"type":"reply",...}`. Fields with defaults, kinds of events and items,
and values of closed sets are only added, so one format lasts long; any other change is a new format, with an upcaster
here that converts from the previous one. An older version ignores a field that it does not know. It refuses another
addition with `UnknownVariant`, so that it leaves the run to newer ones.

A large body is stored once as a blob named by its hash; a reference `@5f3c...` stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from retinue.core.agent import RunSpec, blob_hash
from retinue.core.errors import PolicyError, StoreCorrupt, UnknownFormat, UnknownVariant
from retinue.core.events import FORMAT, Event
from retinue.core.ids import RunId
from retinue.core.inbox import Item
from retinue.core.log_context import logger
from retinue.core.run import Outcome
from retinue.core.text import utf8_safe

log = logger("retinue.store")

BLOB_THRESHOLD: Final = 16 * 1024
"""Size in bytes from which a body is stored as a blob."""

RecordKind = Literal["event", "item", "outcome", "run spec"]
JsonTree: TypeAlias = dict[str, Any]
"""A stored object as decoded JSON, before conversion to its type."""

Upcaster: TypeAlias = Callable[[RecordKind, JsonTree], JsonTree]
"""Converts a tree from one format to the next, including items and outcomes inside events."""

UPCASTERS: Mapping[int, Upcaster] = {}
"""Upcasters by the format they convert from; there is one format so far."""

_UNKNOWN_VARIANT: Final = re.compile(
    r"Invalid (?:enum )?value (?P<variant>.*?)(?: - at `(?P<path>[^`]*)`)?\Z", re.DOTALL
)
"""How msgspec reports a tag or a literal that is not in its closed set."""

_LONGEST_VARIANT: Final = 80
"""Characters of an unknown value that are reported."""

T = TypeVar("T")


class Codec:
    """Writes one format; reads it and all older ones.

    >>> from retinue.core.inbox import TextMessage
    >>> codec = Codec()
    >>> codec.encode(TextMessage(key="k", text="hello"))
    b'1{"type":"words","key":"k","text":"hello"}'
    >>> codec.item(_)
    TextMessage(key='k', text='hello', origin='caller', attachments=())
    """

    __slots__ = ("_encode", "_events", "_format", "_items", "_outcomes", "_prefix", "_tag", "_upcasters")

    def __init__(self, format: int = FORMAT, upcasters: Mapping[int, Upcaster] = UPCASTERS) -> None:
        self._format = format
        self._upcasters = upcasters
        self._tag = str(format).encode()
        self._prefix = self._tag + b"{"
        self._encode = msgspec.json.Encoder().encode
        self._events = cast("Callable[[memoryview], Event]", msgspec.json.Decoder(Event).decode)
        self._items = cast("Callable[[memoryview], Item]", msgspec.json.Decoder(Item).decode)
        self._outcomes = msgspec.json.Decoder(Outcome).decode

    def encode(self, value: Event | Item | Outcome | RunSpec) -> bytes:
        try:
            return self._tag + self._encode(value)
        except UnicodeEncodeError:
            # A lone surrogate, as some tools and models produce, has no UTF-8 encoding. One such text must not fail
            # the batch of all runs.
            return self._tag + self._encode(_replace_surrogates(msgspec.to_builtins(value)))

    def event(self, body: bytes) -> Event:
        return self._decode("event", body, self._events, cast("type[Event]", Event))

    def item(self, body: bytes) -> Item:
        return self._decode("item", body, self._items, cast("type[Item]", Item))

    def outcome(self, body: bytes) -> Outcome:
        return self._decode("outcome", body, self._outcomes, Outcome)

    def event_if_known(self, body: bytes) -> Event | None:
        """Decode an event; None for one of a newer version."""
        with suppress(UnknownFormat):
            return self.event(body)

    def item_if_known(self, body: bytes) -> Item | None:
        """Decode an item; None for one of a newer version, which stays in its inbox for a driver of that version."""
        with suppress(UnknownFormat):
            return self.item(body)

    def outcome_if_known(self, body: bytes) -> Outcome | None:
        """Decode an outcome; None for one of a newer version, whose run can still be listed."""
        with suppress(UnknownFormat):
            return self.outcome(body)

    def run_spec(self, body: bytes) -> RunSpec:
        return self._decode("run spec", body, msgspec.json.Decoder(RunSpec).decode, RunSpec)

    def _decode(self, kind: RecordKind, body: bytes, decode: Callable[[memoryview], T], type_: type[T]) -> T:
        try:
            if body.startswith(self._prefix):
                return decode(memoryview(body)[len(self._tag) :])
            return msgspec.convert(self._upcast(kind, body), type_)
        except (msgspec.MsgspecError, PolicyError, UnicodeDecodeError) as error:
            if isinstance(error, msgspec.ValidationError) and (unknown := _UNKNOWN_VARIANT.match(str(error))):
                variant, path = unknown["variant"].strip("'\"")[:_LONGEST_VARIANT], unknown["path"] or "$"
                raise UnknownVariant(f"a stored {kind}", variant=variant, path=path, known=self._format) from error
            raise StoreCorrupt(f"a stored {kind} cannot be read: {error}; it begins with {body[:60]!r}") from error

    def _upcast(self, kind: RecordKind, body: bytes) -> JsonTree:
        tag, content = split_format(body)
        if tag > self._format:
            raise UnknownFormat(f"a stored {kind}", found=tag, known=self._format)
        tree = msgspec.json.decode(content, type=dict[str, Any])
        if kind == "event" and tree.get("type") == "accepted":
            tree.setdefault("format", tag)  # the default is the current format, which this run does not have
        for step in range(tag, self._format):
            tree = self._upcasters[step](kind, tree)
        return tree


class InboxDecoder:
    """Decodes inbox items. One of a newer version stays in its inbox for a driver of that version; a warning says so.

    There is one warning for each run.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._reported: set[RunId] = set()

    def item(self, run_id: RunId, body: bytes) -> Item | None:
        """The item in the inbox of a run; None for one of a newer version."""
        try:
            return self._codec.item(body)
        except UnknownFormat as newer:
            if run_id not in self._reported:
                self._reported.add(run_id)
                log.warning("left in the inbox: %s", newer.named(f"an item for run {run_id}"))
            return None


def split_format(body: bytes) -> tuple[int, memoryview]:
    """The format number of a stored body, and its JSON."""
    tag = body[: body.find(b"{")]
    if not tag.isdigit():
        raise StoreCorrupt(f"stored bytes have no format: they begin with {body[:60]!r}")
    return int(tag), memoryview(body)[len(tag) :]


def split_large(body: bytes) -> tuple[bytes, str | None]:
    """The bytes to store in place of `body`, and the blob's digest if it is large.

    A blob is named by the hash of its JSON without the format, so that a run spec is stored under its own digest.
    """
    if len(body) < BLOB_THRESHOLD:
        return body, None
    digest = blob_hash(bytes(split_format(body)[1]))
    return b"@" + digest.encode(), digest


def blob_name(stored: bytes) -> str | None:
    """The digest of the blob that `stored` refers to, if it is a reference."""
    return stored[1:].decode("ascii", "replace") if stored.startswith(b"@") else None


def checked_blob(digest: str, body: bytes | None) -> bytes:
    """`body`, after checking that it exists and matches `digest`; otherwise raises `StoreCorrupt`."""
    if body is None:
        raise StoreCorrupt(f"blob {digest} is missing: restore the store from a copy, or prune the runs that need it")
    if blob_hash(bytes(split_format(body)[1])) != digest:
        raise StoreCorrupt(f"blob {digest} was changed after it was written: restore the store from a copy")
    return body


def _replace_surrogates(tree: object) -> object:
    if isinstance(tree, str):
        return utf8_safe(tree)
    if isinstance(tree, dict):
        entries = cast("dict[object, object]", tree).items()
        return {_replace_surrogates(name): _replace_surrogates(value) for name, value in entries}
    if isinstance(tree, list | tuple):
        return [_replace_surrogates(value) for value in cast("list[object]", tree)]
    return tree
