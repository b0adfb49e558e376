"""The tool registry of the application: four functions on made-up data."""

import retinue


@retinue.tool(kind="pure")
def search_logs(query: str) -> str:
    """Search the service logs."""
    return f"Feb 18 09:12 config change: connection_pool.size 200 -> 20 (found for {query!r})"


@retinue.tool(kind="pure")
def query_metrics(name: str) -> str:
    """Look up a metric before and after the change."""
    return f"{name}: 41% on Feb 17, 98% on Feb 18"


@retinue.tool(kind="pure")
def run_staging_command(command: str) -> str:
    """Run a command in staging."""
    return f"staging ran {command!r}: throughput is at its baseline"


@retinue.tool(kind="idempotent")
def update_config(setting: str, value: int) -> str:
    """Change a setting in staging."""
    return f"{setting} is {value} in staging"
