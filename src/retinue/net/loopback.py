"""Addresses of this machine. This module imports no HTTP client."""

from __future__ import annotations


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "example.org")]
    [True, True, True, False]
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress  # here, because the catalogue of providers has to load quickly

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
