"""The registration record of a wire: its provider class, default address, key variable and options.

Each wire's package exports its records from `__init__.py`, and `catalog.WIRES` lists them. A record names the provider
class as `module:class`, so that listing the wires imports neither an HTTP client nor a codec.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.model_options import MAX_TEMPERATURE

Family: TypeAlias = Literal["anthropic", "openai", "gemini", "bedrock"]
"""The vendor whose request format a wire speaks."""


COMMON_OPTIONS = frozenset(
    ("effort", "max_output_tokens", "temperature", "top_p", "tool_choice", "stream", "extra_body", "extra_headers")
)
"""The options that nearly every wire sends."""


class Wire(Struct, frozen=True, kw_only=True):
    """A request format, the provider class that speaks it, and the address that it uses by default."""

    provider: str
    """The provider class, as `module:class`."""
    kind: Literal["vendor", "local", "script", "program"] = "vendor"
    """`vendor`: a hosted API. `local`: a model server on this machine, free of charge. `script`: plays a file.
    `program`: an agent program on this machine. The last two have no address."""
    family: Family | None = None
    base_url: str = ""
    """The default address; empty for a vendor that has another address for every customer."""
    base_url_example: str = ""
    """An example of such an address, for error messages."""
    api_key_env: str = ""
    """The environment variable of the vendor's key; it is sent to `base_url` only."""
    default_model: str = ""
    """The vendor's model where none is named: a current one of middle price."""
    host: str = ""
    """The end of the vendor's hosts, where every customer has another address."""
    host_pattern: str = ""
    """A regular expression of the vendor's hosts, where they differ in the middle."""
    regional_url: str = ""
    """The address in a `{region}`, which the first of `region_envs` names that is set; without one, `base_url`."""
    region_envs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other names of the vendor that a user may give."""
    models_path: str = ""
    """What is added to the base URL, without its version, for the list of models; empty if the vendor has none."""
    models_query: str = ""
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    fixed_headers: dict[str, str] = {}
    """Headers that the vendor requires in every request."""
    call_name: str = ""
    """The name of this wire in requests of `retinue call`; empty if that command does not support it."""
    request_path: str = ""
    """What `retinue call` adds to the base URL; `{model}` stands for the model."""
    version_path: str = ""
    """The beginning of `request_path` that a base URL may already end with."""
    explicit_options: dict[str, object] = {}
    """Options of the provider class that make requests state their defaults."""
    max_temperature: float = MAX_TEMPERATURE
    options: dict[str, object] = {}
    """Options of the provider class for this name, such as the quirks of a server."""
    supports: frozenset[str] = frozenset()
    """The names in `ModelOptions` that the wire sends."""
    server_tools: dict[str, tuple[str, ...]] = {}
    """The kinds of tools that the vendor runs itself, each with the options in `ServerToolSpec` that the wire sends."""
    server_tool_prices: dict[str, int] = {}
    """Nanodollars for one use of such a tool, where the vendor counts the uses and charges for them."""
    server_tools_share_limit: bool = False
    """Whether the sum of `max_uses` is sent, because the vendor has one limit for all of its tools."""
    server_tools_alone: str = ""
    """A pattern of models that take no other tools next to server tools."""
    caches_by_key: bool = False
    """Whether requests to the default address have a `prompt_cache_key`."""
    prices: str = ""
    """The name in `hosts.json` of a vendor that serves models of others; empty if the vendors' list prices hold."""
    tiers: Literal["", "openai", "bedrock"] = ""
    """Whose prices for tiers of service hold at the vendor's own addresses."""
    found_by_key: bool = True
    """Whether the vendor is chosen where its key is set and no provider is named."""
    finds_credentials: bool = False
    """Whether the provider finds other credentials where the variable of the key is not set."""
    secret_envs: tuple[str, ...] = ()
    """The variables of these credentials, as far as they are secret."""
    takes_bearer: bool = False
    """Whether the key may be a token that is sent as `Authorization: Bearer`."""
    seed_options: dict[str, object] = {}
    """Options of the provider class for `responses_wire = "seed"`; empty if the wire has no such spelling."""
