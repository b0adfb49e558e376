"""The address of a PostgreSQL store: a `postgresql://` URL, with the schema as an extra parameter."""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct

from retinue.core.errors import BadInput

DEFAULT_SCHEMA: Final = "retinue"
SCHEMES: Final = ("postgresql", "postgres")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,53}")
"""A name that needs no quotes in SQL; the channel of wake-ups has a prefix before it, and at most 63 characters."""

_SECRET: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_DEFAULTS: Final = {
    "connect_timeout": "5",
    # A server that is cut off is noticed after half a minute at most, not after the two hours of TCP.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "retinue",
}


class PostgresAddress(Struct, frozen=True):
    """Where a store is: the connection string for the driver, the schema, and the address without secrets.

    `str()` and `repr()` show neither the password nor anything else of the connection string.
    """

    connection_string: str
    schema: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"PostgresAddress({self.shown!r})"

    @property
    def channel(self) -> str:
        """The channel on which commits wake other processes."""
        return f"retinue_{self.schema}"

    def lock_number(self, purpose: str) -> int:
        """The number of an advisory lock of this schema; such locks are per database."""
        digest = hashlib.sha256(f"retinue {purpose} {self.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def parse_address(url: str, *, schema: str | None = None) -> PostgresAddress:
    """The address in a URL; `schema` is used if the URL names none. Raises `BadInput`, without secrets in its text.

    >>> parse_address("postgresql://me:hidden@db.example/work?schema=team_a&sslmode=require")
    PostgresAddress('postgresql://me@db.example/work?schema=team_a&sslmode=require')
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # The text of the error may have a part of the password in it.
        raise BadInput("the address of the store is no valid URL: write special characters as %XX") from None
    if parts.scheme not in SCHEMES:
        raise BadInput("the address of a PostgreSQL store begins with postgresql://")
    if not url.lower().startswith(f"{parts.scheme}://") or parts.fragment or "@" in parts.path:
        # With `/`, `?` or `#` in a password the parts are not what they seem, and a part of it would be shown.
        raise BadInput("the address of the store is no valid URL: write special characters of a password as %XX")
    chosen = [value for name, value in options if name == "schema"]
    schema = chosen[-1] if chosen else schema or DEFAULT_SCHEMA
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise BadInput(
            f"the schema {schema!r} of the store: expected up to 54 small letters, digits and _, not beginning with a "
            "digit or with pg_"
        )
    rest = [(name, value) for name, value in options if name != "schema"]
    user, _, hosts = parts.netloc.rpartition("@")
    defaults = _DEFAULTS | ({"target_session_attrs": "read-write"} if "," in hosts else {})
    added = [(name, value) for name, value in defaults.items() if name not in dict(rest)]
    public = [("schema", schema), *((name, value) for name, value in rest if name.strip().lower() not in _SECRET)]
    name = user.partition(":")[0]
    return PostgresAddress(
        _url(parts.netloc, parts.path, [*rest, *added]),
        schema,
        _url(f"{name}@{hosts}" if name else hosts, parts.path, public),
    )


def _url(place: str, path: str, options: list[tuple[str, str]]) -> str:
    return f"postgresql://{place}{path}?{urlencode(options, quote_via=quote, safe='/')}"
