"""Images and files as part of a message or of a result: the rules for them, such as types, sizes and numbers."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from retinue.core.errors import BadInput
from retinue.core.text import clean_line

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The image formats that vendors with images accept."""

PDF = "application/pdf"

AUDIO_TYPES = ("audio/wav", "audio/mpeg", "audio/flac", "audio/ogg", "audio/aac", "audio/aiff")
"""The audio formats that are recognised by their content."""

MAX_COUNT = 20
"""The most attachments of one message or result."""

MAX_BYTES = 20 * 1024 * 1024
"""The most bytes of one message's attachments together: requests of vendors end at 20 to 50 MiB."""

_CHARACTERS_OF_IMAGE = 6000
"""What an image counts in estimates of a request's size: about 1,500 tokens."""

_MAGIC = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF": PDF,
    b"ID3\x02": "audio/mpeg",
    b"ID3\x03": "audio/mpeg",
    b"ID3\x04": "audio/mpeg",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
}
_CHUNKED = {
    (b"RIFF", b"WEBP"): "image/webp",
    (b"RIFF", b"WAVE"): "audio/wav",
    (b"FORM", b"AIFF"): "audio/aiff",
}
"""Formats that are named after the length of a first chunk."""

MAGIC_BYTES = 16
"""The first bytes by which a format is recognised."""

_OTHER_NAMES = {
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "audio/x-aiff": "audio/aiff",
    "image/jpg": "image/jpeg",
}


class _Content(Struct, frozen=True, gc=False, omit_defaults=True):
    """What images and files have in common; `media_type` is found by the first bytes where it is not given."""

    data: bytes
    media_type: str = ""
    name: str = ""

    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        # The struct is frozen for its users; it is not complete before this.
        if not self.media_type:
            force_setattr(self, "media_type", _type_of(self.data, self.name))
        elif self.media_type in _OTHER_NAMES:
            force_setattr(self, "media_type", _OTHER_NAMES[self.media_type])

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The content of a file; raises `BadInput` if it cannot be read or is too large."""
        data, media_type = _read(path)
        return cls(data, media_type, Path(path).name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.media_type}, {len(self.data):,} bytes)"


class Image(_Content, frozen=True, gc=False, omit_defaults=True, tag="image"):
    """An image in a message: PNG, JPEG, GIF or WebP.

    >>> Image(b"\\x89PNG...").media_type
    'image/png'
    """

    kind: ClassVar[str] = "image"


class File(_Content, frozen=True, gc=False, omit_defaults=True, tag="file"):
    """A file in a message: text of any kind, a PDF, or audio. Text is sent as text, to every model.

    >>> File(b"max_connections = 10", name="pool.toml")
    File('pool.toml', text/plain, 20 bytes)
    """


Attachment: TypeAlias = Image | File
"""An image or a file in a message."""


def read_attachment(path: str | Path) -> Attachment:
    """The file at a path, as an image if it is one."""
    data, media_type = _read(path)
    return _attachment(data, media_type, Path(path).name)


def recognised(data: bytes, name: str = "") -> Attachment | None:
    """The image, PDF or audio that begins with these bytes; None for everything else.

    >>> recognised(b"\\x89PNG...", "a.txt"), recognised(b"words")
    (Image('a.txt', image/png, 7 bytes), None)
    """
    media_type = _media_type_of(data)
    return None if media_type is None else _attachment(data, media_type, name)


def _attachment(data: bytes, media_type: str, name: str) -> Attachment:
    return Image(data, media_type, name) if media_type in IMAGE_TYPES else File(data, media_type, name)


def text_of(attachment: Attachment) -> str | None:
    """The content of a text file, marked with its name; None for everything else."""
    if attachment.media_type != "text/plain":
        return None
    return f'<file name="{attachment.name or "file"}">\n{attachment.data.decode("utf-8", "replace").rstrip()}\n</file>'


def size_in_characters(attachment: Attachment) -> int:
    """What an attachment counts in estimates of a request's size."""
    if attachment.media_type == "text/plain":
        return len(attachment.data)
    return (
        _CHARACTERS_OF_IMAGE if isinstance(attachment, Image) else max(_CHARACTERS_OF_IMAGE, len(attachment.data) // 8)
    )


def checked(attachments: Iterable[Attachment], *, of: str = "a message") -> tuple[Attachment, ...]:
    """The attachments of a message; raises `BadInput` with what is wrong: type of object, number, size or format."""
    found = tuple(attachments)
    for each in found:
        if not isinstance(each, Image | File):  # pyright: ignore[reportUnnecessaryIsInstance] callers may be untyped
            raise BadInput(f"attachments: expected retinue.Image or retinue.File, found {type(each).__name__}")
        if isinstance(each, Image) and each.media_type not in IMAGE_TYPES:
            raise BadInput(f"{_label(each)} is not an image that models take: expected one of {', '.join(IMAGE_TYPES)}")
        if not each.data:
            raise BadInput(f"{_label(each)} is empty")
    if len(found) > MAX_COUNT:
        raise BadInput(f"{of} has at most {MAX_COUNT} attachments, and this one has {len(found)}")
    total = sum(len(each.data) for each in found)
    if total > MAX_BYTES:
        raise BadInput(
            f"the attachments of {of} have at most {MAX_BYTES // 2**20} MiB, and these have {total // 2**20 + 1}"
        )
    return found


def described(attachments: Sequence[Attachment]) -> str:
    """The names of attachments, for messages about them.

    >>> described([Image(b"GIF8", name="a.gif"), File(b"x")])
    'a.gif (image/gif), a file (text/plain)'
    """
    return ", ".join(f"{each.name or 'a ' + each.kind} ({each.media_type})" for each in attachments)


def with_labels(text: str, attachments: Sequence[Attachment]) -> str:
    """A text with a line for each attachment, for people to read.

    >>> print(with_labels("Done.", [Image(b"GIF8" * 3000, name="a.gif"), File(b"%PDF-")]))
    Done.
    [a.gif, image/gif, 12 kB]
    [application/pdf, 1 kB]
    """
    return "\n".join(filter(None, (text, *map(_line, attachments)))) if attachments else text


def _line(attachment: Attachment) -> str:
    kilobytes = max(1, round(len(attachment.data) / 1000))
    return f"[{', '.join(filter(None, (clean_line(attachment.name), attachment.media_type)))}, {kilobytes} kB]"


def _label(attachment: Attachment) -> str:
    return f"attachment {attachment.name!r}" if attachment.name else f"an attachment ({attachment.media_type})"


def _type_of(data: bytes, name: str) -> str:
    if (media_type := _media_type_of(data)) is not None:
        return media_type
    try:
        data.decode()
    except UnicodeDecodeError:
        guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return _OTHER_NAMES.get(guessed, guessed)
    return "text/plain" if b"\0" not in data else "application/octet-stream"


def _media_type_of(data: bytes) -> str | None:
    for magic, media_type in _MAGIC.items():
        if data.startswith(magic):
            return media_type
    if (chunked := _CHUNKED.get((data[:4], data[8:12]))) is not None:
        return chunked
    if len(data) > 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        # A frame of MPEG audio: layer III, or AAC, which has no layer.
        return {0x02: "audio/mpeg", 0x00: "audio/aac"}.get(data[1] & 0x06)
    return None


def _read(path: str | Path) -> tuple[bytes, str]:
    place = Path(path)
    try:
        with place.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read {place}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise BadInput(f"{place} has more than {MAX_BYTES // 2**20} MiB")
    return data, _type_of(data, place.name)
