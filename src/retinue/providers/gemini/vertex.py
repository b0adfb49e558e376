"""Provider for Gemini on Google Cloud (Vertex AI): the same requests, with a Google access token."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from retinue.core.ports import Request
from retinue.providers.gemini.request import LEVEL, encode, options
from retinue.providers.gemini.response import Decoder
from retinue.providers.google_cloud import GoogleCloudProvider


class VertexAIGeminiProvider(GoogleCloudProvider):
    """A provider for Gemini; `GoogleCloudProvider` describes the arguments.

    >>> VertexAIGeminiProvider("https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu")
    <VertexAIGeminiProvider https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu>
    """

    effort_option: ClassVar[str] = LEVEL

    def path(self, model: str, *, streams: bool) -> str:
        method = "streamGenerateContent" if streams else "generateContent"
        return f"/publishers/google/models/{model}:{method}"

    @property
    def query(self) -> str:
        return "alt=sse"

    def encode(self, request: Request, unsupported: Collection[str]) -> bytes:
        return encode(request, unsupported=unsupported)

    def options(self, request: Request, unsupported: Collection[str]) -> dict[str, object]:
        return options(request, unsupported)

    def decoder(self, model: str) -> Decoder:
        return Decoder(model=model)
