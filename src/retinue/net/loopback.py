"""Names and addresses of this machine; to other machines, keys are sent over https only.

This module imports no HTTP client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from retinue.core.errors import BadInput

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
"""Names of headers whose values are secret."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address of an outgoing request means this machine.

    >>> [is_loopback(host) for host in ("localhost", "ollama.localhost", "127.0.0.1", "::1", "example.org")]
    [True, True, True, True, False]
    """
    return is_localhost(host) or host.lower().endswith(".localhost")


def is_localhost(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address: the check for Host headers and for addresses to listen on.

    A name below `localhost` does not count: what it resolves to depends on the resolver.

    >>> [is_localhost(host) for host in ("localhost", "a.localhost", "127.0.0.1", "::1", "example.org")]
    [True, False, True, True, False]
    """
    if host.lower() == "localhost":
        return True
    import ipaddress  # here, because the catalogue of providers has to load quickly

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_encrypted(address: str, api_key_env: str | None, headers: Mapping[str, str]) -> None:
    """Raise `BadInput` if a key or a secret header would be sent in plain text to another machine.

    >>> check_encrypted("http://localhost:8000/v1", "HOUSE_KEY", {})
    >>> check_encrypted("http://h.example/v1", "HOUSE_KEY", {})
    Traceback (most recent call last):
    retinue.core.errors.BadInput: the key in HOUSE_KEY is not sent to h.example over plain http, which is not \
encrypted; use an https address (plain http with a key is for this machine only), or send no key
    """
    parts = urlsplit(address)
    secret = next((f"header {name}" for name in headers if _SECRET_HEADER.search(name)), "")
    secret = f"key in {api_key_env}" if api_key_env else secret
    if secret and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise BadInput(
            f"the {secret} is not sent to {parts.hostname} over plain http, which is not encrypted; use an https "
            "address (plain http with a key is for this machine only), or send no key"
        )


def check_values_encrypted(address: str, what: str, variables: Iterable[str]) -> None:
    """Raise `BadInput` if values of environment variables would be sent in plain text to another machine.

    >>> check_values_encrypted("http://localhost/mcp", "header X-Team", ["TEAM"])
    >>> check_values_encrypted("http://h.example/mcp", "header X-Team", ["TEAM"])
    Traceback (most recent call last):
    retinue.core.errors.BadInput: the header X-Team has the value of TEAM and is not sent to h.example over plain \
http, which is not encrypted; use an https address (plain http is for this machine only)
    """
    parts = urlsplit(address)
    if (variable := next(iter(variables), "")) and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise BadInput(
            f"the {what} has the value of {variable} and is not sent to {parts.hostname} over plain http, which is not "
            "encrypted; use an https address (plain http is for this machine only)"
        )


def is_secret_name(name: str) -> bool:
    """Whether the name of a header or of a variable says that its value is secret.

    >>> is_secret_name("DOCS_API_KEY"), is_secret_name("DOCS_HOST")
    (True, False)
    """
    return _SECRET_HEADER.search(name) is not None
