"""Agent definitions, tool specifications and run specs: immutable, shared by many runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from retinue.core.errors import BadInput
from retinue.core.model_options import NO_OPTIONS, NO_REQUEST_OPTIONS, Effort, ModelOptions, RequestOptions
from retinue.core.policy import Policy, RuntimeProfile
from retinue.core.run import Limits
from retinue.core.text import quote_headers

DEFAULT_AGENT = "main"
"""The name of the agent of a root run that names none."""

ToolKind = Literal["pure", "idempotent", "keyed", "once"]
"""What recovery does with a call that a crash interrupted.

`pure` and `idempotent` calls run again. `keyed` calls are entered again with the same key and continue what they began.
`once` calls never run again: the model reads that they were interrupted and may have happened.
"""

Placement = Literal["tree", "anywhere"]
"""Where the runs of an agent are driven: with the tree of their parent, or by any worker."""


SERVER_PREFIX = "server:"
"""Begin of the names of tools that a model's vendor runs on its own servers."""


def is_server_tool(name: str) -> bool:
    """Whether a tool's name is that of a server tool.

    >>> is_server_tool("server:web_search"), is_server_tool("web_search")
    (True, False)
    """
    return name.startswith(SERVER_PREFIX)


def split_model(
    model: str, known: Collection[str] | None = None, canonical: Callable[[str], str] = str
) -> tuple[str | None, str]:
    """Provider and name of a model that is written `provider:name`; None and the whole text if it names no provider.

    `canonical` maps the name of a provider, as a person wrote it, to one of `known`. A text before the colon that is
    none of `known` is part of the model's name; with None every text is taken for a provider.

    >>> split_model("vllm:qwen3", ["vllm"]), split_model("qwen3:8b", ["vllm"]), split_model("vllm:qwen3:8b")
    (('vllm', 'qwen3'), (None, 'qwen3:8b'), ('vllm', 'qwen3:8b'))
    """
    provider, colon, name = model.partition(":")
    provider = canonical(provider)
    return (provider, name) if colon and (known is None or provider in known) else (None, model)


class ToolSpec(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool as offered to a model; `parameters` is a JSON Schema, kept as JSON text so that it is encoded once."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'


if TYPE_CHECKING:
    ToolNames: TypeAlias = tuple[Any, ...]
else:
    ToolNames = tuple[str, ...]
"""The tools of an agent: names. Tools and functions may be given to the constructor; `retinue.open` registers them."""


def wrong_type(owner: str, name: str, value: object, expected: type | tuple[type, ...]) -> BadInput:
    """The error for a value of a wrong type, with what was expected.

    >>> str(wrong_type("Agent", "model", 7, str))
    'Agent: model=7 is an int; expected a str'
    """
    kinds = expected if isinstance(expected, tuple) else (expected,)
    names = [("None" if kind is NoneType else _with_article(kind.__name__)) for kind in kinds]
    found = _with_article(type(value).__name__)
    return BadInput(f"{owner}: {name}={value!r:.80} is {found}; expected {' or '.join(names)}")


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


class Agent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent: its system prompt, tools, model and limits.

    `tools` are names of tools, or tools and functions themselves, which `retinue.open` registers for it.

    `model` is `wire:name`, or a bare name at the provider of the parent run; empty means the parent's model. `fallback`
    lists the models to call, in order, when `model` is unavailable. Dialects differ in the tools of an agent whose
    `tools` is empty; with `no_tools` it has none in any dialect.

    `policy` is what the agent may do (None: the parent's policy), `runtime` its runtime profile. `workspace` is its
    working folder. `memory_from` names agents whose memory it may read besides its own; `memory` overrides the memory
    backend. `think` enables reasoning on models that support it. Only a worker with all `tags` drives its runs; with
    `placement` anywhere a worker leaves its runs to any worker, otherwise a run is driven where its parent is.

    `effort` is how much its model thinks, `max_output_tokens` the longest reply, and `options` has further options of
    requests. They hold for the agent wherever it runs. With `isolation` worktree it works in a git worktree of its own
    when another run starts it, and hands back a branch. With `background` it works in the background where another run
    starts it by a tool that can do both.

    `read_only` and `excluded_tools` take rights from it: calls with effects, and tools, are refused
    whatever its policy and its caller allow.

    >>> Agent(name="writer", description="Drafts reports", system_prompt="You write.").max_turns is None
    True
    """

    name: str
    description: str = ""
    system_prompt: str = ""
    tools: ToolNames = ()
    model: str = ""
    fallback: tuple[str, ...] = ()
    max_turns: int | None = None
    limits: Limits = Limits()
    policy: Policy | None = None
    runtime: RuntimeProfile = RuntimeProfile()
    workspace: str = ""
    memory_from: tuple[str, ...] = ()
    memory: Literal["sqlite", "postgres", "markdown", "workspace", "none"] | None = None
    think: bool = False
    no_tools: bool = False
    effort: Effort | None = None
    max_output_tokens: int | None = None
    options: ModelOptions = NO_OPTIONS
    tags: tuple[str, ...] = ()
    placement: Placement = "tree"
    isolation: Literal["worktree"] | None = None
    background: bool = False
    read_only: bool = False
    excluded_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tools", "fallback", "memory_from", "tags", "excluded_tools"):
            value: object = getattr(self, name)
            if not isinstance(value, tuple):  # callers pass lists
                if isinstance(value, str) or not isinstance(value, Iterable):
                    expected = f"write {name}=({value!r},)" if isinstance(value, str) else "expected a tuple of names"
                    raise BadInput(f"Agent: {name}={value!r} is a {type(value).__name__}: {expected}")
                msgspec.structs.force_setattr(self, name, tuple(cast("Iterable[object]", value)))
        for name, expected in _AGENT_TYPES:
            if not isinstance(value := getattr(self, name), expected):
                raise wrong_type("Agent", name, value, expected)
        if self.effort is not None or self.max_output_tokens is not None:
            given = ModelOptions(effort=self.effort, max_output_tokens=self.max_output_tokens)
            msgspec.structs.force_setattr(self, "options", given.over(self.options))

    def limits_with(self, max_turns: int | None) -> Limits:
        return msgspec.structs.replace(self.limits, max_turns=max_turns)


_AGENT_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("name", str),
    ("description", str),
    ("system_prompt", str),
    ("model", str),
    ("max_turns", (int, NoneType)),
    ("limits", Limits),
    ("policy", (Policy, NoneType)),
    ("runtime", RuntimeProfile),
    ("workspace", str),
    ("background", bool),
    ("read_only", bool),
)


class Output(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Required form of the final answer: JSON that matches a schema (kept as JSON text), or any JSON object.

    >>> Output().in_words
    'Give your final answer as one JSON object, and nothing else.'
    """

    mode: Literal["json_schema", "json_object"] = "json_object"
    schema: str = ""
    name: str = "structured_output"

    @property
    def in_words(self) -> str:
        """The requirement as prompt text, for wires whose API has no field for it."""
        if self.mode == "json_object":
            return "Give your final answer as one JSON object, and nothing else."
        return f"Give your final answer as JSON that matches this JSON Schema, and nothing else:\n{self.schema}"


class ValidatedOutput(Struct, frozen=True, omit_defaults=True):
    """Result of validating a final answer against `Output`: the decoded value, or the error."""

    value: object = None
    error: str = ""


RESULTS_PLACEHOLDER = "\x1eresults\x1e"
"""Placeholder in a system text for the results of a run's dependencies, which are not known when it is written."""


class RunSpec(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The part of a run's definition that sibling runs share, so that a thousand siblings store it once.

    Stored as a blob named by its hash. `system` is the complete system text as sent; `offered` the tools shown to the
    model, in order; `dialects` the sources of delegation tools; `output` the required form of the final answer;
    `fallback` the (provider, model) pairs to call when the first is unavailable. `options` are options of requests that
    only some vendors have. `launch_config` is what the
    application needs to resume a root run in another process; the engine does not read it. `workspace` is the run's
    working folder, `identity` the owner of its memory (empty: its agent), `memory_from` further memories it may read.
    `tool_ceiling` lists the only tools that this run and every run below it may have; None is no such limit. A worker
    drives the run only if it has all `tags`, and takes waiting runs of a higher `priority` first.
    """

    agent: str
    system: str = ""
    offered: tuple[str, ...] = ()
    dialects: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    fallback: tuple[tuple[str, str], ...] = ()
    max_output: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    think: bool = False
    effort: Effort | None = None
    options: RequestOptions = NO_REQUEST_OPTIONS
    output: Output | None = None
    launch_config: str = field(default="", name="setup")
    workspace: str = ""
    identity: str = ""
    memory_from: tuple[str, ...] = ()
    tool_ceiling: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0

    @property
    def thinks(self) -> bool:
        """Whether its requests ask for thinking."""
        return self.effort != "none" if self.effort else self.think

    def system_with(self, results: Sequence[tuple[str, str]]) -> str:
        """The system text with `RESULTS_PLACEHOLDER` replaced by (name, result) of each dependency."""
        if RESULTS_PLACEHOLDER not in self.system:
            return self.system
        rendered = "\n\n".join(f"[{name}]\n{quote_headers(text)}" for name, text in results)
        return self.system.replace(RESULTS_PLACEHOLDER, rendered)

    def digest(self) -> str:
        """The hash under which the store keeps this run spec."""
        return blob_hash(msgspec.json.encode(self))


def blob_hash(body: bytes) -> str:
    """The SHA-256 of `body` in hexadecimal: the name of a blob."""
    return hashlib.sha256(body).hexdigest()
