"""Names of a module that are imported on first use, so that importing the module stays light (PEP 562)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, which imports the object that `homes` names, as `module:attribute`, for a name.

    The object is stored in the module, so each name is looked up once. The function raises `AttributeError` for a name
    that is not in `homes`.

    >>> lazy_names("retinue", {"Usage": "retinue.core.usage:Usage"})("Usage")(input=1).total
    1
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from importlib import import_module  # here, because `import retinue` has to stay light

        home, _, attribute = homes[name].partition(":")
        value = getattr(import_module(home), attribute)
        setattr(sys.modules[module], name, value)
        return value

    return find
