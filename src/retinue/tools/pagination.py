"""Pages of long result lists, as one JSON value with the results and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from retinue.tools.function import as_text

NOTICE_CHARS = 200
"""Characters that are left for the line after a page that says how to go on."""

MAX_RESULTS = 1000
"""Results of one page, whatever the limit."""


def page_limit(limit: int) -> int:
    """The largest number of results for a page; a limit of 0 stands for the maximum.

    >>> page_limit(20), page_limit(0), page_limit(5000)
    (20, 1000, 1000)
    """
    return min(limit or MAX_RESULTS, MAX_RESULTS)


def page(results: Sequence[str], *, total: int, offset: int, limit: int) -> dict[str, object]:
    """The page object around `results`, which are those from `offset` on.

    >>> page(["b"], total=3, offset=1, limit=1)
    {'results': ['b'], 'total': 3, 'offset': 1, 'limit': 1, 'has_more': True, 'returned': 1}
    """
    has_more = offset + len(results) < total
    fields = {"results": list(results), "total": total, "offset": offset, "limit": limit}
    return {**fields, "has_more": has_more, "returned": len(results)}


def page_text(
    results: Sequence[str],
    *,
    total: int,
    offset: int,
    limit: int,
    room: int,
    with_content: bool = False,
    note: Mapping[str, object] | None = None,
) -> str:
    """The page object as JSON, with as many results as fit into `room`: a cut text would not be JSON.

    With `with_content`, the results are repeated in it as one text.

    >>> page_text(["x" * 60, "y" * 60], total=2, offset=0, limit=0, room=150)[-64:]
    'x"],"total":2,"offset":0,"limit":0,"has_more":true,"returned":1}'
    """

    def encoded(shown: Sequence[str]) -> str:
        fields = page(shown, total=total, offset=offset, limit=limit)
        if with_content:
            fields["content"] = "\n".join(shown)
        return as_text({**fields, **(note or {})})

    def size(result: str) -> int:
        return (len(as_text([result])) - len("[]")) * (2 if with_content else 1)

    whole = encoded(results)
    if len(whole) <= room:
        return whole
    return encoded(fitting(results, room - len(encoded(())) - len(str(len(results))), size))


def fitting(results: Sequence[str], room: int, size: Callable[[str], int] = len) -> Sequence[str]:
    """As many of the first results as fit into `room`, each with a separator, and at least one.

    >>> len(fitting(["x" * 40_000] * 3, 60_000))
    1
    """
    for number, result in enumerate(results):
        room -= size(result) + 1
        if room < 0 and number:
            return results[:number]
    return results
