"""Decompression of HTTP answers, a bounded piece at a time: gzip, deflate, and br and zstd where libraries have them.

No request asks for a compressed answer. Some servers and proxies send one all the same, and mostly for errors.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any, Protocol

MAX_WINDOW_LOG = 23
"""The largest window of a zstd answer: 8 MiB, as RFC 9659 demands. The library would take 128 MiB."""

_INSTALL = "install retinue[compression]"


class Decompressor(Protocol):
    """Decompresses the data of one answer."""

    @property
    def has_ended(self) -> bool:
        """Whether the compressed data are complete; what follows them is ignored."""
        ...

    def decompress(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes of content, from these data and earlier ones; raises `ValueError` if it is damaged.

        Content beyond the limit is returned by the next calls, which may have no data.
        """
        ...


def decompressor(encoding: str) -> Decompressor:
    """The decompressor of a content encoding; raises `ValueError` for one that is unknown or not installed.

    >>> decompressor("gzip").decompress(b"", 10)
    b''
    """
    match encoding:
        case "gzip" | "x-gzip" | "deflate":
            return _Zlib()
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()
        case _:
            raise ValueError(f"the answer is compressed ({encoding[:20]!r}), which was not asked for")


class _Zlib:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, whichever it is
        self._rest = b""

    @property
    def has_ended(self) -> bool:
        return self._stream.eof

    def decompress(self, data: bytes, limit: int) -> bytes:
        try:
            content = self._stream.decompress(self._rest + data, limit)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        self._rest = self._stream.unconsumed_tail
        return content


class _Brotli:
    def __init__(self) -> None:
        brotli = _load("brotli", encoding="br")
        self._error: type[Exception] = brotli.error
        self._stream: Any = brotli.Decompressor()
        self._rest = b""
        self._content = b""
        """What the library returned beyond the limit, which it takes for a hint: up to as much again."""

    @property
    def has_ended(self) -> bool:
        return not self._content and self._stream.is_finished()

    def decompress(self, data: bytes, limit: int) -> bytes:
        self._rest += data
        # While it has content that was not returned, the library takes no more data.
        given = b""
        if not self._content:
            if self._stream.can_accept_more_data():
                given, self._rest = self._rest, b""
            try:
                self._content = self._stream.process(given, output_buffer_limit=limit)
            except self._error as error:
                raise ValueError(str(error)) from None
        content, self._content = self._content[:limit], self._content[limit:]
        return content


class _Zstd:
    def __init__(self) -> None:
        try:
            zstd: Any = import_module("compression.zstd")
        except ImportError:
            zstd = _load("backports.zstd", encoding="zstd")
        self._error: type[Exception] = zstd.ZstdError
        self._stream: Any = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})

    @property
    def has_ended(self) -> bool:
        return self._stream.eof

    def decompress(self, data: bytes, limit: int) -> bytes:
        try:
            return self._stream.decompress(data, limit)
        except self._error as error:
            raise ValueError(str(error)) from None


def _load(module: str, *, encoding: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"the answer is compressed ({encoding!r}), which was not asked for: {_INSTALL}") from None
