"""The file of a recording: JSON Lines, one fact per line in the order in which the facts happened.

Ids, paths of the machine and secrets are replaced by placeholders when the file is written. A file in which a secret is
left is not written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.errors import BadInput
from retinue.core.events import Refusal
from retinue.core.messages import AssistantMessage, Message, Reply, ToolMessage
from retinue.core.run import Outcome
from retinue.core.text import NOT_JSON
from retinue.core.usage import NO_USAGE, Usage
from retinue.local.bounded_file import MIB, read_bounded
from retinue.providers.key_mask import mask_forms

FORMAT = 1

MAX_BYTES = 256 * MIB

# ---- lines ----------------------------------------------------------------------------------------------------------


class RecordedTree(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="tree"):
    """The first line: the format of the file, and the root run."""

    format: int
    task: str
    agent: str
    spec: str
    """The `id` of the spec of the root."""


class RecordedModel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="model"):
    """A model of a provider, as far as limits need it: prices in nanodollars per token, and its context window."""

    provider: str
    model: str
    price: tuple[int, int] | None = None
    cached_price: int | None = None
    window: int | None = None
    longest_reply: int | None = None
    counts_exactly: bool = False


class RecordedSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="agent"):
    """What all requests of some runs have in common. `tools` is None where their definitions were not at hand."""

    id: str
    agent: str
    provider: str
    model: str
    system: str = ""
    tools: tuple[ToolSpec, ...] | None = None
    options: Mapping[str, object] = {}


class RecordedRun(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="run"):
    """A run that was started, with the call that started it."""

    run: str
    agent: str
    task: str
    by: str = ""
    label: str = ""


class RecordedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="request"):
    """A request to a model: the messages that are new since the reply before it and the results of its calls.

    With `whole`, `messages` are all messages: the conversation was compacted, or began with that of another run.
    """

    run: str
    turn: int
    spec: str
    messages: tuple[Message, ...] = ()
    whole: bool = False
    system: str | None = None
    """The system prompt, where it is not that of the spec."""


class RecordedReply(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="reply"):
    """The reply of a model; `failed` and `failed_cost` are what failed attempts before it used."""

    run: str
    turn: int
    reply: Reply
    failed: Usage = NO_USAGE
    failed_cost: int | None = 0


class RecordedFailure(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="failure"):
    """A model call that failed after all attempts."""

    run: str
    turn: int
    fault: str
    error: str
    partial: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0


class RecordedResult(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="result"):
    """The result of a tool call. A `live` call is made again in a replay: it works on other runs."""

    run: str
    turn: int
    call: int
    tool: str
    text: str
    failed: bool = False
    refused: Refusal | None = None
    live: bool = False


class RecordedEnd(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="end"):
    """The end of a run."""

    run: str
    outcome: Outcome


RecordedFact: TypeAlias = RecordedRun | RecordedRequest | RecordedReply | RecordedFailure | RecordedResult | RecordedEnd
RecordedLine: TypeAlias = RecordedTree | RecordedModel | RecordedSpec | RecordedFact

FactKey: TypeAlias = tuple[Literal["request", "reply", "result", "end"], str, int, int]
"""What identifies a fact of a tree: its kind, the path of its run, turn and call."""


def key_of(fact: RecordedFact) -> FactKey | None:
    """The key of a fact; None for the start of a run, which its first request shows."""
    match fact:
        case RecordedRequest(run=run, turn=turn):
            return ("request", run, turn, 0)
        case RecordedReply(run=run, turn=turn) | RecordedFailure(run=run, turn=turn):
            return ("reply", run, turn, 0)
        case RecordedResult(run=run, turn=turn, call=call):
            return ("result", run, turn, call)
        case RecordedEnd(run=run):
            return ("end", run, 0, 0)
        case RecordedRun():
            return None


class Recording(Struct, frozen=True, kw_only=True):
    """A recorded tree of runs."""

    tree: RecordedTree
    models: tuple[RecordedModel, ...] = ()
    specs: tuple[RecordedSpec, ...] = ()
    facts: tuple[RecordedFact, ...] = ()
    """What happened, in this order."""

    @property
    def task(self) -> str:
        """The task of the root."""
        return self.tree.task

    @property
    def outcome(self) -> Outcome | None:
        """How the root ended; None if it did not."""
        ends = [fact for fact in self.facts if isinstance(fact, RecordedEnd) and fact.run == "root"]
        return ends[-1].outcome if ends else None

    def spec(self, name: str) -> RecordedSpec:
        """The spec with this `id`."""
        return next(each for each in self.specs if each.id == name)


class MessagesUntil(NamedTuple):
    """The messages of one request: the beginning of a list that later requests of its run go on with."""

    messages: Sequence[Message]
    length: int

    def all(self) -> Sequence[Message]:
        return self.messages[: self.length]


class RunMessages:
    """The messages of one run, put together from its facts; recorder and player use the same rules."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reply: AssistantMessage | None = None
        self._results: dict[int, ToolMessage] = {}

    def expected(self) -> list[Message]:
        """The messages that the next request begins with, unless it is whole."""
        return [*self._messages, *self._since()]

    def _since(self) -> list[Message]:
        results = [message for _, message in sorted(self._results.items())]
        return [*([] if self._reply is None else [self._reply]), *results]

    def request(self, messages: Sequence[Message], *, whole: bool) -> MessagesUntil:
        """All messages of a request that adds these."""
        if whole:
            self._messages = list(messages)
        else:
            # In place: the earlier requests of the run have beginnings of the same list.
            self._messages += [*self._since(), *messages]
        self._reply, self._results = None, {}
        return MessagesUntil(self._messages, len(self._messages))

    def reply(self, reply: Reply) -> None:
        self._reply = reply.message

    def result(self, index: int, text: str, *, failed: bool) -> None:
        if self._reply is not None and index < len(self._reply.calls):
            call = self._reply.calls[index]
            self._results[index] = ToolMessage(name=call.name, call_id=call.id, text=text, failed=failed)


# ---- files ----------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], RecordedLine] = msgspec.json.Decoder(RecordedLine).decode


def write_recording(recording: Recording, file: str | Path, *, environment: Mapping[str, str] = os.environ) -> None:
    """Write a recording without secrets; raises `BadInput`, and writes nothing, if one would be left in the file."""
    scrub = Scrubber(environment)
    text = "".join(f"{line}\n" for line in lines_of(recording, scrub))
    if (found := scrub.find(text)) is not None:
        raise BadInput(f"{file} was not written: it would contain {found}")
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def lines_of(recording: Recording, scrub: Scrubber) -> Iterable[str]:
    """The lines of the file."""
    for line in (recording.tree, *recording.models, *recording.specs, *recording.facts):
        yield _encode(rewritten(msgspec.to_builtins(line), scrub.text)).decode()


def read_recording(file: str | Path) -> Recording:
    """The recording in a file; raises `BadInput` for a file that is none."""
    try:
        content = read_bounded(Path(file), MAX_BYTES)
    except OSError as error:
        raise BadInput(f"the recording {file} cannot be read: {error.strerror or error}") from None
    lines: list[RecordedLine] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            lines.append(_decode(line))
        except NOT_JSON as error:
            raise BadInput(f"{file}:{number}: not a line of a recording: {error}") from None
    if not lines or not isinstance(tree := lines[0], RecordedTree):
        raise BadInput(f"{file}: not a recording: its first line is no tree")
    if tree.format > FORMAT:
        raise BadInput(f"{file} has format {tree.format}; this retinue reads up to {FORMAT}")
    recording = Recording(
        tree=tree,
        models=tuple(line for line in lines if isinstance(line, RecordedModel)),
        specs=tuple(line for line in lines if isinstance(line, RecordedSpec)),
        facts=tuple(line for line in lines if not isinstance(line, RecordedTree | RecordedModel | RecordedSpec)),
    )
    known = {spec.id for spec in recording.specs}
    for fact in recording.facts:
        if isinstance(fact, RecordedRequest) and fact.spec not in known:
            raise BadInput(f"{file}: a request of {fact.run} names the agent line {fact.spec!r}, which is not there")
    return recording


def rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:
    """A JSON value with every text rewritten, keys of objects excepted."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: rewritten(each, rewrite) for key, each in items}
    if isinstance(value, list | tuple):
        return [rewritten(each, rewrite) for each in cast("Sequence[Any]", value)]
    return value


# ---- secrets --------------------------------------------------------------------------------------------------------

SECRET = "[secret]"

SECRET_NAME = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIAL)S?(?:$|_)"
    r"|(?:^|_)(?:AUTH|PWD|PAT|DSN|JWT|COOKIE|WEBHOOK)(?:$|_)",
    re.IGNORECASE,
)
"""Names of environment variables whose values are secrets."""

MIN_SECRET_CHARS = 8

SECRET_FORMS = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{30,}|hf_[A-Za-z0-9]{20,}"
    r"|npm_[A-Za-z0-9]{30,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{1,20000}-----END [A-Z ]{0,30}PRIVATE KEY-----"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*|(?<=://)[^/\s:@\"]{1,200}:[^/\s:@\"]{1,200}(?=@)"
)
"""Texts that look like secrets whatever they belong to."""

JSON_WEB_TOKEN = re.compile(
    # It is looked for once in each word, and only if what has to follow the word is there. Else a text of many
    # beginnings would be read to its end from each of them.
    r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]{11,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8})(?P<before>[A-Za-z0-9_-]*?)"
    r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"
)
"""Such a token; `before` is what stands in front of it without a break, as the letter of an escape does."""


class Scrubber:
    """Replaces secrets in texts: values of variables whose names say so, and texts that look like keys.

    >>> scrub = Scrubber({"TEAM_API_KEY": "hush-0123456789"})
    >>> scrub.text("use hush-0123456789 or sk-abcdefghijklmnop0123"), scrub.find("hush-0123456789")
    ('use [key] or [secret]', 'the value of TEAM_API_KEY')
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._secrets = {
            value: name
            for name, value in environment.items()
            if SECRET_NAME.search(name) and len(value) >= MIN_SECRET_CHARS and not value.startswith(("/", "[secret"))
        }
        # As it stands in arguments and results, which are JSON in a text.
        escaped = {msgspec.json.encode(value).decode()[1:-1]: name for value, name in self._secrets.items()}
        self._secrets = escaped | self._secrets

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = mask_forms(text, secret)
        return SECRET_FORMS.sub(SECRET, JSON_WEB_TOKEN.sub(rf"\g<before>{SECRET}", text))

    def find(self, text: str) -> str | None:
        """What secret is in a text, in words; None if there is none."""
        for secret, name in self._secrets.items():
            if mask_forms(text, secret) != text:
                return f"the value of {name}"
        looks_so = SECRET_FORMS.search(text) or JSON_WEB_TOKEN.search(text)
        return "a text that looks like a key" if looks_so else None


# ---- what may differ between two plays of the same tree --------------------------------------------------------------

_TIMES = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?", "<time>"),
        (r"\b20\d\d-\d\d-\d\d\b", "<date>"),
        (r"(?<![\w.])1[6-9]\d{8}(?:\.\d+)?(?![\w.])", "<time>"),
        (r"((?:duration|running|elapsed|took)_?(?:ms|secs|seconds)?\\*\"?[=:] ?)\d+(?:\.\d+)?", r"\1<seconds>"),
        (r"(\"seconds\\*\": ?)\d+(?:\.\d+)?", r"\1<seconds>"),
        (r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds)\b", "<seconds>"),
    )
)


def timeless(text: str) -> str:
    """A text without dates, times and durations, which are not compared.

    >>> timeless("done in 3.2 s at 2026-11-18T19:00:01Z")
    'done in <seconds> at <time>'
    """
    for pattern, placeholder in _TIMES:
        text = pattern.sub(placeholder, text)
    return text


def placeholders(names: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces each of these texts by its placeholder, longer ones first."""
    if not names:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return partial(pattern.sub, lambda found: names[found[0]])


def run_placeholder(path: str) -> str:
    """What stands for the id of a run.

    >>> run_placeholder("root/dig/1")
    '<run root/dig/1>'
    """
    return f"<run {path}>"


SESSION, WORKSPACE, HOME = "<session>", "<workspace>", "<home>"
