"""Provider for the OpenAI Responses API, which OpenAI recommends for its reasoning models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.http import Endpoint, HttpProvider
from retinue.providers.openai_responses import RESPONSES_PATH
from retinue.providers.openai_responses.request import MEMO, LastReply, Spelling, encode, options
from retinue.providers.openai_responses.response import Decoder

__all__ = ["Continuation", "Decoder", "OpenAIResponsesProvider", "Spelling", "encode"]

Continuation: TypeAlias = Literal["whole", "previous"]
"""What each request carries: the whole conversation, or the id of the previous response and what is new."""

LAST_REPLY = "openai_responses.last"
"""The key of the last reply in a request's memo."""


class OpenAIResponsesProvider(HttpProvider):
    """A provider for responses at `base_url`, such as `https://api.openai.com/v1`.

    `api_key_env` names the environment variable of the key, which is read for each request and sent to that address
    only; without it no key is sent. `headers` are added to every request.

    Each request carries the whole conversation, and the vendor stores nothing. With `continues="previous"` it carries
    the id of the last response and what came after it, as long as this process made that request and the server knows
    the id; otherwise the whole conversation again. Tool calls and results are read in either spelling, and written as
    OpenAI does, or with `spelling="tool_call"` as `tool_call` and `tool_result`. With `explicit`, requests state the
    reasoning effort even if the caller set none. With `full_url`, `base_url` is the complete URL of requests.

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
        continues: Continuation = "whole",
        explicit: bool = False,
        full_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        self._spelling: Spelling = spelling
        self._continues: Continuation = continues
        self._explicit = explicit
        path = "" if full_url else RESPONSES_PATH
        self._endpoint = Endpoint(base_url, path, api_key_env=api_key_env, headers=headers or {}, http=self._http)

    @property
    def base_url(self) -> str:
        return self._endpoint.info.base_url

    async def answer(self, request: Request, publish: Publish) -> Reply:
        reply = await super().answer(request, publish)
        if self._continues == "previous" and reply.response_id:
            request.memo[LAST_REPLY] = LastReply(reply.response_id, reply.message, request.memo.get(MEMO))
        return reply

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(
            request,
            spelling=self._spelling,
            explicit=self._explicit,
            last=self._last_reply(request),
            unsupported=unsupported,
        )

    def options(self, request: Request, unsupported: Collection[str]) -> Iterable[str]:
        return options(request, unsupported, explicit=self._explicit, last=self._last_reply(request))

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint

    def _last_reply(self, request: Request) -> LastReply | None:
        last = request.memo.get(LAST_REPLY)
        return last if isinstance(last, LastReply) else None
