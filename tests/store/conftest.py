"""Rewrite the assertions of the store contract, so that failures are explained as in a test file."""

import pytest

pytest.register_assert_rewrite("retinue.testing.contracts.store")
