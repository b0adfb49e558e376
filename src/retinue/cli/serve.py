"""`retinue serve`: the HTTP API and the page about runs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, NamedTuple

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import say

if TYPE_CHECKING:
    import asyncio
    import socket

    from retinue.app.launch.start import LaunchOptions
    from retinue.app.retinue import Retinue
    from retinue.config.settings import Settings
    from retinue.web.access import AccessTokens
    from retinue.web.service import Service

MISSING = "the server needs the packages starlette and uvicorn: install the extra retinue[web-ui]"


def serve(
    host: Annotated[str, option("--host", metavar="HOST", help="The address or name to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port", metavar="N", min=0, max=65535, help="The port; 0 is any free one.")] = 8420,
    token_env: Annotated[
        str | None, option("--token-env", metavar="NAME", help="The variable that holds the token. [one is made]")
    ] = None,
    read_token_env: Annotated[
        str | None,
        option("--read-token-env", metavar="NAME", help="The variable that holds a token which may only read."),
    ] = None,
    public_url: Annotated[
        str | None,
        option("--public-url", metavar="URL", help="The address for browsers, if a proxy is before the server."),
    ] = None,
    adopt: Annotated[bool, option("--adopt", help="Continue interrupted runs at the start.")] = False,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    tools: options.ToolsFlag = None,
    agents: options.AgentsFlag = None,
    config: options.ConfigFlag = None,
    profile: options.ProfileFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
) -> int:
    """Serve the API and a page that shows every run, live and afterwards.

    The link with its token is printed on stderr. Everything but /healthz needs the token.
    """
    from retinue.app.launch.start import LaunchOptions, default_tools_for, dialects_for, settings_for
    from retinue.config.precedence import Flags
    from retinue.core.errors import BadInput

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadInput(MISSING)
    from retinue.web.access import public_origin

    address = ServeAddress(host, port, "" if public_url is None else public_origin(public_url))
    settings = settings_for(config, agent=None, profile=profile, agent_folders=agents or ())
    dialects = dialects_for(None, settings)
    launch_options = LaunchOptions(
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        dialects=dialects,
        tools=options.tools_of(tools, agent=None),
        tools_are_ceiling=tools is not None,
        default_tools=default_tools_for(None, dialects, settings) if tools is None else (),
        no_sandbox=no_sandbox,
    )
    return perform(_serve(settings, launch_options, address, token_env, read_token_env, adopt=adopt))


class ServeAddress(NamedTuple):
    """Where the server listens, and the origin at which browsers reach it, if that is another one."""

    host: str
    port: int
    public: str

    def link(self, listener: socket.socket) -> str:
        """The address of the page."""
        if self.public:
            return f"{self.public}/"
        from retinue.net.loopback import is_localhost

        found, port = listener.getsockname()[:2]
        name = found if is_localhost(self.host) else self.host
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


async def _serve(
    settings: Settings,
    launch_options: LaunchOptions,
    address: ServeAddress,
    token_env: str | None,
    read_token_env: str | None,
    *,
    adopt: bool,
) -> int:
    from retinue.app.launch.start import prepare
    from retinue.app.open import open_read_only
    from retinue.app.read_only import ReadOnlyClient
    from retinue.core.errors import BadInput
    from retinue.net.loopback import is_localhost
    from retinue.web.server import listen
    from retinue.web.service import Service

    if token_env is None and not is_localhost(address.host):
        raise BadInput(f"--host {address.host} is beyond this machine: give a token with --token-env NAME")
    tokens, link_token = _tokens(token_env, read_token_env)
    listener = listen(address.host, address.port)
    with interrupts() as stop:
        try:
            launch = await prepare(settings, launch_options)
        except BadInput as error:
            say(f"no runs can be started here: {error}")
            async with open_read_only() as client:
                service = Service(client=client, settings=settings, no_model=str(error), stopping=stop)
                await _run(service, tokens, address, listener, stop, link_token)
            return 0
        say(str(launch.model_choice))
        async with launch.open(approvals="wait") as retinue:
            client = ReadOnlyClient(retinue.supervisor)
            service = Service(client=client, settings=settings, retinue=retinue, launch=launch, stopping=stop)
            if adopt:
                await _adopt(service, retinue)
            await _run(service, tokens, address, listener, stop, link_token)
    return 0


def _tokens(token_env: str | None, read_token_env: str | None) -> tuple[AccessTokens, str | None]:
    """The tokens, and the one that belongs into the printed link."""
    from retinue.app.state_folder import default_home, secure_state_folder
    from retinue.web.access import AccessTokens, stored_token, token_from

    read = None if read_token_env is None else token_from(read_token_env)
    if token_env is not None:
        return AccessTokens(token_from(token_env), read), None
    home = default_home()
    secure_state_folder(home)
    token = stored_token(home)
    return AccessTokens(token, read), token


async def _run(
    service: Service,
    tokens: AccessTokens,
    address: ServeAddress,
    listener: socket.socket,
    stop: asyncio.Event,
    token: str | None,
) -> None:
    from dataclasses import replace

    from retinue.dispatch.cron.daemon import jobs_on_request
    from retinue.dispatch.cron.table import CronTable
    from retinue.web.server import application
    from retinue.web.server import serve as serve_application

    say(address.link(listener) + (f"?token={token}" if token is not None else ""))
    async with jobs_on_request(CronTable(service.client.key_value), say) as run_job:
        app = application(replace(service, run_job=run_job), tokens, host=address.host, public=address.public)
        await serve_application(app, listener, stop)


async def _adopt(service: Service, retinue: Retinue) -> None:
    from retinue.core.errors import NotAdoptable
    from retinue.web.routes import resume

    for view in await retinue.list():
        if view.state == "interrupted":
            try:
                await resume(service, retinue, view)
                say(f"continuing run {view.run_id}")
            except NotAdoptable as error:
                say(f"warning: {error}")
