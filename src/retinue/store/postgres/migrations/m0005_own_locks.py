"""Commits wait for one another by a lock of a table of the schema.

Any role of a database can take any advisory lock: another tenant could have stopped all commits. The number of the
advisory lock is still a parameter, without use.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    """
    CREATE OR REPLACE FUNCTION begin_commit(
        lock_number bigint, alone boolean, writer bigint, number bigint, driver text, is_registered_later boolean
    ) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF alone THEN
            LOCK TABLE store_version IN EXCLUSIVE MODE;
        ELSE
            LOCK TABLE store_version IN ROW SHARE MODE;
        END IF;
        IF driver IS NOT NULL AND NOT is_registered_later
            AND NOT EXISTS (SELECT 1 FROM drivers WHERE driver_id = driver AND NOT dead)
        THEN
            RAISE EXCEPTION 'fenced' USING ERRCODE = 'RT001';
        END IF;
        INSERT INTO writers (writer_id, n) VALUES (writer, number)
        ON CONFLICT (writer_id) DO UPDATE SET n = excluded.n, at = clock_timestamp();
    END $$
    """,
)
