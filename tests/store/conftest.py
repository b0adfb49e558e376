"""Store tests: the contract's own assertions explain themselves like those of a test file."""

import pytest

pytest.register_assert_rewrite(
    "retinue.testing.contracts.store",
    "retinue.testing.contracts.store_births",
    "retinue.testing.contracts.store_case",
    "retinue.testing.contracts.store_drivers",
    "retinue.testing.contracts.store_logs",
    "retinue.testing.contracts.store_sessions",
)
