"""Provider for the OpenAI Chat Completions API, which most vendors and nearly all local servers speak too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.openai_chat import COMPLETIONS_PATH
from retinue.providers.openai_chat.request import encode, options
from retinue.providers.openai_chat.response import Decoder

__all__ = ["Decoder", "OpenAIChatProvider", "encode"]


class OpenAIChatProvider(HttpProvider):
    """A provider for chat completions at `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable of the key, which is read for each request and sent to that address
    only; without it no key is sent. `headers` are added to every request. With `sends_reasoning`, the thinking of a
    reply is sent back together with its calls, as some reasoning models require and other servers reject. With
    `explicit`, requests to reasoning models state their defaults: text as the output format, and the reasoning effort.
    With `full_url`, `base_url` is the complete URL of requests, and nothing is added to it.

    >>> OpenAIChatProvider("http://localhost:11434/v1")
    <OpenAIChatProvider http://localhost:11434/v1>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        sends_reasoning: bool = False,
        explicit: bool = False,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._sends_reasoning = sends_reasoning
        self._explicit = explicit
        path = "" if full_url else COMPLETIONS_PATH
        self._endpoint = Endpoint(base_url, path, api_key_env=api_key_env, headers=headers or {}, http=self._http)

    @property
    def base_url(self) -> str:
        return self._endpoint.info.base_url

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, sends_reasoning=self._sends_reasoning, explicit=self._explicit, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> Iterable[str]:
        return options(request, unsupported, explicit=self._explicit)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint
