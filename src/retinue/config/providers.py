"""The section `[providers.<name>]`: wire, address, API key variable and prices of a model provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config import model_options as keys
from retinue.config.section_type import NamedTables, Section
from retinue.providers.acp import AgentProgram
from retinue.providers.pricing import Rates

HttpUrl = Annotated[
    str, Meta(pattern=r"\Ahttps?://[^\s/]", extra={"expected": "an address that begins with http:// or https://"})
]
OptionalVariable = Annotated[
    str,
    Meta(
        pattern=r"\A([A-Za-z_][A-Za-z0-9_]*)?\Z",
        # An API key pasted here by mistake must not appear in a terminal or log.
        extra={"expected": "the name of an environment variable, never a key itself", "secret": True},
    ),
]
HeaderText = Annotated[
    str, Meta(pattern=r"\A[^\x00-\x08\x0a-\x1f\x7f]*\Z", extra={"expected": "a string on one line", "secret": True})
]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]


class PriceSettings(Struct, frozen=True, kw_only=True):
    """Price of one model, in dollars per million tokens."""

    input: Annotated[Dollars, Meta(description="A million tokens of input.")]
    output: Annotated[Dollars, Meta(description="A million tokens of output.")]
    cached: Annotated[Dollars | None, Meta(description="A million tokens of cached input.")] = None
    cache_write: Annotated[
        Dollars | None, Meta(description="A million tokens of input written to the vendor's cache.")
    ] = None

    def rates(self) -> Rates:
        return Rates(input=self.input, output=self.output, cached=self.cached, cache_write=self.cache_write)


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """A configured provider; None means the default of its wire."""

    wire: Annotated[
        str, Meta(description="Its protocol; not needed if the provider's name is a wire's.", examples=["openai-chat"])
    ]
    base_url: Annotated[HttpUrl | None, Meta(description="Its base URL.", examples=["http://localhost:8000/v1"])] = None
    api_key_env: Annotated[
        OptionalVariable | None,
        Meta(
            description='The environment variable that holds its key, never the key itself; "" sends none.',
            examples=["LOCAL_API_KEY"],
        ),
    ] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Its model where none is named.", examples=["qwen3"]),
    ] = None
    effort: keys.EffortValue = None
    max_output_tokens: keys.MaxOutputTokens = None
    temperature: keys.Temperature = None
    top_p: keys.TopP = None
    stop: keys.StopTexts = ()
    seed: keys.Seed = None
    service_tier: keys.ServiceTier = None
    tool_choice: keys.ToolChoice = None
    parallel_tool_calls: keys.ParallelToolCalls = None
    cache_ttl: keys.CacheTtl = None
    stream: keys.Stream = None
    betas: keys.Betas = ()
    extra_body: keys.ExtraBody = {}
    headers: Annotated[
        Mapping[str, HeaderText],
        Meta(description="Sent with every request.", examples=[{"X-Team": "search"}], extra={"secret": True}),
    ] = {}
    prices: Annotated[
        Mapping[str, PriceSettings],
        Meta(
            description="Dollars per million tokens, by model; overrides retinue's list prices.",
            examples=[{"qwen3": {"input": 0.2, "output": 0.6, "cached": 0.02}}],
            extra={"expected": "a table of models, each with its price"},
        ),
    ] = {}
    context_window: Annotated[
        Annotated[int, Meta(ge=1024, le=100_000_000)] | None,
        Meta(description="Context window of its models in tokens; overrides what retinue knows.", examples=[32768]),
    ] = None
    responses_wire: Annotated[
        Literal["live", "seed"] | None,
        Meta(
            description="How openai-responses writes calls: live as function_call, seed as tool_call.",
            examples=["live"],
        ),
    ] = None

    calls_in_text: Annotated[
        bool | None,
        Meta(
            description="Whether calls that a model writes as text are recognised; on for local servers by default.",
            examples=[True],
        ),
    ] = None
    bearer: Annotated[
        bool,
        Meta(description="anthropic: the key is a token, sent as Authorization: Bearer.", examples=[False]),
    ] = False
    command: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="acp: the agent program and its arguments.", examples=[["gemini", "--acp"]]),
    ] = ()
    env: Annotated[
        tuple[OptionalVariable, ...],
        Meta(
            description="acp: environment variables that the program is given, by name.", examples=[["GEMINI_API_KEY"]]
        ),
    ] = ()
    sandbox: Annotated[
        bool,
        Meta(description="acp: whether the program runs in the sandbox; needs [tools] sandbox.", examples=[True]),
    ] = True
    readable: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="acp: files and folders that the program can read in the sandbox.", examples=[["~/.npm-global"]]
        ),
    ] = ()
    writable: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="acp: folders that the program can write in the sandbox.", examples=[["~/.gemini"]]),
    ] = ()
    prompt_cache_key: Annotated[
        bool | None,
        Meta(
            description="OpenAI's wires: whether requests have a prompt_cache_key; by default at OpenAI's address.",
            examples=[True],
        ),
    ] = None

    def program(self) -> AgentProgram | None:
        """The program of an agent; None if the settings name none."""
        if not self.command:
            return None
        return AgentProgram(
            command=self.command, env=self.env, sandbox=self.sandbox, readable=self.readable, writable=self.writable
        )

    def rates(self) -> dict[str, Rates]:
        return {model: priced.rates() for model, priced in self.prices.items()}


def providers_section(
    wires: Sequence[str],
    cross_key_errors: Callable[[ProviderSettings], Sequence[tuple[str, str]]] = lambda provider: (),
) -> Section:
    """The section, given the known wires; a provider with the name of a wire changes that wire's defaults.

    `cross_key_errors` checks a provider against its wire, which this package does not know.
    """
    return Section(
        name="providers",
        type=ProviderSettings,
        about="Providers, for models written PROVIDER:NAME and for --provider; a wire's name changes its defaults.",
        named=NamedTables(example="local", pattern=r"[A-Za-z0-9_-]{1,64}", expected="1 to 64 letters, digits, _ and -"),
        choices={"wire": wires},
        implied=lambda name: {"wire": name} if name in wires else {},
        cross_key_errors=cross_key_errors,
    )
