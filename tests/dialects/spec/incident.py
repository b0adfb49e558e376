"""The incident that the specification tells of: its agents, and tools with fixed answers."""

import retinue

MODEL = "claude-sonnet-4-20250514"


@retinue.tool
async def search_logs(query: str) -> str:
    """Search the logs."""
    return f"3 lines about {query}"


@retinue.tool
async def query_metrics(name: str) -> str:
    """Query a metric."""
    return f"{name}=20"


@retinue.tool
async def query_database(query: str) -> str:
    """Query the database."""
    return f"no rows for {query}"


@retinue.tool
async def run_staging_command(command: str) -> str:
    """Run a command in staging."""
    return f"ran {command}"


@retinue.tool
async def update_config(pool: int) -> str:
    """Change the configuration."""
    return f"pool={pool}"


TOOLS = (search_logs, query_metrics, query_database, run_staging_command, update_config)

AGENTS = (
    retinue.Agent(
        name="researcher",
        description="Investigates technical issues using logs and metrics",
        system_prompt="You are a researcher.",
        tools=("search_logs", "query_metrics", "shared_context"),
        model=MODEL,
        max_turns=10,
    ),
    retinue.Agent(
        name="writer",
        description="Drafts documentation and reports",
        system_prompt="You are a writer.",
        tools=("shared_context",),
        model=MODEL,
        max_turns=5,
    ),
)
