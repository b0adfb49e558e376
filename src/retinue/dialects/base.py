"""What a dialect is: the base class of dialects, and the record with which a dialect's package registers itself.

The record (`DialectEntry`) has everything that other packages need to know about a dialect before one is made, and the
optional capabilities that the application and the front ends ask for. Importing a dialect's package gives its record
and loads nothing of the engine; what is heavy is `Deferred`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from retinue.core.ports import Tool

if TYPE_CHECKING:
    from retinue.core.agent import Agent, ToolKind
    from retinue.core.events import RunAccepted
    from retinue.core.ids import RunId
    from retinue.core.ports import Provider
    from retinue.core.run import Outcome
    from retinue.dialects.context import DialectContext, ProviderHost
    from retinue.engine import RunView, Supervisor

T = TypeVar("T")


# ---- a dialect at work ----------------------------------------------------------------------------------------------


class Dialect(ABC):
    """A set of tools with which a model delegates, and the texts that explain them to it.

    A dialect keeps no state of its own: tasks are runs of the engine, and what has to be remembered is in the store.
    Only `name` and `tools` have no default.
    """

    name: str
    """The dialect's name, as settings and `--dialect` spell it."""

    @abstractmethod
    def tools(self) -> Mapping[str, Tool]:
        """Every tool that this dialect can offer, by name, in the order of its document."""

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """The tools that a run at this depth is offered because of the dialect: by default all, to the root alone."""
        return tuple(self.tools()) if depth == 0 else ()

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """What the root's system text says about these tools, given the registered agents; empty for nothing."""
        return ""

    def around(self, tool: Tool) -> Tool:
        """The tool as runs with this dialect call it: by default unchanged, else with a wrapper such as a log."""
        return tool

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """The tools of an agent that names none; its policy may take some of them away."""
        return ()

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str | None:
        """The message to a parent's model about a child that has ended; None for the engine's own text."""
        return None

    def handover(self, outcome: Outcome) -> tuple[bool, str] | None:
        """What dependent tasks receive from a task that has ended: whether it succeeded, and its result or the reason.

        None for the engine's own text.
        """
        return None


class DialectTool(Tool):
    """Base class of the dialects' tools.

    After a crash a call is made again and finds by its key what it had begun. The risk is low: what the runs that it
    starts do is assessed when they do it.
    """

    kind: ToolKind = "keyed"


# ---- registration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deferred(Generic[T]):
    """An object by its place, `module:attribute`; the module is imported when the object is needed."""

    place: str

    def load(self) -> T:
        """The object itself."""
        module, _, attribute = self.place.partition(":")
        return getattr(import_module(module), attribute)


Complaints: TypeAlias = Sequence[tuple[str, str]]
"""Mistakes in a section of the settings: each key with its complaint."""


def _no_cross_key_errors(settings: Any) -> Complaints:
    return ()


def _no_unknown_providers(settings: Any, providers: Sequence[str]) -> Complaints:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSection:
    """The section of the settings file that belongs to a dialect; `type` has a default for every key."""

    name: str
    type: type[Struct]
    about: str
    cross_key_errors: Callable[[Any], Complaints] = _no_cross_key_errors
    """Checks between several keys."""
    unknown_providers: Callable[[Any, Sequence[str]], Complaints] = _no_unknown_providers
    """Checks of keys that name a provider, given the providers that the file describes."""
    has_complete_messages: bool = False
    """Whether the dialect's document prescribes the messages of both checks, printed without the key in front."""


class NamedPrompt(NamedTuple):
    """A system prompt that has a name, and the tools that are offered with it."""

    text: str
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelegation:
    """How a chat switches delegation on and off in a dialect."""

    enabled: str
    disabled: str
    """What the user reads when it was switched."""
    words: tuple[str, ...]
    """A prompt that contains one of these, in lower case, asks for delegation."""
    starts_on: Callable[[Any], bool]
    """Whether the dialect's settings let a chat begin with delegation switched on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTexts:
    """The messages of `PolicyError` for a run that asks for more than its parent or agent has."""

    escalation: str
    """With the field `refusal`."""
    memory: str
    """With the field `alias`: an agent whose memory the parent may not read, in quotes."""


class CronTexts(Protocol):
    """The texts of scheduled jobs: prompts, refusals and log lines."""

    def prompt(self, job: str, prompt: str, memories: Sequence[tuple[str, str]]) -> str:
        """The first message of a job's run, with the memories (key and content) that were recalled for it."""
        ...

    def blocked(self, reason: str) -> str:
        """Why a job is not done: `reason` is a rule of its policy."""
        ...

    def tool_refusal(self, text: str) -> str:
        """What a tool said that refused a job's command, in the words of `blocked` if its policy was the reason."""
        ...

    def unknown_agent(self, alias: str) -> str:
        """Why a job is not done whose agent is not configured."""
        ...

    def spawn_failed(self, reason: str) -> str:
        """Why a job is not done whose run could not be started."""
        ...

    def span(self, agent: str, job: str, run_id: RunId | None) -> str:
        """The fields with which every log line of a job begins."""
        ...


class Transcripts(Protocol):
    """Kept conversations of a dialect's subagents, as the text that `retinue replay` prints."""

    async def listing(self, *, limit: int, offset: int) -> str:
        """One page of all conversations, newest first."""
        ...

    async def conversation(self, run_id: RunId) -> str | None:
        """One conversation with its messages; None if none of that id is kept."""
        ...

    async def tree(self, run_id: RunId | None, *, limit: int, offset: int) -> str | None:
        """Which subagent started which, below `run_id` or, page by page, below all roots; None as above."""
        ...


MakeTranscripts: TypeAlias = "Callable[[Supervisor, Callable[[str], str]], Transcripts]"
"""Given the store's supervisor and a function that makes a text safe for a terminal."""

MakeProvider: TypeAlias = "Callable[[str], Provider | None]"
"""Gives a provider that uses the models of another one, by that one's name; None where this is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcesses:
    """Providers that answer from child processes (`retinue call`), and the rules of the requests these processes read.

    A provider `kind:NAME` uses the models of the provider NAME.
    """

    kind: str
    make: Deferred[Callable[[ProviderHost, Any], MakeProvider]]
    """Given what such providers need and the dialect's settings (None for the defaults)."""
    tools: Deferred[Callable[[Sequence[str] | None], tuple[str, ...]]]
    """The tools that a request may name, out of those that it names; raises `Refused` for any other."""


class DialectFactory(Protocol):
    """A dialect's class."""

    def __call__(self, dialect_context: DialectContext, settings: Any = ..., /) -> Dialect:
        """The dialect with these settings, or with its defaults."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectEntry:
    """The registration of a dialect; every package of a dialect has one, `DIALECT`.

    `tool_names` are the names of all tools that the dialect can offer with any settings. The capabilities below
    `settings` are None or empty where a dialect does not have them.
    """

    name: str
    tool_names: tuple[str, ...]
    factory: Deferred[DialectFactory]
    settings: SettingsSection | None = None
    prompts: Mapping[str, NamedPrompt] = field(default_factory=dict[str, NamedPrompt])
    """Prompts that `retinue run --system NAME` knows by name."""
    chat: ChatDelegation | None = None
    cron: CronTexts | None = None
    policy_texts: PolicyTexts | None = None
    processes: ChildProcesses | None = None
    transcripts: Deferred[MakeTranscripts] | None = None
    cancelled_notice: Deferred[Callable[[Iterable[RunView]], str | None]] | None = None
    """A line about tasks of a tree that were still running when its root ended, given the runs of the tree."""

    def make(self, dialect_context: DialectContext, settings: object = None) -> Dialect:
        """The dialect, with its own settings if there are any."""
        factory = self.factory.load()
        return factory(dialect_context) if settings is None else factory(dialect_context, settings)
