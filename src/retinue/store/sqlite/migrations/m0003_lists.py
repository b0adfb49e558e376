"""Indexes of lists of runs: newest first, of all runs, of a session, and of those with a handle.

Runs are added in the order of time, so that an entry is added at the end of an index, or of its session in it.
"""

from __future__ import annotations

STATEMENTS = (
    "CREATE INDEX runs_by_time ON runs (accepted_at, run_id)",
    "DROP INDEX runs_by_session",
    "CREATE INDEX runs_by_session ON runs (session_id, accepted_at, run_id)",
    "CREATE INDEX runs_by_handle ON runs (handle_space, accepted_at, run_id) WHERE handle_space IS NOT NULL",
)
