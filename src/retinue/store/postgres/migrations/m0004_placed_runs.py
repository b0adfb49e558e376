"""Runs that were placed for another driver count as running runs of their session, before a driver adopts them."""

from __future__ import annotations

from retinue.store.postgres.migrations import m0001_initial

_BEFORE = "AND runs.phase <> 'pending' AND runs.driver_id IS NOT NULL;"
_SINCE = "AND runs.phase <> 'pending' AND (runs.driver_id IS NOT NULL OR runs.phase = 'placed');"

_ACCEPT = m0001_initial.ACCEPT.replace(_BEFORE, _SINCE).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")

STATEMENTS = (_ACCEPT,)
