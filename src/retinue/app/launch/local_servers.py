"""Model servers on this machine: find those that respond, and list their models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from retinue.providers.catalog import ProviderConfig

SECONDS = 0.3
"""Timeout of a request to a server on this machine."""

_LONGEST = 1 << 20
"""Bytes of a list of models that are read at most."""


class Server(Struct, frozen=True):
    """A server that responded."""

    provider_config: ProviderConfig
    models: tuple[str, ...] = ()


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] | None = None


async def find_servers(provider_configs: Iterable[ProviderConfig], *, timeout: float = SECONDS) -> list[Server]:
    """The servers that respond, in the order given; all are requested at once."""
    asked = [
        asyncio.to_thread(_ask, provider_config, timeout)
        for provider_config in provider_configs
        if _is_near(provider_config)
    ]
    return [server for server in await asyncio.gather(*asked) if server is not None]


def _is_near(provider_config: ProviderConfig) -> bool:
    """Whether a server is on this machine; others receive no request before a run makes one."""
    address = urlsplit(provider_config.base_url)
    return address.scheme == "http" and address.hostname in ("localhost", "127.0.0.1", "::1")


def _ask(provider_config: ProviderConfig, timeout: float) -> Server | None:
    address = urlsplit(provider_config.base_url)
    # The plain client of the standard library: no proxy is used, and aiohttp is not loaded.
    connection = HTTPConnection(address.hostname or "", address.port or 80, timeout=timeout)
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/models")
        response = connection.getresponse()
        body = response.read(_LONGEST)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return Server(provider_config, _names(body)) if response.status == 200 else None


def _names(body: bytes) -> tuple[str, ...]:
    try:
        listed: Any = msgspec.json.decode(body, type=_Models)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return tuple(model.id for model in listed.data or ())
