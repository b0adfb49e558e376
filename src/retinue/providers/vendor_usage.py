"""The tokens that vendors count, made into ours: no kind of token is more than what it is a part of."""

from __future__ import annotations

from msgspec import Struct

from retinue.core.usage import Usage


class Details(Struct, gc=False):
    """What OpenAI's wires tell of the input or of the output; other servers add to it."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_DETAILS = Details()


def counted(
    given: int | None,
    made: int | None,
    *,
    cached: int | None = None,
    reasoning: int | None = None,
    written: int | None = None,
) -> Usage | None:
    """Tokens by kind; None if the server counted neither what it was given nor what it made.

    >>> counted(10, 5, cached=12, reasoning=-1)
    Usage(input=10, output=5, cached=10, reasoning=0, written=0)
    >>> counted(None, None, cached=3) is None
    True
    """
    if given is None and made is None:
        return None
    read, said = max(0, given or 0), max(0, made or 0)
    remembered = min(max(0, cached or 0), read)
    return Usage(
        input=read,
        output=said,
        cached=remembered,
        reasoning=min(max(0, reasoning or 0), said),
        written=min(max(0, written or 0), read - remembered),
    )
