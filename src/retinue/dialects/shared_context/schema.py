"""The `shared_context` tool as a model sees it: its actions and parameters, those of the extensions included."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import compact

NAME = "shared_context"

CORE = ("list_keys", "read", "write", "delete")
FURTHER = ("read_batch", "read_history", "snapshot")
"""Actions that are extensions of the same name."""

MAX_KEY_CHARACTERS = 64
MAX_VALUE_TOKENS = 1000
MAX_LABEL_CHARACTERS = 64

ABOUT = (
    "The working memory that all participants of this session share: short texts under flat keys. Start with list_keys "
    "to see what is there, read what matters to you, write conclusions, and delete what is settled."
)
ABOUT_ACTIONS = {
    "list_keys": "every key with its author, time, version and size, without values.",
    "read": "one entry with its value.",
    "write": "create or overwrite an entry.",
    "delete": "remove an entry.",
    "read_batch": "several entries at once.",
    "read_history": "earlier versions of an entry, as far as they are kept.",
    "snapshot": "keep all entries as they are now under a label, for the operator.",
}


def actions_of(extensions: AbstractSet[str]) -> tuple[str, ...]:
    """The actions there are with these extensions."""
    return (*CORE, *(action for action in FURTHER if action in extensions))


def spec_of(extensions: AbstractSet[str]) -> ToolSpec:
    """The tool with these extensions."""
    actions = actions_of(extensions)
    action = {
        "type": "string",
        "enum": actions,
        "description": " ".join(f"{name}: {ABOUT_ACTIONS[name]}" for name in actions),
    }
    properties = {"action": action, **dict(_properties(extensions))}
    return ToolSpec(NAME, ABOUT, compact({"type": "object", "properties": properties, "required": ["action"]}))


def _properties(extensions: AbstractSet[str]) -> Iterator[tuple[str, dict[str, object]]]:
    yield (
        "key",
        _text(
            "The entry to read, write or delete: lowercase letters, digits and underscores, "
            f"1 to {MAX_KEY_CHARACTERS} characters."
        ),
    )
    yield (
        "value",
        _text(
            "For write: the text to keep. Distilled conclusions, not raw data; at most "
            f"{MAX_VALUE_TOKENS} tokens (about 4000 characters)."
        ),
    )
    if "read_batch" in extensions:
        yield "keys", _list("string", "For read_batch: the entries to read.")
    if "read_history" in extensions:
        yield "versions", _list("integer", "For read_history: the versions to give; all that are kept by default.")
    if "snapshot" in extensions:
        yield "label", _text(f"For snapshot: a name for it, 1 to {MAX_LABEL_CHARACTERS} characters.")
    if "ttl" in extensions:
        about = "For write: seconds after which the entry is gone by itself; never by default."
        yield "ttl_seconds", {"type": "number", "description": about}
    if "access" in extensions:
        patterns = 'patterns of participants, such as "orchestrator" or "subagent:writer:*"; everyone by default'
        yield "readable_by", _list("string", f"For write: who may read the value, as {patterns}.")
        yield "writable_by", _list("string", f"For write: who may overwrite and delete the entry, as {patterns}.")


def _text(about: str) -> dict[str, object]:
    return {"type": "string", "description": about}


def _list(kind: str, about: str) -> dict[str, object]:
    return {"type": "array", "items": {"type": kind}, "description": about}
