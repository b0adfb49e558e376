"""Tools for an incident that never happened: small functions on made-up data, the same answer every time.

A pool of database connections was made ten times smaller by a change of the configuration, and requests wait in line.
"""

from typing import Literal

import retinue

LOGS = (
    "Feb 18 09:12:04 deploy    config change 4711 rolled out: connection_pool.size 200 -> 20",
    "Feb 18 09:12:09 api       connection pool restarted with 20 connections",
    "Feb 18 09:14:31 api       timeout: waited 5000 ms for a connection from the pool",
    "Feb 18 09:15:02 api       timeout: waited 5000 ms for a connection from the pool",
    "Feb 18 09:15:40 api       worker threads: 196 of 200 blocked, waiting for a connection",
    "Feb 18 09:20:00 metrics   throughput is 30% below the day before",
    "Feb 18 09:31:17 scheduler nightly report delivered",
)

METRICS = {
    "throughput": "Feb 17: 1450 requests/s; Feb 18: 1015 requests/s",
    "connection_pool_size": "Feb 17: 200; Feb 18: 20",
    "connection_wait_ms": "Feb 17: 2; Feb 18: 4870",
    "thread_utilization": "Feb 17: 41% blocked; Feb 18: 98% blocked",
    "error_rate": "Feb 17: 0.1%; Feb 18: 6.3%",
}

FEW, ENOUGH = 20, 200
"""Connections."""
STARVED, BASELINE = 1015, 1450
"""Requests per second with that many of them."""

COMMANDS = "load-test POOL_SIZE, threads POOL_SIZE"


@retinue.tool(kind="pure")
def search_logs(query: str, limit: int = 20) -> str:
    """Search the service logs of the last two days.

    Args:
        query: words to look for; a line with any of them is found
        limit: the most lines to return
    """
    words = query.lower().split()
    found = [line for line in LOGS if any(word in line.lower() for word in words)][: max(0, limit)]
    return "\n".join(found) or f"no lines about {query!r}"


@retinue.tool(kind="pure")
def query_metrics(name: str) -> str:
    """Look up a metric before and after the incident.

    Args:
        name: throughput, connection_pool_size, connection_wait_ms, thread_utilization or error_rate
    """
    if name not in METRICS:
        raise retinue.ToolError(f"no metric named {name!r}; there are: {', '.join(METRICS)}")
    return f"{name}: {METRICS[name]}"


@retinue.tool(kind="pure")
def run_staging_command(command: str) -> str:
    """Run a command in the staging environment: `load-test POOL_SIZE` or `threads POOL_SIZE`.

    Args:
        command: the command with the size of the connection pool to run it with, such as `load-test 200`
    """
    verb, _, size = command.strip().partition(" ")
    if verb not in ("load-test", "threads") or not size.isdecimal():
        raise retinue.ToolError(f"cannot run {command!r} in staging; there are: {COMMANDS}")
    relief = min(1.0, max(0.0, (int(size) - FEW) / (ENOUGH - FEW)))
    if verb == "threads":
        return f"pool size {size}: {round(98 - 57 * relief)}% of threads blocked"
    return f"pool size {size}: {round(STARVED + (BASELINE - STARVED) * relief)} requests/s (baseline {BASELINE})"


@retinue.tool(kind="idempotent")  # to set a value twice is to set it once
def update_config(environment: Literal["staging", "production"], setting: str, value: int) -> str:
    """Change a setting of an environment.

    Args:
        environment: where; a change of production has to be approved by a person and is refused here
        setting: which, such as connection_pool.size
        value: its new value
    """
    if environment == "production":
        raise retinue.ToolError("a change of production has to be approved by a person; change staging first")
    if setting != "connection_pool.size":
        raise retinue.ToolError(f"staging has no setting {setting!r}; there is: connection_pool.size")
    return f"staging: {setting} is {value} now"
