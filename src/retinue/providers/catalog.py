"""The catalogue of providers: wires and local servers by name, provider configs, and how a provider is made from one.

A new wire is one package with a `Wire` record in its `__init__.py`, and one entry in `WIRES`. Provider classes are
imported when the first provider of their wire is created.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import SERVER_PREFIX
from retinue.core.errors import BadInput, ProviderError, UnknownName
from retinue.core.model_options import NO_OPTIONS, ModelOptions, set_options
from retinue.core.ports import Provider, Request
from retinue.net.loopback import check_encrypted, is_loopback
from retinue.providers import acp, anthropic, bedrock, gemini, openai_chat, openai_responses
from retinue.providers.acp import AgentProgram, AgentPrograms
from retinue.providers.pricing import ContextWindows, ModelPrices, PricedProvider, Rates, bedrock_tier, openai_tier
from retinue.providers.vendors import VENDORS
from retinue.providers.wire import Family, Wire

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"key|token|secret|password|auth|sig", re.IGNORECASE)

SCRIPTED = "scripted"
ACP = "acp"


def _local_server(base_url: str) -> Wire:
    """The record of a model server that listens at `base_url` by default and needs no key."""
    return replace(
        openai_chat.WIRE,
        kind="local",
        base_url=base_url,
        api_key_env="",
        default_model="",
        options={"quirks": openai_chat.LOCAL_SERVER},
        caches_by_key=False,
        tiers="",
        supports=openai_chat.WIRE.supports - {"batch_hours"},
    )


WIRES: dict[str, Wire] = {
    "anthropic": anthropic.WIRE,
    "openai": openai_responses.WIRE,
    "openai-chat": openai_chat.WIRE,
    "openai-responses": openai_responses.WIRE,
    "gemini": gemini.WIRE,
    "vertexai-anthropic": anthropic.VERTEX_WIRE,
    "bedrock": bedrock.WIRE,
    **VENDORS,
    "ollama": _local_server("http://localhost:11434/v1"),
    "lmstudio": _local_server("http://localhost:1234/v1"),
    "llamacpp": _local_server("http://localhost:8080/v1"),
    "vllm": _local_server("http://localhost:8000/v1"),
    SCRIPTED: Wire(provider="retinue.providers.scripted:ScriptFileProvider", kind="script"),
    ACP: acp.WIRE,
}
"""Every wire, and the local servers that speak one of them. Vendors' keys are looked up in this order."""

LOCAL_SERVERS = tuple(name for name, wire in WIRES.items() if wire.kind == "local")

CLAUDE_MODELS: Mapping[str, str] = {
    "sonnet": "claude-sonnet-5-5",
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
    "fable": "claude-fable-5-1",
}
"""The aliases of Claude Code, as the newest models of Anthropic whose prices are known."""

_REGION = re.compile(r"[a-z0-9-]{1,40}")

ALIASES: dict[str, str] = {alias: name for name, wire in reversed(WIRES.items()) for alias in wire.aliases}
"""Other names of vendors, each with the first name in `WIRES` of its wire."""

ResponsesWire: TypeAlias = Literal["live", "seed"]
"""How the wire `openai-responses` writes tool calls: `live` as `function_call` (OpenAI's), `seed` as `tool_call`."""


def default_address(wire: Wire) -> str:
    """The vendor's address for this process."""
    regions = (os.environ.get(name, "").strip() for name in wire.region_envs)
    region = next((region for region in regions if _REGION.fullmatch(region)), "")
    return wire.regional_url.format(region=region) if region else wire.base_url


def provider_class_of(wire: Wire) -> Callable[..., Any]:
    """The class that speaks a wire; its module is imported now."""
    module, _, name = wire.provider.partition(":")
    return getattr(import_module(module), name)


def canonical_name(name: str, configured: Collection[str] = ()) -> str:
    """The provider that `name` stands for: a configured one, a wire in any case or by an alias, else `name` itself.

    >>> canonical_name("Claude"), canonical_name("OPENAI"), canonical_name("claude", ["claude"]), canonical_name("x")
    ('anthropic', 'openai', 'claude', 'x')
    """
    if name in configured or name in WIRES:
        return name
    lower = name.lower()
    known = ALIASES.get(lower, lower)
    return known if known in WIRES or known in configured else name


def family(name: str) -> Family | None:
    """The vendor family of a wire or local server, by any of its names. Local servers speak OpenAI's format.

    >>> family("vertexai-anthropic"), family("Claude"), family("ollama"), family("scripted"), family("unknown")
    ('anthropic', 'anthropic', 'openai', None, None)
    """
    wire = WIRES.get(canonical_name(name))
    return None if wire is None else wire.family


def family_by_name(name: str) -> Family | None:
    """The family with this name or alias, in any case; the names of other wires are not names of a family.

    >>> family_by_name("ChatGPT"), family_by_name("google"), family_by_name("openai-chat")
    ('openai', 'gemini', None)
    """
    lower = name.lower()
    found = family(lower)
    return found if lower == found or lower in ALIASES else None


class ProviderConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider is reached: enough for another process to reach it again, and never a key itself.

    `wire` is the API that the provider speaks, `api_key_env` the environment variable that holds the key. Pass configs
    as `retinue.open(provider_configs=[...])`; agents name their models `name:model`.

    >>> ProviderConfig(name="house", wire="openai-chat", base_url="http://localhost:8000/v1").api_key_env
    ''
    """

    name: str
    wire: str
    base_url: str = ""
    api_key_env: str = ""
    temperature: float | None = None
    headers: dict[str, str] = {}
    prices: dict[str, Rates] = {}
    context_window: int | None = None
    responses_wire: ResponsesWire | None = None
    full_url: bool = False
    """Whether `base_url` is the complete URL of requests, to which nothing is added."""
    calls_in_text: bool | None = None
    """Whether calls that a model writes as text are recognised; None for the default of the wire: local servers."""
    options: ModelOptions = NO_OPTIONS
    """Options of requests that neither the run nor its agent sets."""
    bearer: bool = False
    """Whether the key is a token that Anthropic's API wants as `Authorization: Bearer`."""
    prompt_cache_key: bool | None = None
    """Whether requests have a `prompt_cache_key`; by default at OpenAI's own address."""
    program: AgentProgram | None = None
    """The program of the wire `acp`."""


def provider_config(
    name: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    headers: Mapping[str, str] | None = None,
    prices: Mapping[str, Rates] | None = None,
    context_window: int | None = None,
    responses_wire: ResponsesWire | None = None,
    full_url: bool = False,
    calls_in_text: bool | None = None,
    options: ModelOptions = NO_OPTIONS,
    bearer: bool = False,
    prompt_cache_key: bool | None = None,
    program: AgentProgram | None = None,
) -> ProviderConfig:
    """The config of a provider, by the name of its wire or of a local server; what is not given is the wire's default.

    The vendor's key is sent to the vendor's address only: with another `base_url`, no key is sent unless `api_key_env`
    names its variable. With `full_url`, the address is the complete URL, and error messages use the field names of
    requests of `retinue call` and `retinue buzz`. Raises `UnknownName` for an unknown wire and `BadInput` for an
    unusable address or key variable.

    >>> provider_config("openai-chat", base_url="http://localhost:9/v1").api_key_env
    ''
    """
    check_key_variable(api_key_env, "api_key_name" if full_url else "api_key_env")
    if wire is None:
        name = wire = canonical_name(name)
    record = WIRES.get(wire)
    if record is None:
        raise UnknownName("provider", wire, tuple(WIRES))
    if responses_wire == "seed" and not record.seed_options:
        raise BadInput(f"responses_wire applies to the wire openai-responses only; the wire of {name!r} is {wire}")
    check_options(record, wire, options)
    if options.batch_hours:
        raise BadInput("batch_hours: set it for an agent or a run, which may take hours, and not for a provider")
    if bearer and not record.takes_bearer:
        raise BadInput(f"bearer applies to the wire anthropic only; the wire of {name!r} is {wire}")
    if (record.kind == "program") != (program is not None):
        raise BadInput(
            f"a command is for the wire acp; the wire of {name!r} is {wire}"
            if program is not None
            else f"the wire acp needs the command of an agent program: [providers.{name}] command in the settings"
        )
    if record.kind in ("script", "program"):
        if base_url:
            model = "a script file" if record.kind == "script" else "a program"
            raise BadInput(f"{wire} takes no base URL: it makes no requests, its model is {model}")
        if api_key_env and program is not None:
            raise BadInput(f"{wire} sends no key: name the variables that the program needs in env")
        return ProviderConfig(
            name=name,
            wire=wire,
            temperature=temperature,
            prices=dict(prices or {}),
            calls_in_text=calls_in_text,
            program=program,
        )
    address = base_url or default_address(record)
    if not address:
        raise BadInput(f"{wire} has no default address: give its base URL, such as {record.base_url_example}")
    if not address.startswith(("http://", "https://")):
        field = "url" if full_url else "base URL"
        raise BadInput(f"{field} {address!r} is not an address: it has to begin with http:// or https://")
    _check_address(address, full_url=full_url)
    is_vendors_own = address.rstrip("/") == default_address(record)
    key = api_key_env if api_key_env is not None else record.api_key_env if is_vendors_own else ""
    return ProviderConfig(
        name=name,
        wire=wire,
        base_url=address if full_url else address.rstrip("/"),
        api_key_env=key,
        temperature=temperature,
        headers=dict(headers or {}),
        prices=dict(prices or {}),
        context_window=context_window,
        responses_wire=responses_wire,
        full_url=full_url,
        calls_in_text=calls_in_text,
        options=NO_OPTIONS if options == NO_OPTIONS else options,  # the default itself is not stored
        bearer=bearer,
        prompt_cache_key=prompt_cache_key,
    )


def check_options(record: Wire, wire: str, options: ModelOptions) -> None:
    """Raise `BadInput` for an option that a wire does not have.

    >>> check_options(WIRES["anthropic"], "anthropic", ModelOptions(seed=7))
    Traceback (most recent call last):
    retinue.core.errors.BadInput: seed: the wire anthropic does not have it; it has batch_hours, betas, cache_ttl, \
effort, extra_body, extra_headers, max_output_tokens, parallel_tool_calls, service_tier, stop, stream, temperature, \
tool_choice, top_p
    """
    if record.kind == "script":
        return
    for name in set_options(options):
        if name not in record.supports:
            raise BadInput(f"{name}: the wire {wire} does not have it; it has {', '.join(sorted(record.supports))}")


def check_server_tools(config: ProviderConfig, model: str, tools: Sequence[ServerToolSpec], *, others: bool) -> None:
    """Raise `BadInput` for a server tool, or an option of one, that the wire of a provider does not have.

    `others` says whether the run has other tools as well, which older models of Google do not take with these.
    """
    record = WIRES[config.wire]
    if record.kind == "script":
        return
    for tool in tools:
        sent = record.server_tools.get(tool.kind)
        if sent is None:
            known = ", ".join(SERVER_PREFIX + kind for kind in record.server_tools if kind != "mcp") or "none"
            of_servers = " and remote MCP servers" if "mcp" in record.server_tools else ""
            raise BadInput(f"{tool.full_name}: the wire {config.wire} does not have it; it has {known}{of_servers}")
        if missing := [name for name in tool.options if name not in sent]:
            raise BadInput(f"{tool.full_name}: {missing[0]}: the wire {config.wire} does not have it")
        check_encrypted(config.base_url, tool.token_env, {})  # the token goes to the vendor with the request
        if tool.kind == "file_search" and not tool.stores:
            raise BadInput(f"{tool.full_name} needs stores: name them in [server_tools.file_search]")
    limited = [tool for tool in tools if tool.max_uses is not None]
    if limited and record.server_tools_share_limit and len(limited) < len(tools):
        raise BadInput(
            f"{limited[0].full_name}: max_uses: the wire {config.wire} has one limit for all server tools; set it for "
            "each of them"
        )
    if others and record.server_tools_alone and tools and re.match(record.server_tools_alone, model):
        raise BadInput(f"{tools[0].full_name}: the model {model} takes no other tools next to it; use a newer one")


def with_address(config: ProviderConfig, base_url: str | None, api_key_env: str | None) -> ProviderConfig:
    """The config with another key variable or base URL, where given; key and headers of an old address are dropped.

    >>> with_address(provider_config("openai", api_key_env="MINE"), "http://localhost:9/v1", None).api_key_env
    ''
    """
    is_new = base_url is not None and base_url.rstrip("/") != config.base_url
    key = config.api_key_env if api_key_env is None and not is_new else api_key_env
    return provider_config(
        config.name,
        wire=config.wire,
        base_url=base_url or config.base_url,
        api_key_env=key,
        temperature=config.temperature,
        headers={} if is_new else config.headers,
        prices=config.prices,
        context_window=config.context_window,
        responses_wire=config.responses_wire,
        full_url=config.full_url,
        calls_in_text=config.calls_in_text,
        options=config.options,
        bearer=config.bearer,
        prompt_cache_key=config.prompt_cache_key,
        program=config.program,
    )


def check_key_variable(name: str | None, field: str = "api_key_env") -> None:
    """Raise `BadInput` if `name` is no name of a variable; it may be the key itself, so it is not stored or printed.

    >>> check_key_variable("sk-1234567890")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: api_key_env: found a string of 13 characters; expected the name of an environment \
variable, never a key itself
    """
    if name and not _VARIABLE.fullmatch(name):
        raise BadInput(
            f"{field}: found a string of {len(name)} characters; expected the name of an environment variable, never a "
            "key itself"
        )


VENDOR_HOSTS: dict[str, str] = {
    **{wire.api_key_env: urlsplit(wire.base_url).hostname or "" for wire in WIRES.values() if wire.api_key_env},
    "AZURE_OPENAI_API_KEY": "openai.azure.com",
}
"""The key variables of vendors, each with the vendor's own host."""


def check_key_address(config: ProviderConfig, named: Collection[ProviderConfig] = ()) -> None:
    """Raise `BadInput` if the key of a config may not be sent to its address.

    A key is sent to this machine, to its vendor's own host, and to an address that the settings name in the same
    section as its variable: `named` are the providers of the settings. Beyond this machine it is sent over https only.

    >>> check_key_address(provider_config("openai", api_key_env="OPENAI_API_KEY"))
    >>> check_key_address(provider_config("openai", base_url="https://h.example", api_key_env="OPENAI_API_KEY"))
    Traceback (most recent call last):
    retinue.core.errors.BadInput: the key in OPENAI_API_KEY is not sent to h.example: the settings have to name both. \
Write a section [providers.NAME] with wire = "openai", base_url = "https://h.example" and api_key_env = \
"OPENAI_API_KEY" into retinue.toml, and choose it with --provider NAME
    """
    address = urlsplit(config.base_url)
    host = address.hostname or ""
    check_encrypted(config.base_url, config.api_key_env, config.headers)
    if (
        not config.api_key_env
        or is_loopback(host)
        or _is_vendors_host(config, host)
        or any(_names_both(each, config) for each in named)
    ):
        return
    base_url, note = config.base_url, "and choose it with --provider NAME"
    if config.full_url:
        base_url, note = f"{address.scheme}://{address.netloc}", "or send no key"
    raise BadInput(
        f"the key in {config.api_key_env} is not sent to {host}: the settings have to name both. Write a section "
        f'[providers.NAME] with wire = "{config.wire}", base_url = "{base_url}" and api_key_env = '
        f'"{config.api_key_env}" into retinue.toml, {note}'
    )


def _is_vendors_host(config: ProviderConfig, host: str) -> bool:
    wire = WIRES[config.wire]
    if wire.host_pattern and config.api_key_env == wire.api_key_env:
        return re.fullmatch(wire.host_pattern, host) is not None
    own = VENDOR_HOSTS.get(config.api_key_env) or wire.host or urlsplit(wire.base_url).hostname or ""
    return bool(own) and (host == own or host.endswith((f".{own}", f"-{own}") if own == wire.host else f".{own}"))


def _names_both(named: ProviderConfig, config: ProviderConfig) -> bool:
    there, here = urlsplit(named.base_url), urlsplit(config.base_url)
    same_place = (there.scheme, there.hostname, there.port) == (here.scheme, here.hostname, here.port)
    return same_place and named.api_key_env == config.api_key_env


def check_temperature(config: ProviderConfig, temperature: float | None) -> None:
    """Raise `BadInput` for a temperature that the wire of a provider does not take.

    >>> check_temperature(provider_config("anthropic"), 1.5)
    Traceback (most recent call last):
    retinue.core.errors.BadInput: temperature: found 1.5; expected a number from 0 to 1, as the wire anthropic takes it
    """
    most = WIRES[config.wire].max_temperature
    if temperature is not None and temperature > most:
        expected = f"expected a number from 0 to {most:g}, as the wire {config.wire} takes it"
        raise BadInput(f"temperature: found {temperature:g}; {expected}")


def _check_address(address: str, *, full_url: bool) -> None:
    """Raise `BadInput` for an address with a key in it: addresses are printed and stored, keys never are."""
    field = "url" if full_url else "base URL"
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:  # a malformed IPv6 address or port; the rest of it may be a secret and is not repeated
        raise BadInput(f"the {field} is not an address: what follows the // is no host with a port") from None
    parameters = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if "@" in parts.netloc or any(_SECRET.search(name) for name in parameters):
        example = '"api_key_name": "NAME"' if full_url else '--api-key-env NAME, api_key_env = "NAME"'
        raise BadInput(
            f"the {field} for {host} has a secret in it: put the key into an environment variable and name that "
            f"({example})"
        )


def create_provider(
    config: ProviderConfig,
    *,
    explicit: bool = False,
    programs: Callable[[], AgentPrograms] | None = None,
    agents_write: Callable[[], Sequence[str]] = tuple,
) -> Provider:
    """Import the provider class of a config and create the provider; its replies carry their cost.

    `programs` starts the program of a provider that has one. No program for credentials is started from the folders
    that `agents_write` gives. With `explicit`, requests to OpenAI's wires state their
    defaults too, and Responses continue from the previous response.
    """
    wire = WIRES[config.wire]
    windows, most = context_windows(config), config.options.max_output_tokens
    provider_class = provider_class_of(wire)
    if wire.kind in ("script", "program"):
        provider: Provider = _without_address(provider_class, config, programs)

        def check(request: Request) -> None:
            pass

    else:
        options: dict[str, object] = dict(wire.options)
        if config.full_url:
            options["full_url"] = True
        if config.bearer:
            options["bearer"] = True
        is_vendors_own = wire.caches_by_key and config.base_url == wire.base_url and not explicit
        if is_vendors_own if config.prompt_cache_key is None else config.prompt_cache_key:
            options["cache_key"] = True
        if explicit:
            options |= wire.explicit_options
        if config.responses_wire == "seed":
            options |= wire.seed_options
        if isinstance(quirks := options.get("quirks"), openai_chat.ChatQuirks) and quirks.max_output:
            options["longest_reply"] = windows.longest_reply
        made = provider_class(
            base_url=config.base_url, api_key_env=config.api_key_env or None, headers=dict(config.headers), **options
        )
        made.defaults = config.options
        made.agents_write = agents_write
        provider = made

        def check(request: Request) -> None:
            try:
                others = bool(request.tools or request.withheld_tools)
                check_server_tools(config, request.model, request.server_tools, others=others)
            except BadInput as wrong:
                raise ProviderError(str(wrong), fault="bad_request") from None

    def longest_reply(model: str) -> int | None:
        return windows.longest_reply(model) if most is None else most

    return PricedProvider(
        provider,
        model_prices(config),
        windows.window,
        longest_reply,
        calls_in_text=recognises_text_calls(config),
        server_tool_prices=wire.server_tool_prices,
        check=check,
        tier=_tier_prices(config),
    )


_TIERS = {"openai": openai_tier, "bedrock": bedrock_tier}


def _tier_prices(config: ProviderConfig) -> Callable[[str, str], float] | None:
    """The prices of tiers of service, at the vendor's own address."""
    tiers, host = WIRES[config.wire].tiers, urlsplit(config.base_url).hostname or ""
    return _TIERS[tiers] if tiers and _is_vendors_host(config, host) else None


def _without_address(
    provider_class: Callable[..., Any], config: ProviderConfig, programs: Callable[[], AgentPrograms] | None
) -> Provider:
    """A provider that makes no requests: a script, or an agent program, which `programs` starts."""
    if config.program is None:
        return provider_class()
    agent = provider_class(config.name, config.program)
    if programs is not None:
        agent.use(programs())
    return agent


def recognises_text_calls(config: ProviderConfig) -> bool:
    """Whether calls that a model of this provider writes as text are recognised: set, or on a local server.

    A local server has a name of its own, or speaks the format of those at an address of this machine. Other formats are
    left out there: what speaks them is mostly a proxy of a vendor.

    >>> recognises_text_calls(provider_config("ollama")), recognises_text_calls(provider_config("anthropic"))
    (True, False)
    >>> recognises_text_calls(provider_config("openai-chat", base_url="http://127.0.0.1:9000/v1"))
    True
    """
    if config.calls_in_text is not None:
        return config.calls_in_text
    # With the complete URL, requests and answers are those of `retinue call`, whose contract has no such calls.
    if config.full_url:
        return False
    wire = WIRES[config.wire]
    formats = {WIRES[name].provider for name in LOCAL_SERVERS}
    return wire.kind == "local" or (wire.provider in formats and is_loopback(urlsplit(config.base_url).hostname or ""))


def vendor_model(config: ProviderConfig) -> str | None:
    """The model of a vendor where none is named; None at any other address.

    >>> vendor_model(provider_config("anthropic"))
    'claude-sonnet-5'
    >>> vendor_model(provider_config("openai", base_url="http://localhost:9/v1"))
    """
    wire = WIRES[config.wire]
    return wire.default_model or None if config.base_url == default_address(wire) else None


def request_url(config: ProviderConfig, model: str) -> str:
    """The complete URL for a model, which requests of `retinue call` and `retinue buzz` need.

    >>> request_url(provider_config("ollama"), "qwen3")
    'http://localhost:11434/v1/chat/completions'
    >>> request_url(provider_config("anthropic", base_url="https://host/v1"), "m")
    'https://host/v1/messages'
    """
    if config.full_url:
        return config.base_url
    wire = WIRES[config.wire]
    base, _, query = config.base_url.partition("?")
    base = base.rstrip("/").removesuffix(wire.version_path)
    path = wire.request_path.format(model=model)
    url = base if base.endswith(path) else base + path
    return f"{url}?{query}" if query else url


def model_prices(config: ProviderConfig) -> ModelPrices:
    """The prices of a provider's models: the configured ones, else the list prices; zero on a local model server.

    >>> model_prices(provider_config("ollama")).price("qwen3")
    (0, 0)
    >>> model_prices(provider_config("openai-chat")).price("qwen3")
    """
    kind = WIRES[config.wire].kind
    is_on_this_machine = urlsplit(config.base_url).hostname in ("localhost", "127.0.0.1", "::1")
    # Any wire may have an address on this machine, such as a proxy's: only the name of a local server says it is free.
    is_free = kind == "script" or (kind == "local" and is_on_this_machine)
    return ModelPrices(config.prices, free=is_free, host=WIRES[config.wire].prices)


def context_windows(config: ProviderConfig) -> ContextWindows:
    """The context windows of a provider's models: the configured one, else the vendors'; unknown on a local server.

    >>> context_windows(provider_config("ollama")).window("gpt-4o")
    >>> context_windows(provider_config("ollama", context_window=8192)).window("qwen3")
    8192
    """
    wire = WIRES[config.wire]
    return ContextWindows(config.context_window, listed=wire.kind == "vendor", host=wire.prices)


def api_key_variables(environ: Mapping[str, str] | None = None) -> dict[str, bool]:
    """The vendors' key variables, each with whether it is set; the keys themselves are not returned."""
    environment = os.environ if environ is None else environ
    return {
        wire.api_key_env: bool(environment.get(wire.api_key_env))
        for wire in WIRES.values()
        if wire.api_key_env and wire.found_by_key
    }
