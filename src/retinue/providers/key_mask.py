"""Keys in texts of a server: replaced in the deltas and the reply of an answer, and in any written form in errors."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from retinue.core.messages import CallDelta, Delta, Reply, StartDelta, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.ports import Publish
from retinue.core.text import NOT_JSON

MASK = "[key]"

HARMLESS_PREFIX = 4
"""How many first characters of a key may be shown."""

MIN_KEY_CHARS = 8
"""Shorter secrets occur in ordinary text and are not looked for in answers."""

PART_CHARS = 16
"""Parts of a key from this length on are replaced in errors."""


class AnswerMask:
    """Replaces keys in one answer: `publisher` wraps the receiver of its deltas, `finish` returns the reply.

    A key may be split over any number of deltas. A delta that ends like the beginning of a key is held back until the
    next one shows whether it is one.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        long = sorted({each for each in secrets if len(each) >= MIN_KEY_CHARS}, key=len)
        keys: list[str] = []
        for each in long:
            if not any(key in each for key in keys):  # its part is replaced anyway
                keys.append(each)
        self._keys = tuple(keys)
        self._held: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._keys)

    def publisher(self, publish: Publish) -> Publish:
        """Publishes the deltas without keys."""
        feed_text = self._channel(lambda text: publish(TextDelta(text)))
        feed_thinking = self._channel(lambda text: publish(ThinkingDelta(text)))
        calls: dict[int, ArgumentsMask] = {}

        def receive(delta: Delta) -> None:
            match delta:
                case TextDelta(text=text):
                    if (after := feed_text(text)) is text:
                        publish(delta)
                    elif after:
                        publish(TextDelta(after))
                case ThinkingDelta(text=text):
                    if after := feed_thinking(text):
                        publish(ThinkingDelta(after))
                case CallDelta(index=index):
                    if index not in calls:
                        calls[index] = self._arguments_channel(lambda text: publish(CallDelta(index, arguments=text)))
                    after = calls[index].feed(delta.arguments)
                    if after or delta.name or delta.id:
                        name, call_id = self.text(delta.name), self.text(delta.id)
                        publish(replace(delta, name=name, id=call_id, arguments=after))
                case StartDelta(id=response_id):
                    publish(StartDelta(self.text(response_id)))
                case _:
                    publish(delta)

        return receive

    def finish(self, reply: Reply) -> Reply:
        """Publish what was held back, and return the reply without keys."""
        for flush in self._held:
            flush()
        message = reply.message
        return replace(
            reply,
            message=replace(
                message,
                text=self.text(message.text),
                calls=tuple(map(self._call, message.calls)),
                thinking=tuple(map(self._thinking, message.thinking)),
            ),
            model=self.text(reply.model),
            response_id=self.text(reply.response_id),
        )

    def text(self, text: str) -> str:
        """A complete text without keys."""
        for key in self._keys:
            if key in text:
                text = text.replace(key, MASK)
        return text

    def _call(self, call: ToolCall) -> ToolCall:
        return ToolCall(self.text(call.name), self._arguments(call.arguments), self.text(call.id))

    def _arguments(self, arguments: str) -> str:
        """The arguments of a call without keys, also if characters of the key are written as JSON escapes."""
        arguments = self.text(arguments)
        if "\\" in arguments:
            try:
                decoded = msgspec.json.encode(msgspec.json.decode(arguments)).decode()
            except NOT_JSON:
                return arguments
            if (masked := self.text(decoded)) != decoded:
                return masked
        return arguments

    def _thinking(self, thinking: Thinking) -> Thinking:
        return Thinking(self.text(thinking.text), self.text(thinking.signature), self.text(thinking.opaque))

    def _channel(self, publish: Callable[[str], None]) -> Callable[[str], str]:
        """The function that masks one text piece by piece; `publish` receives what is left over at its end."""
        masks = [TextMask(key) for key in self._keys]

        def feed(piece: str) -> str:
            for mask in masks:
                piece = mask.feed(piece)
            return piece

        def flush() -> None:
            rest = ""
            for mask in masks:
                rest = mask.feed(rest) + mask.end()
            if rest:
                publish(rest)

        self._held.append(flush)
        return masks[0].feed if len(masks) == 1 else feed

    def _arguments_channel(self, publish: Callable[[str], None]) -> ArgumentsMask:
        """As `_channel`, for the arguments of one call, which are JSON."""
        mask = ArgumentsMask(self._keys, self._channel(publish))

        def flush() -> None:
            if rest := mask.end():
                publish(rest)

        self._held.insert(len(self._held) - 1, flush)  # before that of its channel, which comes last
        return mask


class ArgumentsMask:
    """Replaces keys in JSON that comes in pieces, also where characters of a key are written as escapes.

    Such escapes are rare: from the first one on, everything is held back until the end.
    """

    def __init__(self, keys: tuple[str, ...], feed: Callable[[str], str]) -> None:
        self._characters = set("".join(keys))
        self._feed = feed
        self._held = ""
        self.holds = False
        """Whether everything is held back."""

    def feed(self, piece: str) -> str:
        """The part of the arguments that is certain now."""
        if not self._held and "\\" not in piece:  # nearly always
            return self._feed(piece)
        text, self._held = self._held + piece, ""
        if not self.holds:
            for escape in _ESCAPE.finditer(text):
                if self._character(escape):
                    self.holds = True
                elif escape.end() == len(text) and _INCOMPLETE.fullmatch(escape[0]):
                    text, self._held = text[: escape.start()], escape[0]
        if self.holds:
            self._held = text + self._held
            return ""
        return self._feed(text)

    def end(self) -> str:
        """The part that was held back, without keys and without escapes of their characters."""
        text, self._held = self._held, ""
        return self._feed(_ESCAPE.sub(lambda escape: self._character(escape) or escape[0], text))

    def _character(self, escape: re.Match[str]) -> str:
        """The character of a key that an escape stands for; empty for another one."""
        character = chr(int(escape[1], 16)) if escape[1] else "/" if escape[0] == "\\/" else ""
        return character if character in self._characters else ""


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[^u]|u[0-9a-fA-F]{0,3}\Z|\Z)", re.DOTALL)
_INCOMPLETE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")


class TextMask:
    """Replaces one key in a text that comes in pieces.

    >>> mask = TextMask("hush-0123456789")
    >>> [mask.feed(piece) for piece in ("It is hus", "h-0123", "456789.", " Bye")], mask.end()
    (['It is hus', '', '[key].', ' Bye'], '')
    """

    __slots__ = ("_head", "_holds", "_key", "_pending", "_published", "_size")

    def __init__(self, key: str) -> None:
        self._key = key
        self._head = key[: HARMLESS_PREFIX + 1]
        """What is in every text that has more of the key than may be shown."""
        self._size = len(key)
        self._pending = ""
        """The end of the text so far, as far as a key can begin in it."""
        self._published = 0
        """How many characters of it were returned already."""
        self._holds = False

    def feed(self, piece: str) -> str:
        """The part of the text that is certain now; the piece itself if nothing was replaced or held back."""
        text = self._pending + piece
        if self._head not in text and not self._holds:  # nearly always
            self._pending = text = text[-HARMLESS_PREFIX:]
            self._published = len(text)
            return piece
        done, (*before, text) = self._published, text.split(self._key)
        masked = ""
        if before:
            masked = MASK.join((before[0][done:], *before[1:], ""))
            done = 0
        begins = self._begins(text)
        self._holds = len(text) - begins > HARMLESS_PREFIX
        end = max(done, begins) if self._holds else len(text)
        start = begins if self._holds else max(0, len(text) - HARMLESS_PREFIX)
        self._pending, self._published = text[start:], end - start
        return masked + text[done:end]

    def end(self) -> str:
        """The rest of the text: the beginning of a key that did not go on."""
        rest = self._pending[self._published :]
        self._pending, self._published, self._holds = "", 0, False
        return rest

    def _begins(self, text: str) -> int:
        """Where the longest end of `text` that is a beginning of the key starts; its length if there is none."""
        at = text.find(self._key[0], max(0, len(text) - self._size + 1))
        while at >= 0:
            if self._key.startswith(text[at:]):
                return at
            at = text.find(self._key[0], at + 1)
        return len(text)


# ---- errors ----------------------------------------------------------------------------------------------------------


def mask_forms(text: str, secret: str) -> str:
    """The text without the secret: whole, in parts of 16 characters, URL-encoded, in base64 or hex, in any case.

    >>> mask_forms("wrong key HUSH-0123456789+ABCDEF, given as hush-0123456789%2Babcdef", "hush-0123456789+abcdef")
    'wrong key [key], given as [key]'
    >>> mask_forms("ends in 56789+abcdefghij", "hush-0123456789+abcdefghij")
    'ends in [key]'
    """
    return _forms(secret).sub(MASK, text)


@lru_cache(maxsize=32)
def _forms(secret: str) -> re.Pattern[str]:
    if len(secret) < MIN_KEY_CHARS:
        return re.compile(re.escape(secret))
    forms = dict.fromkeys((secret, *_encoded(secret), *_parts(secret)))
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)), re.IGNORECASE)


def _encoded(secret: str) -> Iterator[str]:
    yield quote(secret, safe="")
    data = secret.encode()
    yield data.hex()
    for offset in range(3):  # the key may stand anywhere in what was encoded
        inner = b64encode(bytes(offset) + data).decode().rstrip("=")
        # Characters that also depend on what stands before or after the key are left out.
        first, last = (0, 2, 3)[offset], len(inner) - (0 if (offset + len(data)) % 3 == 0 else 1)
        yield inner[first:last]
        yield inner[first:last].translate({ord("+"): "-", ord("/"): "_"})


def _parts(secret: str) -> Iterator[str]:
    for start in range(len(secret) - PART_CHARS + 1):
        yield secret[start : start + PART_CHARS]
