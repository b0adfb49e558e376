"""Checksums of rows, so that damaged bytes are an error and never an answer.

A row of an older version has none until it is written again. The row of a run has three, because each of its parts is
written at another time: its identity once, its progress every turn, its driver when it changes hands.
"""

from __future__ import annotations

STATEMENTS = (
    "ALTER TABLE runs ADD COLUMN identity_crc INTEGER",
    "ALTER TABLE runs ADD COLUMN progress_crc INTEGER",
    "ALTER TABLE runs ADD COLUMN driver_crc INTEGER",
    "ALTER TABLE events ADD COLUMN crc INTEGER",
    "ALTER TABLE mail ADD COLUMN crc INTEGER",
    "ALTER TABLE handles ADD COLUMN crc INTEGER",
    "ALTER TABLE sessions ADD COLUMN crc INTEGER",
    "ALTER TABLE drivers ADD COLUMN crc INTEGER",
    "ALTER TABLE shelves ADD COLUMN crc INTEGER",
    "ALTER TABLE answers ADD COLUMN crc INTEGER",
    "ALTER TABLE charges ADD COLUMN crc INTEGER",
)
