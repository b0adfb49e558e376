"""Images and files as part of a message, and the rules for them: types, sizes and numbers."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from retinue.core.errors import BadInput

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The image formats that vendors with images accept."""

PDF = "application/pdf"

MAX_COUNT = 20
"""The most attachments of one message."""

MAX_BYTES = 20 * 1024 * 1024
"""The most bytes of one message's attachments together: requests of vendors end at 20 to 50 MiB."""

_CHARACTERS_OF_IMAGE = 6000
"""What an image counts in estimates of a request's size: about 1,500 tokens."""

_MAGIC = {b"\x89PNG": IMAGE_TYPES[0], b"\xff\xd8\xff": IMAGE_TYPES[1], b"GIF8": IMAGE_TYPES[2], b"%PDF": PDF}


class _Content(Struct, frozen=True, gc=False, omit_defaults=True):
    """What images and files have in common; `media_type` is found by the first bytes where it is not given."""

    data: bytes
    media_type: str = ""
    name: str = ""

    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        if not self.media_type:
            # The struct is frozen for its users; it is not complete before this.
            force_setattr(self, "media_type", _type_of(self.data, self.name))

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
    """A file in a message: text of any kind, or a PDF. Text is sent as text, to every model.

    >>> File(b"max_connections = 10", name="pool.toml")
    File('pool.toml', text/plain, 20 bytes)
    """


Attachment: TypeAlias = Image | File
"""An image or a file in a message."""


def read_attachment(path: str | Path) -> Attachment:
    """The file at a path, as an image if it is one."""
    data, media_type = _read(path)
    name = Path(path).name
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


def checked(attachments: Iterable[Attachment]) -> tuple[Attachment, ...]:
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
        raise BadInput(f"a message has at most {MAX_COUNT} attachments, and this one has {len(found)}")
    total = sum(len(each.data) for each in found)
    if total > MAX_BYTES:
        raise BadInput(
            f"the attachments of a message have at most {MAX_BYTES // 2**20} MiB, and these have {total // 2**20 + 1}"
        )
    return found


def described(attachments: Sequence[Attachment]) -> str:
    """The names of attachments, for messages about them.

    >>> described([Image(b"GIF8", name="a.gif"), File(b"x")])
    'a.gif (image/gif), a file (text/plain)'
    """
    return ", ".join(f"{each.name or 'a ' + each.kind} ({each.media_type})" for each in attachments)


def _label(attachment: Attachment) -> str:
    return f"attachment {attachment.name!r}" if attachment.name else f"an attachment ({attachment.media_type})"


def _type_of(data: bytes, name: str) -> str:
    for magic, media_type in _MAGIC.items():
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    try:
        data.decode()
    except UnicodeDecodeError:
        return mimetypes.guess_type(name)[0] or "application/octet-stream"
    return "text/plain" if b"\0" not in data else "application/octet-stream"


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
