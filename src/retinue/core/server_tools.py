"""Server tools: tools that the vendor of a model runs on its own servers, such as its web search.

They are tools of an agent like all others, by names that begin with `server:`, and policies and ceilings of tools apply
to these names. The vendor makes the calls, so no single call can be asked about or refused here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import force_setattr

from retinue.core.agent import SERVER_PREFIX
from retinue.core.errors import BadInput, ProviderError
from retinue.core.usage import NANO

ServerToolKind: TypeAlias = Literal["web_search", "web_fetch", "code_execution", "file_search", "mcp"]
"""What a server tool does; `mcp` stands for the tools of a remote MCP server."""

SERVER_TOOL_KINDS: tuple[ServerToolKind, ...] = ("web_search", "web_fetch", "code_execution", "file_search")
"""The kinds that are tools by their own names; an MCP server has a name that the user chooses."""

MAX_ENTRIES = 100
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY = re.compile(r"[^\s\x00-\x1f\x7f]{1,500}")


class ServerToolSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server tool and its options; an option that a wire does not have is refused by name.

    `name` is a kind, or the name of an MCP server, which has a `url`. `max_uses` limits the uses within one reply.
    `allowed_domains` and `blocked_domains` are hosts for web tools, `stores` the vendor's ids of document stores.
    `token_env` is the variable of the token for the MCP server at `url`, and `allow` lists the tools that it may offer;
    all, if it is empty. `price` is what one use costs in dollars, in place of the vendor's list price.

    >>> ServerToolSpec(name="web_search", max_uses=3).kind, ServerToolSpec(name="docs", url="https://h.example/mcp").kind
    ('web_search', 'mcp')
    >>> ServerToolSpec(name="web_serch")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: server tool 'web_serch': expected one of web_search, web_fetch, code_execution, \
file_search; an MCP server needs a url
    """

    name: str
    max_uses: int | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    url: str = ""
    token_env: str = ""
    allow: tuple[str, ...] = ()
    price: float | None = None

    def __post_init__(self) -> None:
        where = f"server tool {self.name[:40]!r}"
        for field in _LISTS:
            entries: Sequence[str] = getattr(self, field)
            if isinstance(entries, str) or len(entries) > MAX_ENTRIES or not all(map(_ENTRY.fullmatch, entries)):
                raise BadInput(f"{where}: {field}: expected a list of at most {MAX_ENTRIES} names without spaces")
            force_setattr(self, field, tuple(entries))
        if self.max_uses is not None and not 1 <= self.max_uses <= 1000:
            raise BadInput(f"{where}: max_uses: found {self.max_uses}; expected 1 to 1000")
        if self.price is not None and not 0 <= self.price <= 1000:
            raise BadInput(f"{where}: price: found {self.price:g}; expected dollars from 0 to 1000")
        if self.url:
            _check_mcp(self, where)
        elif self.name not in SERVER_TOOL_KINDS:
            raise BadInput(f"{where}: expected one of {', '.join(SERVER_TOOL_KINDS)}; an MCP server needs a url")
        for field, kinds in _ONLY_FOR.items():
            if getattr(self, field) and self.kind not in kinds:
                raise BadInput(f"{where}: {field} applies to {', '.join(kinds)} only")
        if self.allowed_domains and self.blocked_domains:
            raise BadInput(f"{where}: allowed_domains and blocked_domains exclude each other")

    @property
    def kind(self) -> ServerToolKind:
        if self.url:
            return "mcp"
        return next(kind for kind in SERVER_TOOL_KINDS if kind == self.name)

    @property
    def full_name(self) -> str:
        """The name as an agent lists it."""
        return SERVER_PREFIX + self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that are set and that a wire has to send."""
        return tuple(name for name in ("max_uses", *_LISTS) if getattr(self, name) not in (None, ()))

    @property
    def price_nano(self) -> int | None:
        return None if self.price is None else round(self.price * NANO)

    def token(self, environ: Mapping[str, str] = os.environ) -> str:
        """The token for the MCP server; empty if it needs none. Raises `ProviderError` if its variable is not set."""
        if not self.token_env:
            return ""
        token = environ.get(self.token_env, "").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise ProviderError(
                f"the environment variable {self.token_env} has no token; set it to that of the MCP server {self.name}",
                fault="auth",
            )
        return token


_LISTS = ("allowed_domains", "blocked_domains", "stores", "allow")
_ONLY_FOR: dict[str, tuple[ServerToolKind, ...]] = {
    "allowed_domains": ("web_search", "web_fetch"),
    "blocked_domains": ("web_search", "web_fetch"),
    "stores": ("file_search",),
    "token_env": ("mcp",),
    "allow": ("mcp",),
}


def _check_mcp(spec: ServerToolSpec, where: str) -> None:
    if spec.name in SERVER_TOOL_KINDS or not _NAME.fullmatch(spec.name):
        raise BadInput(f"{where}: an MCP server needs a name of its own of up to 32 letters, digits, _ and -")
    try:
        address = urlsplit(spec.url)
        is_address = address.scheme == "https" and bool(address.hostname) and "@" not in address.netloc
    except ValueError:
        is_address = False
    if not is_address:
        raise BadInput(f"{where}: url: expected an address that begins with https:// and has no secret in it")
    if spec.token_env and not _VARIABLE.fullmatch(spec.token_env):
        raise BadInput(f"{where}: token_env: expected the name of an environment variable, never a token itself")


def secrets_of(tools: Sequence[ServerToolSpec]) -> tuple[str, ...]:
    """The tokens that a request with these tools carries; they are masked in all that is shown."""
    return tuple(token for tool in tools if tool.token_env and (token := tool.token()))
