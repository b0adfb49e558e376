"""One attempt over HTTP, the same for every wire: send a body, read the stream, and say what went wrong if it did.

What the body says and what the stream means is the wire's business: it hands in bytes and a decoder.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import Reply, StartDelta
from retinue.core.ports import Publish, Request
from retinue.net.http import CONNECT_SECONDS, Http, UnknownProxy
from retinue.net.sse import MAX_EVENT_BYTES, EventReader, EventTooLarge
from retinue.providers.http_errors import Place, advised, masked, refusal, shown
from retinue.providers.stream_decoder import AnswerDecoder
from retinue.providers.unsupported_options import NONE, UnsupportedOptions

ERROR_BYTES = 64 * 1024
ERROR_SECONDS = 5.0
"""How much of an error's body is read, and for how long."""

LINGER_SECONDS = 0.02
"""How long a finished answer waits for the end of its stream, so that the connection can be used again."""

SHOWN_OF_NONSENSE = 200
"""How many bytes are shown of an answer that makes no sense."""

_SPACE = b" \t\r\n"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
_PLAIN_HEADER = re.compile(
    r"(?:anthropic|openai)-(?:beta|version|organization|project)|accept.*|content-type|user-agent|(?:http-)?referer|x-title",
    re.IGNORECASE,
)
"""Headers that are no secret, whatever is in them; of all others, a value as long as a key is taken for one."""
_AS_LONG_AS_A_KEY = 8


class Endpoint:
    """Where a provider's requests go, and with which key: the name of its variable is kept, never the key."""

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
    ) -> None:
        base = _checked(base_url, "base URL" if path else "url")
        self._http = http
        self._url = base if base.path.endswith(path) else base.with_path(base.path.rstrip("/") + path, keep_query=True)
        self._key_header, self._key_prefix = key_header, key_prefix
        plain = base.with_query(None)
        self.place = Place(
            base_url=str(plain).rstrip("/"),
            url=str(self._url.with_query(None)),
            address=f"{base.host}:{base.port}",
            api_key_env=api_key_env,
            whole_url=not path,
        )
        self._headers = {"Content-Type": "application/json"} | _checked_headers(headers)
        if api_key_env and any(name.lower() == key_header.lower() for name in headers):
            raise BadInput(f"the header {key_header} and the key in {api_key_env} exclude each other: give one of them")
        self._secrets = tuple(secret for name, value in headers.items() for secret in _secrets_in(name, value))

    async def ask(
        self, body: bytes, decoder: AnswerDecoder, publish: Publish, *, model: str, alive: Callable[[], None]
    ) -> Reply:
        """Send `body`; publish what streams in, and return the whole answer or raise a `ProviderError`.

        `alive` is called for what comes without being a piece of the answer.
        """
        key = self._key()
        headers = self._headers | {self._key_header: self._key_prefix + key} if key else self._headers
        secrets = (*self._secrets, key) if key else self._secrets
        # Errors are raised outside of the handlers: an error of aiohttp that came along as the context could show the
        # headers of the request, and with them the key.
        try:
            async with self._http.post(self._url, body, headers) as response:
                if 200 <= response.status < 300:
                    return await _read(response, decoder, publish, alive, self.place, secrets)
                failure = refusal(
                    response.status,
                    response.headers,
                    await _beginning(response),
                    reason=response.reason or "",
                    place=replace(self.place, model=model),
                    secrets=secrets,
                )
        except ProviderError as error:
            words = f"{self.place.base_url}: {shown(str(error), secrets)}"
            failure = ProviderError(
                advised(words, error, replace(self.place, model=model)),
                fault=error.fault,
                status=error.status,
                retry_after=error.retry_after,
                partial=decoder.partial,
                busy=error.busy,
            )
        except UnknownProxy as unknown:
            failure = ProviderError(f"cannot reach {self.place.base_url}: {unknown}", fault="internal")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = broken_connection(error, self.place, secrets, proxy=self._http.proxy(self._url))
        raise failure

    def _key(self) -> str:
        """The key, read when it is needed; empty if none is configured."""
        name = self.place.api_key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ProviderError(
                f"the environment variable {name} is not set; set it to the key for {self.place.base_url}", fault="auth"
            )
        if not key.isascii() or not key.isprintable():
            raise ProviderError(
                f"the environment variable {name} holds characters that no key has; "
                f"set it to the key for {self.place.base_url} and nothing else",
                fault="auth",
            )
        return key


async def _read(
    response: aiohttp.ClientResponse,
    decoder: AnswerDecoder,
    publish: Publish,
    alive: Callable[[], None],
    place: Place,
    secrets: Sequence[str],
) -> Reply:
    """The answer, as a stream of events or as one JSON object, whatever its headers call it."""
    content = response.content
    chunk = await content.readany()
    while chunk and not chunk.strip(_SPACE):  # some servers send blanks until they have something to say
        alive()
        chunk = await content.readany()
    if chunk.lstrip(_SPACE).startswith(b"{"):
        deltas = decoder.feed_whole(await _rest(content, chunk))
        publish(StartDelta(decoder.response_id))
        for delta in deltas:
            publish(delta)
        return decoder.finish()
    beginning, heard, reader = chunk[:SHOWN_OF_NONSENSE], False, EventReader()
    try:
        while not decoder.done:
            deltas = ()
            for payload in reader.feed(chunk) if chunk else reader.end():
                deltas = decoder.feed(payload)
                if not heard:  # the first event of every vendor has the id of the response
                    heard = True
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
    except aiohttp.ClientError:
        pass  # the decoder knows whether the answer was complete before the connection broke
    else:
        if not heard:
            raise _no_stream(response.content_type, beginning, place, secrets)
    reply = decoder.finish()
    if not content.at_eof():
        await _linger(content)
    return reply


def _no_stream(content_type: str, beginning: bytes, place: Place, secrets: Sequence[str]) -> ProviderError:
    if not beginning.strip(_SPACE):
        return ProviderError("the answer is empty", fault="cut")
    words = shown(beginning.decode("utf-8", "replace"), secrets)
    return ProviderError(
        f"the answer ({content_type}) is no stream of events: {words}. Check the {place.called}", fault="cut"
    )


async def _rest(content: aiohttp.StreamReader, beginning: bytes) -> bytes:
    pieces, size = [beginning], len(beginning)
    while piece := await content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_EVENT_BYTES:
            raise ProviderError(f"the answer has more than {MAX_EVENT_BYTES} bytes", fault="internal")
    return b"".join(pieces)


async def _linger(content: aiohttp.StreamReader) -> None:
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while not content.at_eof():
                await content.readany()
    except (aiohttp.ClientError, TimeoutError):
        pass  # the answer is whole; the connection will be closed


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error's body as there is any use for, or as had come when the server fell silent."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_SECONDS):
            while len(body) < ERROR_BYTES and (piece := await response.content.readany()):
                body += piece
    except (aiohttp.ClientError, TimeoutError):
        pass
    return body[:ERROR_BYTES]


def broken_connection(
    error: aiohttp.ClientError | TimeoutError | OSError,
    place: Place,
    secrets: Sequence[str],
    *,
    proxy: str | None = None,
) -> ProviderError:
    """The error for a request that got no answer, or not all of it, perhaps because of the `proxy` on its way."""
    where = f"{place.address} ({place.called} {place.base_url})"
    match error:
        case _ if _is_of_the_proxy(error, proxy):
            return ProviderError(
                f"cannot reach {where} through the proxy that the environment names. Check HTTP_PROXY, HTTPS_PROXY and "
                "NO_PROXY",
                fault="unreachable",
            )
        case aiohttp.ClientConnectorDNSError():
            return ProviderError(
                f"cannot find the host of {where}. Check the {place.called} and the network", fault="unreachable"
            )
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError() | ssl.SSLError():
            reason = shown(str(getattr(error, "certificate_error", None) or getattr(error, "os_error", error)), secrets)
            return ProviderError(
                f"cannot make a secure connection to {where}: {reason}. Check the server's certificate, and whether it "
                "wants https at all",
                fault="unreachable",
            )
        case aiohttp.ClientConnectorError(os_error=reason):
            return ProviderError(
                f"cannot reach {where}: {_in_words(reason)}. "
                f"Check that the server runs and the {place.called} is right",
                fault="unreachable",
            )
        case TimeoutError():
            return ProviderError(
                f"cannot reach {where}: no connection within {CONNECT_SECONDS:g} s. "
                f"Check the {place.called} and the network",
                fault="unreachable",
            )
        case aiohttp.ClientResponseError():
            return ProviderError(f"{where} does not answer in HTTP: {shown(error.message, secrets)}", fault="cut")
        case _:
            return ProviderError(f"{where} closed the connection before it had answered", fault="cut")


def _is_of_the_proxy(error: Exception, proxy: str | None) -> bool:
    """Whether it was the proxy that could not be reached, or that did not want to go on."""
    match error:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return True
        case aiohttp.ClientConnectorError() | aiohttp.ClientConnectorCertificateError() if proxy is not None:
            return error.host == URL(proxy).raw_host
        case _:
            return False


def _in_words(reason: OSError) -> str:
    return os.strerror(reason.errno) if reason.errno else masked(str(reason), ())


def _secrets_in(name: str, value: str) -> Iterator[str]:
    """What must not be shown of a header: its value, and what follows the word in front of a key (`Bearer`, `Basic`).

    >>> list(_secrets_in("Authorization", "Bearer abc")), list(_secrets_in("X-Title", "My long program"))
    (['Bearer abc', 'abc'], [])
    """
    long = len(value) >= _AS_LONG_AS_A_KEY and not _PLAIN_HEADER.fullmatch(name)
    if value and (long or _SECRET_HEADER.search(name)):
        yield value
        if " " in value.strip():
            yield value.split()[-1]


def _checked(base_url: str, called: str) -> URL:
    try:
        url = URL(base_url)
        port = url.port
    except ValueError as wrong:
        raise BadInput(f"{called} {base_url!r} is not an address: {wrong}") from None
    if url.scheme not in ("http", "https") or not url.host or port is None:
        raise BadInput(f"{called} {base_url!r} is not an address; expected something like https://host/v1")
    if url.user is not None or url.password is not None:
        raise BadInput(f"the {called} for {url.host} has a name or password in it; name the key's variable instead")
    return url.with_fragment(None)


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise BadInput(f"header {name!r} cannot be sent: it has characters that HTTP does not allow")
    return dict(headers)


class HttpProvider(ABC):
    """A provider that streams its answers from a server.

    `http` is the session to use, and stays its owner's; without one the provider has its own, which `close` closes.
    """

    def __init__(self, http: Http | None) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._unwanted = UnsupportedOptions()

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Its address, as it may be shown."""

    @abstractmethod
    def encode(self, request: Request, unwanted: Collection[str]) -> bytes:
        """The body of a request without these options."""

    @abstractmethod
    def options(self, request: Request, unwanted: Collection[str]) -> Iterable[str]:
        """Which options that body has."""

    @abstractmethod
    def decoder(self, model: str) -> AnswerDecoder:
        """Who reads an answer."""

    @abstractmethod
    async def endpoint(self, model: str) -> Endpoint:
        """Where a model is asked."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`, in one attempt; an option that the server refuses is left out at once, and
        from then on.
        """
        model = request.model
        endpoint = await self.endpoint(model)
        refused: frozenset[str] = NONE
        while True:
            unwanted = self._unwanted.of(model) | refused
            body = self.encode(request, unwanted)
            try:
                return await endpoint.ask(body, self.decoder(model), publish, model=model, alive=request.alive)
            except ProviderError as refusal:
                named = self._unwanted.learn(model, self.options(request, unwanted), refusal)
                if named is None:
                    raise
                refused |= {named}

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
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
