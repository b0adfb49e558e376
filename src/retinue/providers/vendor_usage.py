"""Token counts of vendors as `Usage`: no part of a count is larger than the whole."""

from __future__ import annotations

from msgspec import Struct

from retinue.core.usage import Usage


class TokenDetails(Struct, gc=False):
    """Details of input or output tokens on OpenAI's wires; other servers add fields."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_DETAILS = TokenDetails()


def normalized_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    cached: int | None = None,
    reasoning: int | None = None,
    written: int | None = None,
) -> Usage | None:
    """The usage of one response; None if the server counted neither input nor output.

    >>> normalized_usage(10, 5, cached=12, reasoning=-1)
    Usage(input=10, output=5, cached=10, reasoning=0, written=0)
    >>> normalized_usage(None, None, cached=3) is None
    True
    """
    if input_tokens is None and output_tokens is None:
        return None
    total_in, total_out = max(0, input_tokens or 0), max(0, output_tokens or 0)
    from_cache = min(max(0, cached or 0), total_in)
    return Usage(
        input=total_in,
        output=total_out,
        cached=from_cache,
        reasoning=min(max(0, reasoning or 0), total_out),
        written=min(max(0, written or 0), total_in - from_cache),
    )
