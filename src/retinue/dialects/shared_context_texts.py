"""What every participant with `shared_context` is told: which keys there are, what to write, and how to read.

The texts name no project and no trade, so that they fit any session.
"""

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

PARTICIPANT_TEXT = f"{KEY_NAMESPACE}\n\n{WRITE_DISCIPLINE}\n\n{READ_PATTERN}"
"""The three together, as they stand in a participant's system text."""
