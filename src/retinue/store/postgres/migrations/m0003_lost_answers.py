"""Answers of the last commit of a writer: those of changes, which cannot be told from what they changed."""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = ("ALTER TABLE writers ADD COLUMN answers bytea[]",)
