"""Provider for Anthropic's models on Google Cloud (Vertex AI): the same messages, with a Google access token."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from retinue.core.ports import Request
from retinue.providers.anthropic import VERTEX_PATH
from retinue.providers.anthropic.request import EFFORT, encode, sent_options
from retinue.providers.anthropic.response import Decoder
from retinue.providers.google_cloud import GoogleCloudProvider

VERSION = "vertex-2023-10-16"


class VertexAIAnthropicProvider(GoogleCloudProvider):
    """A provider for Anthropic's models; `GoogleCloudProvider` describes the arguments.

    >>> VertexAIAnthropicProvider("https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu")
    <VertexAIAnthropicProvider https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu>
    """

    effort_option: ClassVar[str] = EFFORT

    def path(self, model: str, *, streams: bool) -> str:
        return VERTEX_PATH.format(model=model)

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, version=VERSION, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return sent_options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)
