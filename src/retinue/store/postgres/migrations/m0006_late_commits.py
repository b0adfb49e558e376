"""A server makes each commit of a writer once, also if it receives it a second time.

A connection that is cut may leave a commit to the server that it begins only later. The client has asked by then
whether the commit was made, and sends it again. The number of a commit tells them apart: the row of the writer is
locked until the end of the first one. RT005: a commit with this number, or a later one, was made.
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
        INSERT INTO writers (writer_id, n) VALUES (writer, number)
        ON CONFLICT (writer_id) DO UPDATE SET n = excluded.n, at = clock_timestamp() WHERE writers.n < excluded.n;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'made already' USING ERRCODE = 'RT005';
        END IF;
        IF driver IS NOT NULL AND NOT is_registered_later
            AND NOT EXISTS (SELECT 1 FROM drivers WHERE driver_id = driver AND NOT dead)
        THEN
            RAISE EXCEPTION 'fenced' USING ERRCODE = 'RT001';
        END IF;
    END $$
    """,
)
