"""One page of a longer list, in the shape that buzzllm's tools answer with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from retinue.tools.function import as_text

NOTICE = 200
"""Characters that are left for the line after a page that says how to go on."""

MAX_RESULTS = 1000
"""Results of one page, however many are asked for."""


def results_of(limit: int) -> int:
    """How many results at most are looked up for a page; with a limit of 0, as many as there may be.

    >>> results_of(20), results_of(0), results_of(5000)
    (20, 1000, 1000)
    """
    return min(limit or MAX_RESULTS, MAX_RESULTS)


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
    """The page object as a model reads it, with as many results as leave it whole: a cut one would be no JSON.

    With `with_content` the results are in it once more, as one text.

    >>> page_text(["x" * 60, "y" * 60], total=2, offset=0, limit=0, room=150)[-64:]
    'x"],"total":2,"offset":0,"limit":0,"has_more":true,"returned":1}'
    """

    def written(shown: Sequence[str]) -> str:
        about = page(shown, total=total, offset=offset, limit=limit)
        if with_content:
            about["content"] = "\n".join(shown)
        return as_text({**about, **(note or {})})

    def call_risk(result: str) -> int:
        return (len(as_text([result])) - len("[]")) * (2 if with_content else 1)

    whole = written(results)
    if len(whole) <= room:
        return whole
    return written(that_fit(results, room - len(written(())) - len(str(len(results))), call_risk))


def that_fit(results: Sequence[str], room: int, call_risk: Callable[[str], int] = len) -> Sequence[str]:
    """As many of the first results as there is room for, each with what follows it, and at least one.

    >>> len(that_fit(["x" * 40_000] * 3, 60_000))
    1
    """
    for number, result in enumerate(results):
        room -= call_risk(result) + 1
        if room < 0 and number:
            return results[:number]
    return results
