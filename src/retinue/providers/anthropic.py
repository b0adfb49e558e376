"""The wire of Anthropic's messages, which several vendors of other models speak too."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.net.http import Http
from retinue.providers.anthropic_reply import Decoder
from retinue.providers.anthropic_request import encode
from retinue.providers.endpoint import Endpoint

__all__ = ["AnthropicProvider", "Decoder", "encode"]

VERSION = "2023-06-01"
_VERSION_HEADER = "anthropic-version"


class AnthropicProvider:
    """A provider that streams messages from `base_url`, such as `https://api.anthropic.com`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request; the version of the format can be among
    them.

    `http` is the session to use, and stays its owner's; without one the provider has its own, which `close` closes.

    >>> AnthropicProvider("https://api.anthropic.com", "ANTHROPIC_API_KEY")
    <AnthropicProvider https://api.anthropic.com>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        http: Http | None = None,
    ) -> None:
        self._owns_http = http is None
        self._http = http or Http()
        headers = dict(headers or {})
        if all(name.lower() != _VERSION_HEADER for name in headers):
            headers[_VERSION_HEADER] = VERSION
        self._endpoint = Endpoint(
            # Other vendors' addresses end in /v1, and people are used to it.
            base_url.rstrip("/").removesuffix("/v1"),
            "/v1/messages",
            api_key_env=api_key_env,
            headers=headers,
            http=self._http,
            key_header="x-api-key",
            key_prefix="",
        )

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The model's reply to `request`, in one attempt."""
        return await self._endpoint.ask(encode(request), Decoder(model=request.model), publish, model=request.model)

    async def close(self) -> None:
        """Close the connections, unless they belong to somebody else."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> AnthropicProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AnthropicProvider {self._endpoint.place.base_url}>"
