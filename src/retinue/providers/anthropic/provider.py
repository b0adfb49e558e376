"""The wire of Anthropic's messages, which several vendors of other models speak too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from retinue.core.ports import Request
from retinue.net.http import Http
from retinue.providers.anthropic.request import encode, named_options
from retinue.providers.anthropic.response import Decoder
from retinue.providers.http import Endpoint, HttpProvider

__all__ = ["AnthropicProvider", "Decoder", "encode"]

VERSION = "2023-06-01"
_VERSION_HEADER = "anthropic-version"


class AnthropicProvider(HttpProvider):
    """A provider that streams messages from `base_url`, such as `https://api.anthropic.com`.

    `api_key_env` names the environment variable that holds the key; it is read at each request and sent to that address
    alone. Without it no key is sent. `headers` go along with every request; the version of the format can be among
    them. With `whole_url`, `base_url` is the whole address of requests.

    >>> AnthropicProvider("https://api.anthropic.com", "ANTHROPIC_API_KEY")
    <AnthropicProvider https://api.anthropic.com>
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        whole_url: bool = False,
        http: Http | None = None,
    ) -> None:
        super().__init__(http)
        headers = dict(headers or {})
        if all(name.lower() != _VERSION_HEADER for name in headers):
            headers[_VERSION_HEADER] = VERSION
        self._endpoint = Endpoint(
            # Other vendors' addresses end in /v1, and people are used to it.
            base_url if whole_url else base_url.rstrip("/").removesuffix("/v1"),
            "" if whole_url else "/v1/messages",
            api_key_env=api_key_env,
            headers=headers,
            http=self._http,
            key_header="x-api-key",
            key_prefix="",
        )

    @property
    def base_url(self) -> str:
        return self._endpoint.place.base_url

    def encode(self, request: Request, unwanted: Collection[str]) -> bytes:
        return encode(request, unwanted=unwanted)

    def options(self, request: Request, unwanted: Collection[str]) -> Iterable[str]:
        return named_options(request, unwanted)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)

    async def endpoint(self, model: str) -> Endpoint:
        return self._endpoint
