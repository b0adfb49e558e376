"""Who works: an agent's description, immutable and shared by all of its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field

from retinue.core.policy import Policy
from retinue.core.profiles import RuntimeProfile
from retinue.core.run import Limits

ToolKind = Literal["pure", "idempotent", "keyed", "once"]
"""What may happen to a call that a crash interrupted.

`pure` and `idempotent` calls run again, `keyed` ones are entered again and find what they had begun, `once` calls never
run again: the model reads that they were interrupted and may have happened.
"""


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
    """A tool as a model sees it; `parameters` is a JSON Schema, kept as its JSON text so that it is encoded once."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'


class Agent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A specialist: its prompt, the names of its tools, its model and how long it may work.

    `model` is `wire:name`, or a bare name that runs on the provider of whoever starts it; empty means the starter's
    own. `fallback` are the models to ask, in this order, when that one cannot be had. Dialects differ in what an agent
    has that names no tools; with `no_tools` it has none in any of them.

    `policy` is what it may do (None: what whoever starts it may), `runtime` how it works. `workspace` is the folder it
    works in, and `memory_from` are the agents whose memory it may read besides its own; `memory` says how its own is
    kept, where that differs from the others'. With `think` it reasons, where its model can.

    >>> Agent(name="writer", description="Drafts reports", system_prompt="You write.").max_turns is None
    True
    """

    name: str
    description: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    model: str = ""
    fallback: tuple[str, ...] = ()
    max_turns: int | None = None
    limits: Limits = Limits()
    policy: Policy | None = None
    runtime: RuntimeProfile = RuntimeProfile()
    workspace: str = ""
    memory_from: tuple[str, ...] = ()
    memory: Literal["sqlite", "markdown", "none"] | None = None
    think: bool = False
    no_tools: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tools, tuple):  # pyright: ignore[reportUnnecessaryIsInstance] lists are what people write
            msgspec.structs.force_setattr(self, "tools", tuple(self.tools))
        if not isinstance(self.fallback, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            msgspec.structs.force_setattr(self, "fallback", tuple(self.fallback))
        if not isinstance(self.memory_from, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            msgspec.structs.force_setattr(self, "memory_from", tuple(self.memory_from))

    def limits_with(self, max_turns: int | None) -> Limits:
        """The agent's limits, with this many turns."""
        return msgspec.structs.replace(self.limits, max_turns=max_turns)


class Output(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What the final answer has to be: JSON of a schema (kept as its JSON text), or any JSON object.

    >>> Output().in_words
    'Give your final answer as one JSON object, and nothing else.'
    """

    mode: Literal["json_schema", "json_object"] = "json_object"
    schema: str = ""
    name: str = "structured_output"

    @property
    def in_words(self) -> str:
        """The demand as a text for the model, for a wire that has no field for it."""
        if self.mode == "json_object":
            return "Give your final answer as one JSON object, and nothing else."
        return f"Give your final answer as JSON that matches this JSON Schema, and nothing else:\n{self.schema}"


class ValidatedOutput(Struct, frozen=True, omit_defaults=True):
    """A final answer held against what was demanded: its value, or what is wrong with it."""

    value: object = None
    error: str = ""


RESULTS = "\x1eresults\x1e"
"""Where in a system text the results of the runs stand that a run waits for; they are not known when it is written."""


class RunSpec(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Everything about a run that its siblings share, so that a thousand of them store and hold it once.

    It is kept in the store as a blob named by its hash. `system` is the whole system text as sent, assembled by whoever
    started the run; `offered` the tools the model is shown, in order; `dialects` where delegation tools come from.
    `output` is what the final answer has to be, where that is more than words. `fallback` names providers and models
    that are asked in the place of the first when it cannot be had.
    `setup` is what the application needs to go on with a root run in another process; the engine does not look inside.
    `workspace` is the folder that the run works in, `identity` whose memory it has (its agent's, when empty) and
    `memory_from` whose it may read besides.
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
    think: bool = False
    output: Output | None = None
    launch_config: str = field(default="", name="setup")
    workspace: str = ""
    identity: str = ""
    memory_from: tuple[str, ...] = ()

    def system_with(self, results: Sequence[tuple[str, str]]) -> str:
        """The system text, with the results of the runs that this one waited for in the place that is kept for them."""
        if RESULTS not in self.system:
            return self.system
        told = "\n\n".join(f"[{name}]\n{text}" for name, text in results)
        return self.system.replace(RESULTS, told)

    def digest(self) -> str:
        """The name of this brief in the store."""
        return blob_hash(msgspec.json.encode(self))


def blob_hash(body: bytes) -> str:
    """The name of a blob: the SHA-256 of its bytes."""
    return hashlib.sha256(body).hexdigest()
