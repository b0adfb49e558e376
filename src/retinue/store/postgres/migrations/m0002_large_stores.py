"""Indexes for stores with very many runs: lists of unfinished runs, ids by their last characters, and prunes."""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "CREATE INDEX unfinished_by_time ON runs (accepted_at, run_id) WHERE NOT ended",
    "CREATE INDEX runs_by_reversed_id ON runs (reverse(run_id))",
    # What is removed together with a run and with a tree: answers of its calls, and artifacts.
    "CREATE INDEX answers_by_run ON answers (split_part(key, '/', 1))",
    """
    CREATE INDEX artifacts_by_root ON key_values (split_part(space, '/', 2))
    WHERE space >= 'artifact/' AND space < 'artifact0'
    """,
)
