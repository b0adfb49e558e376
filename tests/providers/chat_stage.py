"""A fake chat vendor, and what asking it comes to when it will not answer."""

import os
from unittest.mock import patch

import pytest

from retinue.core.errors import ProviderError, ProviderFault
from retinue.providers.openai_chat.provider import OpenAIChatProvider
from retinue.testing.contracts.provider import Listener, sample_request
from retinue.testing.fake_chat import FakeChat, Playable

KEY = "s3cret-and-long-enough"
VARIABLE = "FAKE_VENDOR_KEY"


async def failure_of(provider: OpenAIChatProvider, listener: Listener | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as failure:
        await provider.answer(sample_request(), (listener or Listener()).publish)
    return failure.value


async def failure(played: Playable, listener: Listener | None = None) -> ProviderError:
    """What asking a vendor comes to that answers so; its address reads `VENDOR`, whatever its port."""
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        with patch.dict(os.environ, {VARIABLE: KEY}):
            error = await failure_of(provider, listener)
        told = str(error).replace(vendor.url, "VENDOR")
        error.args = (told.replace(vendor.url.removeprefix("http://"), "VENDOR:PORT"),)
        return error


Facts = tuple[str, ProviderFault, int | None]


def facts(error: ProviderError) -> Facts:
    return str(error), error.fault, error.status
