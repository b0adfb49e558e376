"""Names and addresses of this machine. This module imports no HTTP client."""

from __future__ import annotations


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
