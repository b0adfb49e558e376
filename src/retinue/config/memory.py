"""The section `[memory]`: the memory backend of agents that name none, and what is stored without a tool call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from retinue.config.section_type import Section
from retinue.config.validation import Issue

SupportedBackend: TypeAlias = Literal["sqlite", "postgres", "workspace", "none"]
"""Kinds of `retinue.tools.memory`; `workspace` is Markdown in the workspace of an agent."""

Backend = Annotated[
    Literal["sqlite", "workspace", "markdown", "none", "postgres", "qdrant", "lucid"],
    Meta(extra={"expected": "one of: sqlite, postgres, workspace, markdown, none"}),
]
"""A memory backend. `markdown` is another name of `workspace`, as settings files of other programs have it; of the last
two only the names are known, for such files.
"""


def supported_backend(backend: str | None) -> SupportedBackend | None:
    """The kind of a backend, or None if retinue does not support it.

    >>> supported_backend("workspace"), supported_backend("markdown"), supported_backend("qdrant")
    ('workspace', 'workspace', None)
    """
    match backend:
        case "sqlite" | "postgres" | "workspace" | "none":
            return backend
        case "markdown":
            return "workspace"
        case _:
            return None


class MemoryDefaults(Struct, frozen=True, kw_only=True):
    """The memory of agents that have no `[agents.<name>.memory]` of their own."""

    backend: Annotated[
        Backend | None,
        Meta(
            description="sqlite, postgres (the store), workspace (its MEMORY.md; alias: markdown) or none; "
            "by default as set in [tools].",
            examples=["sqlite"],
        ),
    ] = None
    auto_save: Annotated[
        bool, Meta(description="Whether messages of the user are stored as memories of the agent.", examples=[False])
    ] = False

    def backend_over(self, default: str) -> str:
        """The backend, or `default` where none is set or the one that is set is not supported."""
        return supported_backend(self.backend) or default


MEMORY = Section(name="memory", type=MemoryDefaults, about="The memory of agents that set none of their own.")


def backend_issues(path: tuple[str, ...], backend: str | None) -> Iterator[Issue]:
    """A warning about a backend that is not supported."""
    if backend is not None and supported_backend(backend) is None:
        yield Issue(path=path, message=f"{backend} is not supported and ignored", is_warning=True)
