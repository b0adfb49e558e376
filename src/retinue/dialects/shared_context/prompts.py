"""The system text for participants with `shared_context`: conventional keys, what to write, and how to read."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

KEY_NAMESPACE = """\
Shared context is the working memory of this session. Everyone who has the shared_context tool reads and writes the same
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
    open_questions       what nobody could answer yet
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

FURTHER = {
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
    rows = "\n".join(f"  - {usage}" for name, usage in FURTHER.items() if name in extensions)
    return f"{PARTICIPANT_TEXT}\n\nShared context can do more:\n\n{rows}" if rows else PARTICIPANT_TEXT
