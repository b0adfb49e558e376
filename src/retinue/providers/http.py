"""One model call over HTTP: send a wire's body, decode the stream with its decoder, map failures to `ProviderError`."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias

from yarl import URL

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Reply, StartDelta
from retinue.core.model_options import NO_OPTIONS, NO_REQUEST_OPTIONS
from retinue.core.ports import Publish, Request
from retinue.core.text import MAX_JSON_VALUES, values_in
from retinue.core.usage import NO_USAGE, Spent, attach_spent
from retinue.net.http import CONNECT_SECONDS, Http, ProxyFailed, UnknownProxy
from retinue.net.http1 import BadResponse, Disconnected, Response, ResponseBody
from retinue.net.loopback import check_encrypted
from retinue.net.sse import MAX_EVENT_BYTES, EventReader, EventTooLarge
from retinue.providers.http_errors import (
    SLIP_CHARS,
    EndpointInfo,
    display_text,
    error_response,
    html_title,
    is_html,
    mask_secrets,
    with_advice,
)
from retinue.providers.key_mask import AnswerMask
from retinue.providers.message_encoder import sends_result_media
from retinue.providers.stream_decoder import StreamDecoder
from retinue.providers.unsupported_options import NONE, RESULT_MEDIA, UnsupportedOptions, rejected_steps, rejects_value

if TYPE_CHECKING:
    from retinue.net.event_stream import FrameReader

ERROR_BYTES = 64 * 1024
ERROR_SECONDS = 5.0
"""How much of the body of an error response is read, and for how long."""

DRAIN_SECONDS = 0.02
"""How long a complete answer waits for the end of its stream, so that the connection can be reused."""

ANSWER_BYTES = 8 * 1024 * 1024
TOKEN_BYTES = 1024
USUAL_MAX_OUTPUT = 65_536
"""How long an answer may be: so many bytes, and so many more for each output token that the request allows; where it
does not say, for as many as models write. Often each token comes in an event of its own, of a few hundred bytes."""

SHOWN_BYTES = 200
"""How many bytes of an answer that is no event stream an error message repeats."""

BEGINNING_BYTES = 4096
"""How many bytes of such an answer are kept for the message."""

_SPACE = b" \t\r\n"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
_PUBLIC_HEADER = re.compile(
    r"(?:anthropic|openai)-(?:beta|version|organization|project)|accept.*|content-type|user-agent|(?:http-)?referer|x-title",
    re.IGNORECASE,
)
"""Headers whose values are never secret; in all others, a value as long as a key counts as one."""
_MIN_KEY_CHARS = 8


Signer: TypeAlias = Callable[[str, URL, bytes], dict[str, str]]
"""Makes the headers that sign a request, from its method, its address and its body."""


class Endpoint:
    """The URL, headers and key variable of a provider's requests. The key itself is read for each request.

    With `is_encoded` the path is sent as it is. `sign` makes the headers that sign a request, with `secrets` that no
    message may show.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        api_key_env: str | None,
        headers: Mapping[str, str],
        http: Http,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        is_encoded: bool = False,
        sign: Signer | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        base = _parse_url(base_url, "base URL" if path else "url")
        self._http = http
        self._base = base
        self._sign = sign
        if is_encoded:
            self._url = base.with_path(base.raw_path.rstrip("/") + path, encoded=True, keep_query=True)
        elif base.path.endswith(path):
            self._url = base
        else:
            self._url = base.with_path(base.path.rstrip("/") + path, keep_query=True)
        self._key_header, self._key_prefix = key_header, key_prefix
        self.info = EndpointInfo(
            base_url=str(base.with_query(None)).rstrip("/"),
            url=str(self._url.with_query(None)),
            address=f"{base.host}:{base.port}",
            api_key_env=api_key_env,
            full_url=not path,
        )
        self._headers = {"Content-Type": "application/json"} | _check_headers(headers)
        check_encrypted(base_url, api_key_env, headers)
        if api_key_env and any(name.lower() == key_header.lower() for name in headers):
            raise BadInput(f"the header {key_header} and the key in {api_key_env} exclude each other: give one of them")
        in_headers = (secret for name, value in headers.items() for secret in _secrets_in(name, value))
        self._secrets = (*in_headers, *secrets)

    async def send(
        self,
        body: bytes,
        decoder: StreamDecoder,
        publish: Publish,
        *,
        model: str,
        alive: Callable[[], None],
        max_output: int | None = None,
        more_headers: Mapping[str, str] | None = None,
        more_secrets: Sequence[str] = (),
    ) -> Reply:
        """The reply to `body`, its deltas published, or a `ProviderError`; `alive` is called for pings and the like.

        An answer that is longer than `max_output` tokens can be is an error, before more of it is read. `more_secrets`
        are secrets in the body.
        """
        key = self._key()
        headers = self._headers | {self._key_header: self._key_prefix + key} if key else self._headers
        if more_headers:
            headers = with_headers(headers, more_headers)
        if self._sign is not None:
            headers = headers | self._sign("POST", self._url, body)
        secrets = (*self._secrets, *((key,) if key else ()), *more_secrets)
        mask = AnswerMask(secrets) if secrets else None
        # Errors are raised outside of the handlers: as the context of an error, an exception of the HTTP client could
        # show the headers of the request, and with them the key.
        try:
            async with self._http.post(self._url, body, headers) as response:
                if 200 <= response.status < 300:
                    content = _BoundedContent(response.content, max_bytes(max_output))
                    receive = mask.publisher(publish) if mask else publish
                    reply = await _read(content, response, decoder, receive, alive, self.info, secrets)
                    return mask.finish(reply) if mask else reply
                failure = error_response(
                    response.status,
                    response.headers,
                    await _read_error(response),
                    reason=response.reason or "",
                    endpoint=replace(self.info, model=model),
                    secrets=secrets,
                )
        except ProviderError as error:
            message = f"{self.info.base_url}: {display_text(str(error), secrets)}"
            failure = ProviderError(
                with_advice(message, error, replace(self.info, model=model)),
                fault=error.fault,
                status=error.status,
                retry_after=error.retry_after,
                partial=decoder.partial if mask is None else mask.text(decoder.partial),
                usage=decoder.usage() or NO_USAGE,
                busy=error.busy,
                slip=display_text(error.slip, secrets, SLIP_CHARS),
            )
            if (cost := decoder.cost()) is not None:
                failure.cost, failure.is_priced = cost, True
        except asyncio.CancelledError as stopped:
            if (usage := decoder.usage()) is not None:  # it is billed, whether the answer is read to its end or not
                attach_spent(stopped, Spent(usage, decoder.cost()))
            raise
        except UnknownProxy as error:
            failure = ProviderError(f"cannot reach {self.info.base_url}: {error}", fault="internal")
        except (BadResponse, Disconnected, ProxyFailed, OSError) as error:
            failure = connection_error(error, self.info, secrets)
        raise failure

    async def fetch(self, max_bytes: int) -> bytes:
        """The body of a GET request, up to so many bytes, or a `ProviderError`."""
        key = self._key()
        headers = self._headers | {self._key_header: self._key_prefix + key} if key else self._headers
        if self._sign is not None:
            headers = headers | self._sign("GET", self._url, b"")
        secrets = (*self._secrets, key) if key else self._secrets
        try:
            async with self._http.get(self._url, headers) as response:
                if 200 <= response.status < 300:
                    content = _BoundedContent(response.content, max_bytes)
                    return await _rest(content, b"")
                failure = error_response(
                    response.status,
                    response.headers,
                    await _read_error(response),
                    reason=response.reason or "",
                    endpoint=self.info,
                    secrets=secrets,
                )
        except UnknownProxy as error:
            failure = ProviderError(f"cannot reach {self.info.base_url}: {error}", fault="internal")
        except (BadResponse, Disconnected, ProxyFailed, OSError) as error:
            failure = connection_error(error, self.info, secrets)
        raise failure

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown: the key, and secret headers."""
        key = os.environ.get(self.info.api_key_env or "", "").strip()
        return (*self._secrets, key) if key else self._secrets

    async def exchange(
        self,
        method: Literal["GET", "POST"],
        path: str,
        *,
        headers: Mapping[str, str],
        max_bytes: int,
        query: str = "",
        body: bytes = b"",
    ) -> bytes:
        """The body of the response to a request at the base URL and this path, or a `ProviderError`."""
        async with self._opened(method, path, headers, query=query, body=body) as content:
            pieces, size = list[bytes](), 0
            while piece := await content.readany():
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    raise ProviderError(f"the answer has more than {max_bytes} bytes", fault="internal")
            return b"".join(pieces)

    async def lines(self, path: str, *, headers: Mapping[str, str], max_line: int) -> AsyncIterator[bytes]:
        """The lines of the response to a GET request, however many; a `ProviderError` for one that is too long."""
        async with self._opened("GET", path, headers) as content:
            rest: list[bytes] = []
            size = 0
            while piece := await content.readany():
                *whole, last = piece.split(b"\n")
                if whole:
                    yield b"".join((*rest, whole[0]))
                    for line in whole[1:]:
                        yield line
                    rest, size = [], 0
                rest.append(last)
                size += len(last)
                if size > max_line:
                    raise ProviderError(f"a line of the answer has more than {max_line} bytes", fault="internal")
            if size:
                yield b"".join(rest)

    @asynccontextmanager
    async def _opened(
        self,
        method: Literal["GET", "POST"],
        path: str,
        headers: Mapping[str, str],
        *,
        query: str = "",
        body: bytes = b"",
    ) -> AsyncGenerator[ResponseBody]:
        key = self._key()
        url = self._base.with_path(self._base.path.rstrip("/") + path, keep_query=True)
        url = url.update_query(query) if query else url
        sent = with_headers(headers, self._headers)
        sent = sent | {self._key_header: self._key_prefix + key} if key else sent
        try:
            async with self._http.get(url, sent) if method == "GET" else self._http.post(url, body, sent) as response:
                if 200 <= response.status < 300:
                    yield response.content
                    return
                failure = error_response(
                    response.status,
                    response.headers,
                    await _read_error(response),
                    reason=response.reason or "",
                    endpoint=self.info,
                    secrets=self.secrets(),
                )
        except UnknownProxy as error:
            failure = ProviderError(f"cannot reach {self.info.base_url}: {error}", fault="internal")
        except (BadResponse, Disconnected, ProxyFailed, OSError) as error:
            failure = connection_error(error, self.info, self.secrets())
        raise failure

    def _key(self) -> str:
        """The key from its environment variable; empty if none is configured."""
        name = self.info.api_key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ProviderError(
                f"the environment variable {name} is not set; set it to the key for {self.info.base_url}", fault="auth"
            )
        if not key.isascii() or not key.isprintable():
            raise ProviderError(
                f"the environment variable {name} holds characters that no key has; "
                f"set it to the key for {self.info.base_url} and nothing else",
                fault="auth",
            )
        return key


def _tokens_in(request: Request) -> tuple[str, ...]:
    from retinue.core.server_tools import secrets_of  # imported late: few requests have server tools

    return secrets_of(request.server_tools)


def with_headers(headers: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Headers with those of a request added; one that is there already, in any case, stays as it is.

    >>> with_headers({"X-Title": "a"}, {"x-title": "b", "X-Team": "c"})
    {'X-Title': 'a', 'X-Team': 'c'}
    """
    present = {name.lower() for name in headers}
    return {**headers, **{name: value for name, value in more.items() if name.lower() not in present}}


def max_bytes(max_output: int | None) -> int:
    """The bytes that an answer of so many tokens may have."""
    return ANSWER_BYTES + TOKEN_BYTES * (USUAL_MAX_OUTPUT if max_output is None else max_output)


MAX_UNCOUNTED = MAX_JSON_VALUES
"""Bytes of an event whose values are not counted, because they are no more."""

EVENT_STREAM = "application/vnd.amazon.eventstream"


class _BoundedContent:
    """The body of a response, up to a number of bytes."""

    __slots__ = ("_content", "_left", "_limit")

    def __init__(self, content: ResponseBody, limit: int) -> None:
        self._content = content
        self._limit = self._left = limit

    async def readany(self) -> bytes:
        """The next bytes, empty at the end; raises `ProviderError` beyond the limit."""
        chunk = await self._content.readany()
        self._left -= len(chunk)
        if self._left < 0:
            raise ProviderError(
                f"the answer was stopped: it has more than {self._limit} bytes, and its end did not come",
                fault="internal",
            )
        return chunk

    def at_eof(self) -> bool:
        return self._content.at_eof()


async def _read(
    content: ResponseBody,
    response: Response,
    decoder: StreamDecoder,
    publish: Publish,
    alive: Callable[[], None],
    info: EndpointInfo,
    secrets: Sequence[str],
) -> Reply:
    """The reply in a response body: an event stream or one JSON object, whatever the headers call it."""
    chunk = await content.readany()
    while chunk and not chunk.strip(_SPACE):  # some servers send blanks while they wait for the model
        alive()
        chunk = await content.readany()
    if chunk.lstrip(_SPACE).startswith(b"{"):
        deltas = decoder.feed_whole(await _rest(content, chunk))
        publish(StartDelta(decoder.response_id))
        for delta in deltas:
            publish(delta)
        return decoder.finish()
    beginning, has_events = chunk[:BEGINNING_BYTES], False
    is_binary = response.content_type == EVENT_STREAM
    reader = _frame_reader() if is_binary else EventReader()
    try:
        while not decoder.done:
            deltas = ()
            for payload in reader.feed(chunk) if chunk else reader.end():
                if len(payload) > MAX_UNCOUNTED:
                    _check_values(payload)
                deltas = decoder.feed(payload)
                if not has_events:  # the first event of every vendor has the id of the response
                    has_events = True
                    publish(StartDelta(decoder.response_id))
                for delta in deltas:
                    publish(delta)
            if not chunk:
                break
            if not deltas:
                alive()  # a comment, a ping, or a part of something long
            if not decoder.done:
                chunk = await content.readany()
    except EventTooLarge as error:
        raise ProviderError(str(error), fault="internal") from None
    except (BadResponse, Disconnected):
        pass  # the decoder knows whether the answer was complete before the connection broke
    else:
        if not has_events and not is_binary:
            raise _not_a_stream(response.content_type, beginning, info, secrets)
    reply = decoder.finish()
    if not content.at_eof():
        await _drain(content)
    return reply


def _frame_reader() -> FrameReader:
    from retinue.net.event_stream import FrameReader  # one vendor alone has such streams

    return FrameReader()


def _not_a_stream(content_type: str, beginning: bytes, info: EndpointInfo, secrets: Sequence[str]) -> ProviderError:
    if not beginning.strip(_SPACE):
        return ProviderError("the answer is empty", fault="cut")
    if is_html(beginning) and (title := display_text(html_title(beginning), secrets)):
        message = f"the answer is a web page ({title}), not an event stream. Check the {info.url_field}"
        return ProviderError(message, fault="cut")
    text = display_text(beginning[:SHOWN_BYTES].decode("utf-8", "replace"), secrets)
    return ProviderError(
        f"the answer ({content_type}) is not an event stream: {text}. Check the {info.url_field}", fault="cut"
    )


async def _rest(content: ResponseBody, beginning: bytes) -> bytes:
    pieces, size = [beginning], len(beginning)
    while piece := await content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_EVENT_BYTES:
            raise ProviderError(f"the answer has more than {MAX_EVENT_BYTES} bytes", fault="internal")
    answer = b"".join(pieces)
    _check_values(answer)
    return answer


def _check_values(payload: bytes) -> None:
    """Raise `ProviderError` for JSON of very many values, which would stop other runs for seconds."""
    if values_in(payload) > MAX_JSON_VALUES:
        raise ProviderError(f"a part of the answer has more than {MAX_JSON_VALUES} values", fault="internal")


async def _drain(content: ResponseBody) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while not content.at_eof():
                await content.readany()
    except (BadResponse, Disconnected, ProviderError, TimeoutError):
        pass  # the answer is complete; the connection will be closed


async def _read_error(response: Response) -> bytes:
    """The body of an error response, up to `ERROR_BYTES`, or what arrived within `ERROR_SECONDS`."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_SECONDS):
            while len(body) < ERROR_BYTES and (piece := await response.content.readany()):
                body += piece
    except (BadResponse, Disconnected, TimeoutError):
        pass
    return body[:ERROR_BYTES]


def connection_error(
    error: BadResponse | Disconnected | ProxyFailed | OSError, info: EndpointInfo, secrets: Sequence[str]
) -> ProviderError:
    """The error for a request without a complete response."""
    where, field = f"{info.address} ({info.url_field} {info.base_url})", info.url_field
    match error:
        case ProxyFailed():
            advice = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            message = f"cannot reach {where} through the proxy that the environment names. {advice}"
        case socket.gaierror():
            message = f"cannot find the host of {where}. Check the {field} and the network"
        case ssl.SSLError():
            advice = "Check the server's certificate, and whether it speaks https at all"
            message = f"cannot make a secure connection to {where}: {display_text(str(error), secrets)}. {advice}"
        case TimeoutError():
            reason = f"no connection within {CONNECT_SECONDS:g} s"
            message = f"cannot reach {where}: {reason}. Check the {field} and the network"
        case BadResponse():
            return ProviderError(f"{where} did not answer in HTTP: {display_text(str(error), secrets)}", fault="cut")
        case Disconnected():
            return ProviderError(f"{where} closed the connection before it had answered", fault="cut")
        case OSError():
            text = os.strerror(error.errno) if error.errno else mask_secrets(str(error), ())
            message = f"cannot reach {where}: {text}. Check that the server runs and the {field} is right"
    return ProviderError(message, fault="unreachable")


def _secrets_in(name: str, value: str) -> Iterator[str]:
    """The secrets in a header: its value, and the part after a scheme such as `Bearer` or `Basic`.

    >>> list(_secrets_in("Authorization", "Bearer abc")), list(_secrets_in("X-Title", "My long program"))
    (['Bearer abc', 'abc'], [])
    """
    is_long = len(value) >= _MIN_KEY_CHARS and not _PUBLIC_HEADER.fullmatch(name)
    if value and (is_long or _SECRET_HEADER.search(name)):
        yield value
        if " " in value.strip():
            yield value.split()[-1]


def _parse_url(base_url: str, field: str) -> URL:
    try:
        url = URL(base_url)
        port = url.port
    except ValueError as error:
        raise BadInput(f"{field} {base_url!r} is not an address: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or port is None:
        raise BadInput(f"{field} {base_url!r} is not an address; expected something like https://host/v1")
    if url.user is not None or url.password is not None:
        raise BadInput(f"the {field} for {url.host} has a name or password in it; name the key's variable instead")
    return url.with_fragment(None)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise BadInput(f"header {name!r} cannot be sent: it has characters that HTTP does not allow")
    return dict(headers)


class HttpProvider(ABC):
    """Base class of providers that stream their answers from a server.

    Arguments of all wires: `api_key_env` names the environment variable of the key, which is read for each request and
    sent to `base_url` only; without it no key is sent. `headers` are added to every request. With `full_url`,
    `base_url` is the complete URL of requests, and nothing is added to it. `http` is a session of the caller, who
    closes it; without one the provider opens its own, and `close` closes that.
    """

    _endpoint: Endpoint
    """Set by wires with one URL; others override `base_url` and `endpoint`."""

    effort_option: ClassVar[str] = ""
    """The option of the effort, if the server may reject a step and take another one."""

    def __init__(self, http: Http | None) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._unsupported = UnsupportedOptions()
        self.defaults = NO_OPTIONS
        """Options of requests that set none of their own."""
        self.agents_write: Callable[[], Sequence[str]] = tuple
        """The folders in which agents may write, besides the current one: no program is started from there."""

    @property
    def base_url(self) -> str:
        """The address, without secrets."""
        return self._endpoint.info.base_url

    @abstractmethod
    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        """The body of a request, without the `unsupported` options."""

    @abstractmethod
    def options(self, request: Request, unsupported: Collection[str]) -> Mapping[str, object]:
        """The options in that body, by the names that a server uses when it rejects one."""

    @abstractmethod
    def decoder(self, model: str) -> StreamDecoder:
        """A decoder for one response."""

    async def endpoint(self, model: str, *, streams: bool = True) -> Endpoint:
        """The endpoint of a model, for answers as streams or as a whole."""
        return self._endpoint

    @property
    def info(self) -> EndpointInfo:
        """What error messages say of the address."""
        return self._endpoint.info

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown of its requests."""
        return self._endpoint.secrets()

    def unsupported(self, model: str) -> frozenset[str]:
        """The options that a model has rejected."""
        return self._unsupported.for_model(model)

    def headers_of(self, request: Request) -> dict[str, str]:
        """The headers that the options of a request add."""
        return dict(request.options.extra_headers)

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply, in one attempt; options that the server rejects are left out, then and later."""
        if self.defaults is not NO_OPTIONS:
            request = request.with_defaults(self.defaults)
        model, options = request.model, request.options
        more_headers, tokens = None, ()
        if options is not NO_REQUEST_OPTIONS or request.server_tools:
            more_headers = self.headers_of(request)
            tokens = _tokens_in(request) if request.server_tools else ()
        endpoint = await self.endpoint(model, streams=options.stream is not False)
        rejected_now: frozenset[str] = NONE
        while True:
            unsupported = self._unsupported.for_model(model) | rejected_now
            body = self.encode(request, unsupported)
            try:
                return await endpoint.send(
                    body,
                    self.decoder(model),
                    publish,
                    model=model,
                    alive=request.alive,
                    max_output=request.max_output,
                    more_headers=more_headers,
                    more_secrets=tokens,
                )
            except ProviderError as error:
                rejected = self.rejected(request, unsupported, error)
                if rejected is None or rejected in unsupported:
                    raise
                rejected_now |= {rejected}

    def rejected(self, request: Request, unsupported: Collection[str], error: ProviderError) -> str | None:
        """The part of a request that an error rejects, if it can be left out; it is remembered for the model."""
        option = self.effort_option
        if option and rejects_value(error, option) and not any(each.startswith(f"{option}=") for each in unsupported):
            step = self.options(request, unsupported).get(option)
            rejected = rejected_steps(error, str(step)) if step is not None else ()
            for each in rejected:
                self._unsupported.add(request.model, f"{option}={each}")
            if rejected:
                return f"{option}={step}"
        sent = [*self.options(request, unsupported), *([RESULT_MEDIA] if sends_result_media(request) else [])]
        return self._unsupported.learn(request.model, sent, error)

    async def close(self) -> None:
        """Close the connections, unless the caller owns the session."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"
