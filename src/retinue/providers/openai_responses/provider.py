"""The wire of OpenAI's Responses, which is how its reasoning models want to be spoken to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.openai_responses.request import MEMO, Last, Spelling, encode, options
from retinue.providers.openai_responses.response import Decoder

__all__ = ["Continuing", "Decoder", "OpenAIResponsesProvider", "Spelling", "encode"]

Continuing: TypeAlias = Literal["whole", "previous"]
"""What each request has: the whole conversation, or the id of the previous response and what is new."""

LAST = "openai_responses.last"
"""Where in a request's memo the last reply is kept."""


class OpenAIResponsesProvider(HttpProvider):
    """A provider that streams responses from `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request.

    Each request has the whole conversation, and nothing is stored at the vendor. With `continues="previous"` it has the
    id of the last response and what came after it, as long as this process has made that request itself and the server
    knows the id; else the whole again. Calls and results are read in either spelling, and written as OpenAI does, or
    with `spelling="tool_call"` as `tool_call` and `tool_result`. With `explicit`, how much to think is said even if
    nobody asked for it. With `whole_url`, `base_url` is the whole address of requests.

    >>> OpenAIResponsesProvider("https://api.openai.com/v1", "OPENAI_API_KEY")
    <OpenAIResponsesProvider https://api.openai.com/v1>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        spelling: Spelling = "function_call",
        continues: Continuing = "whole",
        explicit: bool = False,
        whole_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._spelling: Spelling = spelling
        self._continues: Continuing = continues
        self._explicit = explicit
        path = "" if whole_url else "/responses"
        self._endpoint = Endpoint(base_url, path, api_key_env=api_key_env, headers=headers or {}, http=self._http)

    @property
    def base_url(self) -> str:
        return self._endpoint.place.base_url

    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await super().answer(request, publish)
        if self._continues == "previous" and reply.response_id:
            request.memo[LAST] = Last(reply.response_id, reply.message, request.memo.get(MEMO))
        return reply

    def encode(self, request: Request, unwanted: Collection[str]) -> bytes:
        last = self._last(request)
        return encode(request, spelling=self._spelling, explicit=self._explicit, last=last, unwanted=unwanted)

    def options(self, request: Request, unwanted: Collection[str]) -> Iterable[str]:
        return options(request, unwanted, explicit=self._explicit, last=self._last(request))

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint

    def _last(self, request: Request) -> Last | None:
        last = request.memo.get(LAST)
        return last if isinstance(last, Last) else None
