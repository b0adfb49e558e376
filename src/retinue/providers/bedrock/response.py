"""Provider for Amazon Bedrock, and the decoder of responses of Converse.

A response is a sequence of numbered blocks (text, thinking, calls) that grow, the reason of its end, and the usage.
Thinking comes with a signature or as encrypted data; both are kept as they are, because the models want them back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct
from yarl import URL

from retinue.core.errors import ProviderError
from retinue.core.messages import CallDelta, Delta, Reply, Stop, TextDelta, Thinking, ThinkingDelta, ToolCall
from retinue.core.ports import Request
from retinue.core.text import NOT_JSON
from retinue.core.usage import Usage
from retinue.net.http import Http
from retinue.net.loopback import is_loopback
from retinue.providers.anthropic import OrderStep, order_note
from retinue.providers.bedrock import DEFAULT_REGION, KEY_ENV, WIRE
from retinue.providers.bedrock.request import EFFORT, encode, options
from retinue.providers.bedrock.signature import Credentials, FoundCredentials, environment_credentials, sign
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.http_errors import stream_error
from retinue.providers.stream_decoder import NULL, StreamDecoder, decode_counts, normalized_usage
from retinue.providers.wire_json import decode_lenient

# ---- events ---------------------------------------------------------------------------------------------------------


class _CallStart(Struct, gc=False):
    toolUseId: str | None = None  # noqa: N815
    name: str | None = None


class _Start(Struct, gc=False):
    toolUse: _CallStart | None = None  # noqa: N815


class _BlockStart(Struct, gc=False):
    contentBlockIndex: int = 0  # noqa: N815
    start: _Start | None = None


class _CallPiece(Struct, gc=False):
    input: str | None = None


class _Reasoning(Struct, gc=False):
    text: str | None = None
    signature: str | None = None
    redactedContent: str | None = None  # noqa: N815


class _Piece(Struct, gc=False):
    text: str | None = None
    toolUse: _CallPiece | None = None  # noqa: N815
    reasoningContent: _Reasoning | None = None  # noqa: N815


class _BlockDelta(Struct, gc=False):
    contentBlockIndex: int = 0  # noqa: N815
    delta: _Piece | None = None


class _Stopped(Struct, gc=False):
    stopReason: str | None = None  # noqa: N815


class _Metadata(Struct, gc=False):
    usage: msgspec.Raw = NULL


class _Event(Struct, gc=False):
    """An event; `FrameReader` names the one field that it has."""

    messageStart: msgspec.Raw = NULL  # noqa: N815
    contentBlockStart: _BlockStart | None = None  # noqa: N815
    contentBlockDelta: _BlockDelta | None = None  # noqa: N815
    contentBlockStop: msgspec.Raw = NULL  # noqa: N815
    messageStop: _Stopped | None = None  # noqa: N815
    metadata: _Metadata | None = None
    error: dict[str, object] | None = None


class _WholeCall(Struct, gc=False):
    toolUseId: str | None = None  # noqa: N815
    name: str | None = None
    input: msgspec.Raw = NULL


class _WholeReasoning(Struct, gc=False):
    reasoningText: _Reasoning | None = None  # noqa: N815
    redactedContent: str | None = None  # noqa: N815


class _WholeBlock(Struct, gc=False):
    text: str | None = None
    toolUse: _WholeCall | None = None  # noqa: N815
    reasoningContent: _WholeReasoning | None = None  # noqa: N815


class _Message(Struct, gc=False):
    content: list[_WholeBlock] | None = None


class _Output(Struct, gc=False):
    message: _Message | None = None


class _Whole(Struct, gc=False):
    """A response that came as one object."""

    output: _Output | None = None
    stopReason: str | None = None  # noqa: N815
    usage: msgspec.Raw = NULL
    message: str | None = None


class _Written(Struct, gc=False):
    """What was written to the cache, and the time for which it is kept."""

    ttl: str = ""
    inputTokens: int = 0  # noqa: N815


class TokenCounts(Struct, gc=False):
    """Token counts; cached input is counted apart from the rest of the input."""

    inputTokens: int | None = None  # noqa: N815
    outputTokens: int | None = None  # noqa: N815
    cacheReadInputTokens: int | None = None  # noqa: N815
    cacheWriteInputTokens: int | None = None  # noqa: N815
    cacheDetails: list[_Written] | None = None  # noqa: N815


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode

_STOPS: dict[str, Stop | None] = {
    **dict.fromkeys(("end_turn", "stop_sequence", "tool_use")),
    **dict.fromkeys(("max_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("guardrail_intervened", "content_filtered"), "refusal"),
}
"""Stop reasons of a complete answer (None), and of one that was cut or refused."""

_SLIPS = {
    "malformed_tool_use": "the tool call was malformed.",
    "malformed_model_output": "the answer was malformed.",
}
"""Mistakes of the model, in words for the model."""

_STATUS = {
    "throttlingexception": 429,
    "serviceunavailableexception": 503,
    "internalserverexception": 500,
    "modelstreamerrorexception": 500,
    "modeltimeoutexception": 408,
    "validationexception": 400,
}
"""The status of an exception inside a stream, as its equal before the stream has it."""


class _Block:
    """A block as far as it has arrived."""

    __slots__ = ("call_id", "kind", "name", "number", "opaque", "pieces", "signature", "size")

    def __init__(self, kind: str, number: int = 0, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.number = number
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.signature = ""
        self.opaque = ""
        self.size = 0

    @property
    def has_thought(self) -> bool:
        return bool(self.pieces or self.signature or self.opaque)


class Decoder(StreamDecoder):
    """Decodes the events of one response.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"hello"}}}')
    (TextDelta(text='hello'),)
    >>> decoder.feed(b'{"messageStop":{"stopReason":"end_turn"}}'), decoder.finish().message.text
    ((), 'hello')
    """

    __slots__ = ("_blocks", "_calls", "_counts", "_open", "_stop")

    def __init__(self, *, model: str = "") -> None:
        super().__init__(model=model)
        self._blocks: list[_Block] = []
        """In the order in which they began."""
        self._open: dict[int, _Block] = {}
        self._calls: list[_Block] = []
        self._stop = ""
        self._counts: TokenCounts | None = None

    def feed(self, payload: bytes) -> Sequence[Delta]:
        try:
            event = _decode_event(payload)
        except NOT_JSON:
            event = decode_lenient(_decode_event, payload)
        if (grown := event.contentBlockDelta) is not None:
            return self._grow(grown.contentBlockIndex, grown.delta) if grown.delta is not None else ()
        self._begun = True
        if event.error is not None:
            raise _stream_error(event.error)
        if (begun := event.contentBlockStart) is not None:
            if begun.start is not None and (call := begun.start.toolUse) is not None:
                return self._begin_call(begun.contentBlockIndex, call.toolUseId or "", call.name or "")
        elif event.messageStop is not None:
            self._stop = event.messageStop.stopReason or "end_turn"
        elif event.metadata is not None:
            self._counts = decode_counts(TokenCounts, event.metadata.usage)
            self.done = bool(self._stop)
        return ()

    def feed_whole(self, body: bytes) -> Sequence[Delta]:
        whole = decode_lenient(_decode_whole, body)
        if whole.output is None:
            raise stream_error({"error": {"message": whole.message or "the answer has no output"}})
        self._begun = self.done = True
        self._stop = whole.stopReason or ""
        self._counts = decode_counts(TokenCounts, whole.usage)
        message = whole.output.message or _Message()
        deltas: list[Delta] = []
        for index, block in enumerate(message.content or ()):
            if (call := block.toolUse) is not None:
                deltas += self._begin_call(index, call.toolUseId or "", call.name or "")
                arguments = bytes(call.input).decode("utf-8", "replace")
                deltas += self._grow(index, _Piece(toolUse=_CallPiece(arguments)))
            elif (reasoning := block.reasoningContent) is not None:
                piece = reasoning.reasoningText or _Reasoning(redactedContent=reasoning.redactedContent)
                deltas += self._grow(index, _Piece(reasoningContent=piece))
            else:
                deltas += self._grow(index, _Piece(text=block.text))
        return deltas

    def finish(self) -> Reply:
        if not self._stop:
            raise self._cut_error(begun=self._begun)
        if (slip := _SLIPS.get(self._stop)) is not None:
            raise ProviderError(
                f"the model's answer could not be read: {slip}", fault="cut", partial=self.partial, slip=slip
            )
        if self._stop not in _STOPS:
            raise self._incomplete_error(self._stop)
        stop = _STOPS[self._stop]
        calls = [ToolCall(call.name, "".join(call.pieces), call.call_id) for call in self._calls]
        if stop != "length":
            calls = [call if call.arguments else msgspec.structs.replace(call, arguments="{}") for call in calls]
        thinking = [
            Thinking("".join(block.pieces), block.signature, block.opaque)
            for block in self._blocks
            if block.kind == "thought" and block.has_thought
        ]
        note = order_note(self._steps())
        return self._reply(tuple(calls), [*thinking, note] if note else thinking, usage=self.usage(), stop=stop)

    def usage(self) -> Usage | None:
        counts = self._counts
        if counts is None or (counts.inputTokens is None and counts.outputTokens is None):
            return None
        cached, written = max(0, counts.cacheReadInputTokens or 0), max(0, counts.cacheWriteInputTokens or 0)
        total = max(0, counts.inputTokens or 0) + cached + written
        hour = sum(each.inputTokens for each in counts.cacheDetails or () if each.ttl == "1h")
        return normalized_usage(total, counts.outputTokens, cached=cached, written=written, written_1h=hour)

    def _begin_call(self, index: int, call_id: str, name: str) -> Sequence[Delta]:
        call = self._new(index, _Block("call", len(self._calls), call_id, name))
        self._calls.append(call)
        self._check_calls(len(self._calls))
        return (CallDelta(call.number, name, "", call_id),)

    def _grow(self, index: int, piece: _Piece) -> Sequence[Delta]:
        """Add to a block. One without a start has the type of its delta; a call cannot, as it lacks a name."""
        self._begun = True
        block = self._open.get(index)
        if piece.text:
            block = block if block is not None and block.kind == "text" else self._new(index, _Block("text"))
            block.size += len(piece.text)
            self._text.append(piece.text)
            return (TextDelta(piece.text),)
        if (reasoning := piece.reasoningContent) is not None:
            block = block if block is not None and block.kind == "thought" else self._new(index, _Block("thought"))
            block.signature += reasoning.signature or ""
            block.opaque += reasoning.redactedContent or ""
            if reasoning.text:
                block.pieces.append(reasoning.text)
                return (ThinkingDelta(reasoning.text),)
        elif piece.toolUse is not None and piece.toolUse.input and block is not None and block.kind == "call":
            block.pieces.append(piece.toolUse.input)
            return (CallDelta(block.number, "", piece.toolUse.input),)
        return ()

    def _new(self, index: int, block: _Block) -> _Block:
        self._open[index] = block
        self._blocks.append(block)
        return block

    def _steps(self) -> Iterator[OrderStep]:
        for block in self._blocks:
            match block.kind:
                case "thought" if block.has_thought:
                    yield "thought"
                case "text":
                    yield block.size
                case "call":
                    yield "call"
                case _:
                    pass


def _stream_error(error: dict[str, object]) -> ProviderError:
    kind = str(error.get("type", ""))
    status = _STATUS.get(kind.lower())
    return stream_error({"error": error if status is None else error | {"code": status}})


# ---- the provider ---------------------------------------------------------------------------------------------------

_HOST = re.compile(WIRE.host_pattern)
_REGION = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
MAX_MODEL_CHARS = 2048


class BedrockProvider(HttpProvider):
    """A provider for Converse at `base_url`, such as `https://bedrock-runtime.us-east-1.amazonaws.com`.

    `api_key_env` names the environment variable of an API key of Bedrock, which is sent as a bearer token. Without
    another variable than `AWS_BEARER_TOKEN_BEDROCK`, and where that is not set, requests to AWS are signed with the
    credentials in the environment (`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), else with
    those that the package `botocore` finds, if it is installed. The region is that of the address. `HttpProvider`
    describes the other arguments.

    >>> BedrockProvider("https://bedrock-runtime.eu-west-1.amazonaws.com")
    <BedrockProvider https://bedrock-runtime.eu-west-1.amazonaws.com>
    """

    effort_option: ClassVar[str] = EFFORT

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._base_url = base_url if full_url else base_url.rstrip("/")
        self._full_url = full_url
        self._api_key_env = api_key_env
        self._headers = dict(headers or {})
        self._endpoints: dict[tuple[str, bool, Credentials | None], Endpoint] = {}
        self._found = FoundCredentials(agents_write=lambda: self.agents_write())
        host = urlsplit(base_url).hostname or ""
        has_key_header = any(name.lower() == "authorization" for name in self._headers)
        self._is_aws = is_bedrock(base_url)
        # A test server on this machine gets what AWS gets, if the caller names the variable.
        is_trusted = self._is_aws or (is_loopback(host) and api_key_env == KEY_ENV)
        self._may_sign = is_trusted and api_key_env in (None, "", KEY_ENV) and not has_key_header
        in_address = _REGION.search(host)
        self._region = in_address[1] if in_address else region_in_environment()
        self._new_endpoint("model", None, streams=True)  # raises now if the address is unusable

    @property
    def base_url(self) -> str:
        return self._base_url

    async def endpoint(self, model: str, *, streams: bool = True) -> Endpoint:
        if not 0 < len(model) <= MAX_MODEL_CHARS:
            raise ProviderError(f"{model[:100]!r} is not the name of a model", fault="bad_request")
        credentials = await self._credentials()
        place = (model, streams, credentials)
        if place not in self._endpoints:
            if len(self._endpoints) > 100:  # temporary credentials change
                self._endpoints.clear()
            self._endpoints[place] = self._new_endpoint(model, credentials, streams=streams)
        return self._endpoints[place]

    async def list_endpoints(self) -> Sequence[Endpoint]:
        """The endpoints of the lists of models that can be called by their ids, and of inference profiles."""
        credentials = await self._credentials()
        base_url = self._base_url.replace("://bedrock-runtime", "://bedrock", 1)
        paths = (f"{WIRE.models_path}?byInferenceType=ON_DEMAND", "/inference-profiles?maxResults=1000")
        return [self._endpoint_at(base_url, path, credentials) for path in paths]

    async def _credentials(self) -> Credentials | None:
        """What requests are signed with; None where they have a key, or nothing."""
        if not self._may_sign or os.environ.get(KEY_ENV, "").strip():
            return None
        found = environment_credentials()
        return await self._found.valid() if found is None and self._is_aws else found

    def _new_endpoint(self, model: str, credentials: Credentials | None, *, streams: bool) -> Endpoint:
        verb = "converse-stream" if streams else "converse"
        path = "" if self._full_url else f"/model/{quote(model, safe='')}/{verb}"
        return self._endpoint_at(self._base_url, path, credentials)

    def _endpoint_at(self, base_url: str, path: str, credentials: Credentials | None) -> Endpoint:
        key_env = self._api_key_env or (KEY_ENV if self._may_sign else None)
        path, _, query = path.partition("?")
        endpoint = Endpoint(
            f"{base_url}?{query}" if query else base_url,
            path,
            api_key_env=None if credentials is not None else key_env,
            headers=self._headers,
            http=self._http,
            is_encoded=True,
            sign=None if credentials is None else partial(_signed, credentials, self._region),
            secrets=() if credentials is None else tuple(filter(None, (credentials.secret, credentials.token))),
        )
        if credentials is not None:
            endpoint.info = replace(endpoint.info, credentials="the AWS credentials")
        return endpoint

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)


def _signed(credentials: Credentials, region: str, method: str, url: URL, body: bytes) -> dict[str, str]:
    return sign(credentials, method=method, url=url, body=body, region=region)


def is_bedrock(base_url: str) -> bool:
    """Whether credentials of AWS may be used at an address without the user naming them for it.

    >>> is_bedrock("https://bedrock-runtime.us-east-1.amazonaws.com"), is_bedrock("https://x.s3.amazonaws.com")
    (True, False)
    """
    parts = urlsplit(base_url)
    return parts.scheme == "https" and _HOST.fullmatch(parts.hostname or "") is not None


def region_in_environment() -> str:
    """The region that the environment names, else the default one."""
    return next(filter(None, (os.environ.get(name, "").strip() for name in WIRE.region_envs)), DEFAULT_REGION)
