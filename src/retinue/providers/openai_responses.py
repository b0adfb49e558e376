"""The wire of OpenAI's Responses, which is how its reasoning models want to be spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.endpoint import Endpoint
from retinue.providers.openai_responses_reply import Decoder
from retinue.providers.openai_responses_request import Spelling, encode

__all__ = ["Decoder", "OpenAIResponsesProvider", "Spelling", "encode"]


class OpenAIResponsesProvider:
    """A provider that streams responses from `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request. Nothing is stored at the vendor: each
    request has the whole conversation. Calls and results are read in either spelling, and written as OpenAI does
    (`function_call`), or with `dialect="seed"` as `tool_call` and `tool_result`.

    `http` is the session to use, and stays its owner's; without one the provider has its own, which `close` closes.

    >>> OpenAIResponsesProvider("https://api.openai.com/v1", "OPENAI_API_KEY")
    <OpenAIResponsesProvider https://api.openai.com/v1>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        dialect: Spelling = "live",
        http: Http | None = None,
    ) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._dialect: Spelling = dialect
        self._endpoint = Endpoint(
            base_url, "/responses", api_key_env=api_key_env, headers=headers or {}, http=self._http
        )

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`, in one attempt."""
        body = encode(request, dialect=self._dialect)
        return await self._endpoint.ask(body, Decoder(model=request.model), publish, model=request.model)

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> OpenAIResponsesProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<OpenAIResponsesProvider {self._endpoint.place.base_url}>"
