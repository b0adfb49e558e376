"""How results are shown to a model: cut to a size, as compact JSON, with times that anyone can read.

The full text of a result stays in the store; what is lost here is lost for one reader only.
"""

from __future__ import annotations

import msgspec

from retinue.core.text import Cut, Unit, cut, rfc3339

__all__ = ["Cut", "Unit", "compact", "cut", "rfc3339"]


def compact(value: object) -> str:
    """JSON without spaces.

    >>> compact({"keys": [], "note": "naïve — fine"})
    '{"keys":[],"note":"naïve — fine"}'
    """
    return msgspec.json.encode(value).decode()
