"""How work happens: knows ports, no vendor and no dialect."""

__all__ = [
    "admission",
    "approvals",
    "budgets",
    "context",
    "driver",
    "journal",
    "key_value",
    "live_run",
    "process_identity",
    "rate_limiter",
    "run_view",
    "supervisor",
    "tool_calls",
]
