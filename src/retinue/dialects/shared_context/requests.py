"""Requests to the `shared_context` tool: the schema and system text that a model sees, and parsing."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import Fields, action_tool, list_of, mistyped, typed
from retinue.dialects.error_codes import CodedRefusal

NAME = "shared_context"

CORE = ("list_keys", "read", "write", "delete")
EXTRA_ACTIONS = ("read_batch", "read_history", "snapshot")
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
    """The actions with these extensions switched on."""
    return (*CORE, *(action for action in EXTRA_ACTIONS if action in extensions))


def spec_of(extensions: AbstractSet[str]) -> ToolSpec:
    """The tool's name, description and parameters with these extensions switched on."""
    described = {action: ABOUT_ACTIONS[action] for action in actions_of(extensions)}
    return action_tool(NAME, ABOUT, described, _properties(extensions))


def _properties(extensions: AbstractSet[str]) -> dict[str, object]:
    properties: dict[str, object] = {}
    properties["key"] = typed(
        "string",
        "The entry to read, write or delete: lowercase letters, digits and underscores, "
        f"1 to {MAX_KEY_CHARACTERS} characters.",
    )
    properties["value"] = typed(
        "string",
        "For write: the text to keep. Distilled conclusions, not raw data; at most "
        f"{MAX_VALUE_TOKENS} tokens (about 4000 characters).",
    )
    if "read_batch" in extensions:
        properties["keys"] = list_of("string", "For read_batch: the entries to read.")
    if "read_history" in extensions:
        properties["versions"] = list_of(
            "integer", "For read_history: the versions to give; all that are kept by default."
        )
    if "snapshot" in extensions:
        properties["label"] = typed("string", f"For snapshot: a name for it, 1 to {MAX_LABEL_CHARACTERS} characters.")
    if "ttl" in extensions:
        properties["ttl_seconds"] = typed(
            "number", "For write: seconds after which the entry is gone by itself; never by default."
        )
    if "access" in extensions:
        patterns = 'patterns of participants, such as "orchestrator" or "subagent:writer:*"; everyone by default'
        properties["readable_by"] = list_of("string", f"For write: who may read the value, as {patterns}.")
        properties["writable_by"] = list_of(
            "string", f"For write: who may overwrite and delete the entry, as {patterns}."
        )
    return properties


EXTENSIONS = ("read_batch", "read_history", "snapshot", "ttl", "access")
"""Actions and fields beyond the core of the document, by the names that settings use."""

ALL = frozenset(EXTENSIONS)

LONGEST_TTL = 100 * 365.25 * 86400.0
"""The longest time to live in seconds; longer ones are cut to it."""

MAX_PATTERNS = 32
MAX_PATTERN_CHARACTERS = 200


class ListKeys(Struct, frozen=True):
    """List the entries without their values."""


class Read(Struct, frozen=True):
    """Read one entry."""

    key: str


class ReadBatch(Struct, frozen=True):
    """Read several entries."""

    keys: tuple[str, ...]


class ReadHistory(Struct, frozen=True):
    """Read the kept versions of an entry, or some of them."""

    key: str
    versions: tuple[int, ...] | None = None


class WriteEntry(Struct, frozen=True):
    """Create or overwrite an entry, for `ttl_seconds`; patterns that are None stay, and a new entry is open to all."""

    key: str
    value: str
    ttl_seconds: float | None = None
    readable_by: tuple[str, ...] | None = None
    writable_by: tuple[str, ...] | None = None


class Delete(Struct, frozen=True):
    """Remove an entry."""

    key: str


class TakeSnapshot(Struct, frozen=True):
    """Store all entries under a label."""

    label: str


Look: TypeAlias = ListKeys | Read | ReadBatch | ReadHistory
ChangingAction: TypeAlias = WriteEntry | Delete | TakeSnapshot
Action: TypeAlias = Look | ChangingAction


def parse(arguments: str, extensions: AbstractSet[str] = ALL) -> Action:
    """The action of a call; raises `CodedRefusal` if the arguments are not valid."""
    fields = Fields.parse(arguments)
    match fields.action(actions_of(extensions)):
        case "list_keys":
            return ListKeys()
        case "read":
            return Read(fields.text("key"))
        case "read_batch":
            return ReadBatch(fields.texts("keys", required=True))
        case "read_history":
            return ReadHistory(fields.text("key"), fields.integers("versions"))
        case "write":
            return _write(fields, extensions)
        case "snapshot":
            return TakeSnapshot(label_of(fields.text("label")))
        case _:
            return Delete(fields.text("key"))


def label_of(label: str) -> str:
    """The label of a snapshot; raises `CodedRefusal` if it is not valid."""
    if not 1 <= len(label) <= MAX_LABEL_CHARACTERS or not label.isprintable():
        wanted = f"1-{MAX_LABEL_CHARACTERS} printable characters"
        raise CodedRefusal("INVALID_REQUEST", f"Field 'label' must be {wanted}, got {len(label)}: {label[:80]!r}")
    return label


def _write(fields: Fields, extensions: AbstractSet[str]) -> WriteEntry:
    fields.refuse_unless("ttl", extensions, "ttl_seconds")
    fields.refuse_unless("access", extensions, "readable_by", "writable_by")
    return WriteEntry(
        fields.text("key"),
        fields.text("value"),
        _seconds(fields, "ttl_seconds"),
        _patterns(fields, "readable_by"),
        _patterns(fields, "writable_by"),
    )


def _seconds(fields: Fields, name: str) -> float | None:
    if name not in fields:
        return None
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise mistyped(name, "a number of seconds", value)
    if not value > 0:
        raise CodedRefusal("INVALID_REQUEST", f"Field '{name}' must be above 0.")
    return float(min(value, LONGEST_TTL))


def _patterns(fields: Fields, name: str) -> tuple[str, ...] | None:
    if name not in fields:
        return None
    patterns = fields.texts(name)
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN_CHARACTERS for pattern in patterns):
        limit = f"at most {MAX_PATTERNS} patterns of {MAX_PATTERN_CHARACTERS} characters"
        raise CodedRefusal("INVALID_REQUEST", f"Field '{name}' must have {limit}.")
    return patterns


KEY_NAMESPACE = """\
Shared context is the working memory of this session. All agents with the shared_context tool read and write the same
entries. Conventional keys:

  State
    current_phase        what is being worked on now
    phase_status         how far that is
    blocking_issues      what keeps work from going on
  Problem
    problem_summary      the problem, in short
    scope                what belongs to it, and what does not
    constraints          what has to be respected
  Findings
    findings_summary     what was found out, in short
    open_questions       what has no answer yet
    decisions_made       what was decided, and why
  Output
    deliverables_status  how far each result is
    quality_checks       what was checked, and how it came out

Use these where they fit. Other keys are welcome too: lowercase letters, digits and underscores, up to 64 characters."""

WRITE_DISCIPLINE = """\
When writing to shared context:

DO:
  - Store conclusions, decisions, blockers and status
  - Refer to larger things by their id or path
  - Distil anything above about 500 tokens before you store it
  - Update an existing key rather than adding another for the same thing
  - Delete what is resolved or no longer true

Do NOT:
  - Store raw data, transcripts or scratch reasoning
  - Store personal data or credentials"""

READ_PATTERN = """\
When reading from shared context:

  1. Call list_keys first, to see what is there.
  2. Read only the keys that matter to your task; value_size_tokens tells you what each will cost.
  3. Treat entries that the user has approved as settled, and drafts as input.
  4. What is not there may be found with your other tools: a missing key is no failure."""

ABOUT_EXTENSIONS = {
    "read_batch": "read_batch gives several entries at once.",
    "read_history": "read_history gives the earlier versions of an entry.",
    "ttl": "An entry that is true for a while only: write it with ttl_seconds, and it goes by itself.",
    "access": "An entry that is not for everyone: write it with readable_by and writable_by, patterns of participants "
    'such as "orchestrator" or "subagent:writer:*".',
    "snapshot": "snapshot keeps the whole of shared context under a label, before something large is changed.",
}
"""How to use each extension."""

PARTICIPANT_TEXT = f"{KEY_NAMESPACE}\n\n{WRITE_DISCIPLINE}\n\n{READ_PATTERN}"
"""The text without extensions."""


def participant_text(extensions: AbstractSet[str]) -> str:
    """The text, with a line for each extension that is switched on."""
    rows = "\n".join(f"  - {usage}" for name, usage in ABOUT_EXTENSIONS.items() if name in extensions)
    return f"{PARTICIPANT_TEXT}\n\nShared context can do more:\n\n{rows}" if rows else PARTICIPANT_TEXT
