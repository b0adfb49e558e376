"""The base classes of dialects and their tools, and `DialectEntry`, with which a dialect's package registers itself.

An entry has what other packages need to know about a dialect before one is made, and the optional capabilities that the
application and the front ends ask for. Importing a dialect's package gives its entry and loads nothing of the engine;
heavy objects are `Deferred`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct

from retinue.core.ports import Tool

if TYPE_CHECKING:
    from retinue.core.agent import Agent, ToolKind
    from retinue.core.events import RunAccepted
    from retinue.core.ids import RunId
    from retinue.core.ports import Provider
    from retinue.core.run import Outcome
    from retinue.core.state import Run
    from retinue.dialects.context import DialectContext, ProviderHost
    from retinue.dialects.settings_translation import SettingsTranslation
    from retinue.engine import RunView, Supervisor

T = TypeVar("T")


class Dialect(ABC):
    """A set of tools with which a model delegates, and the texts that explain them to the model.

    A dialect keeps no state: tasks are runs of the engine, and what has to be remembered is in the store. Only `name`
    and `tools` have no default.

    A program passes an object of its own subclass to `retinue.open(dialects=[...])`; a package offers its class as an
    entry point of the group `retinue.dialects`, under the dialect's name. Its tools start runs with
    `CallContext.spawn`.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, says
    >>> @retinue.tool(kind="keyed", waits=True)
    ... async def ask(agent: str, question: str, context: retinue.CallContext) -> str:
    ...     "Ask a colleague."
    ...     return (await (await context.spawn(question, agent=agent)).wait()).text
    >>> class Colleagues(retinue.Dialect):
    ...     name = "colleagues"
    ...     def tools(self):
    ...         return {"ask": ask}
    >>> script = Script().play("main", calls("ask", agent="dba", question="How many?"), says("Ten, I hear."))
    >>> model = ScriptedProvider(script.play("dba", says("Ten.")))
    >>> async def main() -> None:
    ...     async with retinue.open(
    ...         provider=model, agents=[retinue.Agent(name="dba")], dialects=[Colleagues()], home=retinue.MEMORY
    ...     ) as r:
    ...         print((await r.run("How large is the pool?")).text)
    >>> asyncio.run(main())
    Ten, I hear.
    """

    name: str
    """The dialect's name, as settings and `--dialect` spell it."""

    @abstractmethod
    def tools(self) -> Mapping[str, Tool]:
        """Every tool that this dialect can offer, by name, in the order of its document."""

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """The tools that the dialect offers to a run at this depth: by default all to the root, none below it.

        A run below the root that was started with `CallContext.spawn` is offered those of its depth, too.
        """
        return tuple(self.tools()) if depth == 0 else ()

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """The part of the root's system text about these tools, given the registered agents; may be empty."""
        return ""

    def wrapped(self, tool: Tool) -> Tool:
        """The tool as runs with this dialect call it: unchanged, or in a wrapper such as a log."""
        return tool

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """The tools of an agent that names none; its policy may take some of them away."""
        return ()

    def log_fields(self, run: Run) -> Mapping[str, object]:
        """The fields with which the log lines of a run with this dialect begin; empty for those of the engine."""
        return {}

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str | None:
        """The message to a parent's model about a child that has ended; None for the engine's own text."""
        return None

    def handover(self, outcome: Outcome) -> tuple[bool, str] | None:
        """Whether an ended task succeeded, and its result or the reason, for dependents; None for the engine's text."""
        return None


class DialectTool(Tool):
    """Base class of the dialects' tools.

    After a crash a call is made again and finds by its key the run that it had started. The risk is low: the actions of
    the runs that it starts are assessed when they happen.
    """

    kind: ToolKind = "keyed"
    polls = True


# ---- registration ---------------------------------------------------------------------------------------------------


class Deferred(Struct, Generic[T], frozen=True):
    """A reference to an object, `module:attribute`; the module is imported when the object is needed."""

    place: str

    def load(self) -> T:
        module, _, attribute = self.place.partition(":")
        return getattr(import_module(module), attribute)


Complaints: TypeAlias = Sequence[tuple[str, str]]
"""Errors in a section of the settings: each key with its message."""


class SettingsSection(Struct, frozen=True, kw_only=True):
    """The section of the settings file that belongs to a dialect; `type` has a default for every key."""

    name: str
    type: type[Struct]
    about: str
    cross_key_errors: Callable[[Any], Complaints] = lambda settings: ()
    """Checks between several keys."""
    unknown_providers: Callable[[Any, Sequence[str]], Complaints] = lambda settings, providers: ()
    """Checks of keys that name a provider, given the providers that the file describes."""
    has_complete_messages: bool = False
    """Whether the dialect's document prescribes the messages of both checks, printed without the key in front."""


class ProgramSettings(Struct, frozen=True, kw_only=True):
    """The settings file of the program that a dialect comes from, and its translation into retinue's layout."""

    file: str
    """Its name; a file of another name is not translated."""
    own_keys: tuple[str, ...] = ()
    """Keys and sections, dotted, that tell it from a file of the same name of another program."""
    translate: Deferred[Callable[[Mapping[str, object], Mapping[str, str]], SettingsTranslation]]
    """Called with the values of a file and the environment, for the variables in which that program looks for keys."""

    def count_own_keys(self, values: Mapping[str, object]) -> int:
        """How many of `own_keys` a file with these values has."""
        return sum(_has_key(values, key) for key in self.own_keys)


def _has_key(values: object, key: str) -> bool:
    """Whether a table has a value at a dotted key."""
    name, _, below = key.partition(".")
    if not isinstance(values, dict) or name not in values:
        return False
    return not below or _has_key(cast("dict[str, object]", values)[name], below)


class NamedPrompt(NamedTuple):
    """A system prompt that has a name, and the tools that are offered with it."""

    text: str
    tools: tuple[str, ...] = ()


class ChatDelegation(Struct, frozen=True, kw_only=True):
    """How a chat switches delegation on and off in a dialect."""

    enabled: str
    disabled: str
    """The texts that the user reads after switching."""
    words: tuple[str, ...]
    """A prompt that contains one of these, in lower case, asks for delegation."""
    starts_on: Callable[[Any], bool]
    """Whether the dialect's settings let a chat begin with delegation switched on."""


class PolicyTexts(Struct, frozen=True, kw_only=True):
    """The messages of `PolicyError` for a run that asks for more than its parent or agent has."""

    escalation: str
    """With the field `refusal`."""
    memory: str
    """With the field `alias`: an agent whose memory the parent may not read, in quotes."""


class AutoSave(Struct, frozen=True, kw_only=True):
    """Which messages of the user are stored as memories of the agent where the settings say so, and how."""

    least_characters: int
    """Shorter messages are not stored."""
    key: str
    """The beginning of the key, before a UUID."""
    category: str


class CronTexts(Protocol):
    """The texts of scheduled jobs: prompts, refusals and log lines."""

    def prompt(self, job: str, prompt: str, memories: Sequence[tuple[str, str]]) -> str:
        """The first message of a job's run, with the memories (key and content) that were recalled for it."""
        ...

    def blocked(self, reason: str) -> str:
        """The refusal of a job because of a rule of its policy."""
        ...

    def tool_refusal(self, text: str) -> str:
        """The result of a tool that refused a job's command, as `blocked` if the job's policy was the reason."""
        ...

    def unknown_agent(self, alias: str) -> str:
        """The refusal of a job whose agent is not configured."""
        ...

    def spawn_failed(self, reason: str) -> str:
        """The refusal of a job whose run could not be started."""
        ...

    def span(self, agent: str, job: str, run_id: RunId | None) -> str:
        """The fields with which every log line of a job begins."""
        ...


class Transcripts(Protocol):
    """Kept conversations of a dialect's subagents, as the printable text that `retinue replay` prints."""

    async def listing(self, *, limit: int, offset: int) -> str:
        """One page of all conversations, newest first."""
        ...

    async def conversation(self, run_id: RunId) -> str | None:
        """One conversation with its messages; None if none of that id is kept."""
        ...

    async def tree(self, run_id: RunId | None, *, limit: int, offset: int) -> str | None:
        """The tree of subagents below `run_id`, or page by page below all roots; None as in `conversation`."""
        ...


MakeTranscripts: TypeAlias = "Callable[[Supervisor], Transcripts]"
"""Makes them, given the store's supervisor."""

MakeProvider: TypeAlias = "Callable[[str], Provider | None]"
"""Returns a provider that uses the models of the provider of this name; None where that is not possible."""


class ChildProcesses(Struct, frozen=True, kw_only=True):
    """Providers that answer from child processes (`retinue call`), and the rules of the requests these processes read.

    A provider `kind:NAME` uses the models of the provider NAME.
    """

    kind: str
    make: Deferred[Callable[[ProviderHost, Any], MakeProvider]]
    """Called with what such providers need and the dialect's settings (None for the defaults)."""
    tools: Deferred[Callable[[Sequence[str] | None], tuple[str, ...]]]
    """Returns the tools that a request names; raises `Refused` for one that it may not name."""


DialectFactory: TypeAlias = "Callable[..., Dialect]"
"""A dialect's class, called with a `DialectContext`, and with settings unless the defaults apply."""


class DialectEntry(Struct, frozen=True, kw_only=True):
    """The registration of a dialect; every package of a dialect has one, `DIALECT`.

    `tool_names` are the names of all tools that the dialect can offer with any settings. The capabilities below
    `settings` are None or empty where a dialect does not have them.
    """

    name: str
    tool_names: tuple[str, ...]
    factory: Deferred[DialectFactory]
    settings: SettingsSection | None = None
    program_settings: ProgramSettings | None = None
    root_tools: tuple[str, ...] = ()
    """Built-in tools of a root run that is started from the command line, where neither it nor its agent names any."""
    prompts: Mapping[str, NamedPrompt] = {}
    """Prompts that `retinue run --system NAME` knows by name."""
    chat: ChatDelegation | None = None
    cron: CronTexts | None = None
    auto_save: AutoSave | None = None
    policy_texts: PolicyTexts | None = None
    processes: ChildProcesses | None = None
    transcripts: Deferred[MakeTranscripts] | None = None
    crate: str = ""
    """The name in `RUST_LOG` of the program in Rust that the dialect comes from."""
    loggers: tuple[str, ...] = ()
    """The dialect's own loggers, without `retinue.`"""
    cancelled_notice: Deferred[Callable[[Iterable[RunView]], str | None]] | None = None
    """A line about tasks of a tree that were still running when its root ended, given the runs of the tree."""

    def make(self, dialect_context: DialectContext, settings: object = None) -> Dialect:
        """The dialect, with its own settings if there are any."""
        factory = self.factory.load()
        return factory(dialect_context) if settings is None else factory(dialect_context, settings)
