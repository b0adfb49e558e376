"""The wire of OpenAI's chat completions, which most vendors and nearly all local servers speak too."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.endpoint import Endpoint
from retinue.providers.openai_chat_reply import Decoder
from retinue.providers.openai_chat_request import encode, options
from retinue.providers.unwanted import Unwanted

__all__ = ["Decoder", "OpenAIChatProvider", "encode"]


class OpenAIChatProvider:
    """A provider that streams chat completions from `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request. With `sends_reasoning`, a reply's thoughts
    are sent back together with its calls, as some reasoning models demand and other servers refuse.

    `http` is the session to use, and stays its owner's; without one the provider has its own, which `close` closes.

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
        http: Http | None = None,
    ) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._sends_reasoning = sends_reasoning
        self._unwanted = Unwanted()
        self._endpoint = Endpoint(
            base_url, "/chat/completions", api_key_env=api_key_env, headers=headers or {}, http=self._http
        )

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`, in one attempt; an option that the server refuses is left out."""
        model = request.model
        while True:
            unwanted = self._unwanted.of(model)
            body = encode(request, sends_reasoning=self._sends_reasoning, unwanted=unwanted)
            try:
                return await self._endpoint.ask(body, Decoder(model=model), publish, model=model)
            except ProviderError as refusal:
                if not self._unwanted.learn(model, options(request, unwanted), refusal):
                    raise

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> OpenAIChatProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<OpenAIChatProvider {self._endpoint.place.base_url}>"
