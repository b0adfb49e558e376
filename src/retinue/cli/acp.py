"""`retinue acp`: an agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.acp_server import OpenedSession
    from retinue.app.engine_types import Approver
    from retinue.app.launch.start import LaunchOptions
    from retinue.mcp_client import McpServer


def acp(
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    dialect: options.DialectFlag = None,
    agent: Annotated[
        str | None,
        options.agent_flag("The agent of the settings to talk to."),
    ] = None,
    system: Annotated[str, option("--system", metavar="TEXT", help="The system prompt.")] = "",
    tools: options.ToolsFlag = None,
    mcp_config: options.McpConfigFlag = None,
    max_turns: Annotated[int | None, options.max_turns_flag("Replies of the model for a prompt.")] = None,
    max_tokens: Annotated[int | None, options.max_tokens_flag("Tokens of a prompt.")] = None,
    max_cost: Annotated[float | None, options.max_cost_flag("Dollars of a prompt.")] = None,
    timeout: Annotated[float | None, options.timeout_flag("Seconds of a prompt.")] = None,
    unpriced: options.UnpricedFlag = None,
    agents: options.AgentsFlag = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    preset: options.PresetFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
    think: options.ThinkFlag = False,
    effort: options.EffortFlag = None,
) -> int:
    """Serve as an agent for an editor, on stdin and stdout (Agent Client Protocol).

    Without tools, an agent or a preset, the preset is coding. The editor chooses the folder, and answers questions
    about calls that need approval. Its sessions are kept in the store.
    """
    from retinue.app.launch.start import LaunchOptions
    from retinue.config.precedence import Flags

    plain = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        agent=agent,
        system=system,
        tools=options.tools_of(tools, agent=agent),
        tools_are_ceiling=tools is not None,
        think=think,
        model_options=options.model_options_of(effort, None, None, None),
        limits=options.limits_of(max_turns, max_tokens, max_cost, timeout),
        unpriced_ok=options.accepts_unpriced(unpriced),
        preset=options.preset_of(preset),
        no_sandbox=no_sandbox,
        # The process changes to the folder of the editor.
        mcp_config=tuple(str(Path(file).absolute()) for file in mcp_config or ()),
    )
    named = options.dialects_of(dialect)
    folders = [str(Path(folder).absolute()) for folder in agents or ()]
    return perform(_serve(plain, named, config and str(Path(config).absolute()), profile, folders))


async def _serve(
    plain: LaunchOptions,
    dialects: tuple[str, ...] | None,
    config: str | None,
    profile: str | None,
    agent_folders: Sequence[str],
) -> int:
    from retinue.acp_server import AcpServer, OpenedSession, serve
    from retinue.app.launch.start import default_tools_for, dialects_for, prepare, settings_for
    from retinue.app.open import open_read_only

    async def open_session(name: str, servers: tuple[McpServer, ...], approver: Approver) -> OpenedSession:
        settings = settings_for(config, agent=plain.agent, profile=profile, agent_folders=agent_folders)
        agent = plain.agent or settings.default_agent
        chosen = dialects_for(dialects, settings)
        preset = plain.preset or settings.default_preset
        if preset is None and agent is None and not plain.tools_are_ceiling and settings.default_tools is None:
            preset = "coding"
        launch_options = replace(
            plain,
            agent=agent,
            dialects=chosen,
            session=name,
            preset=preset,
            default_tools=() if plain.tools_are_ceiling else default_tools_for(agent, chosen, settings, preset),
            more_tools=("task_create", "task_update", "task_list") if preset == "coding" else (),
            mcp_servers=servers,
        )
        launch = await prepare(settings, launch_options)
        return OpenedSession(launch, launch.open(approvals=approver))

    with interrupts() as stop:
        await serve(AcpServer(open_session, open_read_only), stop)
    return 0
