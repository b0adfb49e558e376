"""The wire of OpenAI's chat completions, which most vendors and nearly all local servers speak too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.openai_chat.request import encode, options
from retinue.providers.openai_chat.response import Decoder

__all__ = ["Decoder", "OpenAIChatProvider", "encode"]


class OpenAIChatProvider(HttpProvider):
    """A provider that streams chat completions from `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request. With `sends_reasoning`, a reply's thoughts
    are sent back together with its calls, as some reasoning models demand and other servers refuse. With `explicit`,
    models that think are told even what nobody asked for: to answer in text, and how much to think. With `whole_url`,
    `base_url` is the whole address of requests, and nothing is added to it.

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
        whole_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._sends_reasoning = sends_reasoning
        self._explicit = explicit
        path = "" if whole_url else "/chat/completions"
        self._endpoint = Endpoint(base_url, path, api_key_env=api_key_env, headers=headers or {}, http=self._http)

    @property
    def base_url(self) -> str:
        return self._endpoint.place.base_url

    def encode(self, request: Request, unwanted: Collection[str]) -> bytes:
        return encode(request, sends_reasoning=self._sends_reasoning, explicit=self._explicit, unwanted=unwanted)

    def options(self, request: Request, unwanted: Collection[str]) -> Iterable[str]:
        return options(request, unwanted, explicit=self._explicit)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint
