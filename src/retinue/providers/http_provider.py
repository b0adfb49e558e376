"""What all providers over HTTP have in common: their connections, one attempt, and options that a server refuses.

What a request and an answer look like, and where they go, is the wire's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Self

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.decoder import AnswerDecoder
from retinue.providers.endpoint import Endpoint
from retinue.providers.unwanted import NONE, Unwanted


class HttpProvider(ABC):
    """A provider that streams its answers from a server.

    `http` is the session to use, and stays its owner's; without one the provider has its own, which `close` closes.
    """

    def __init__(self, http: Http | None) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        self._unwanted = Unwanted()

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
