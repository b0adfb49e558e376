"""One page of a longer list, in the shape that buzzllm's tools answer with."""

from __future__ import annotations

from collections.abc import Sequence

ROOM = 60_000
"""Characters of one page; what does not fit comes with the next one."""


def page(results: Sequence[str], *, total: int, offset: int, limit: int) -> dict[str, object]:
    """The page object around `results`, which are those from `offset` on.

    >>> page(["b"], total=3, offset=1, limit=1)
    {'results': ['b'], 'total': 3, 'offset': 1, 'limit': 1, 'has_more': True, 'returned': 1}
    """
    return {
        "results": list(results),
        "total": total,
        "offset": offset,
        "limit": limit,
        "has_more": offset + len(results) < total,
        "returned": len(results),
    }


def that_fit(results: Sequence[str]) -> Sequence[str]:
    """As many of the first results as one page has room for, and at least one.

    >>> len(that_fit(["x" * 40_000] * 3))
    1
    """
    room = ROOM
    for number, result in enumerate(results):
        room -= len(result) + 1
        if room < 0 and number:
            return results[:number]
    return results
