"""Helpers that call a fake chat server and return the error."""

import os
from unittest.mock import patch

import pytest

from retinue.core.errors import ProviderError, ProviderFault
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.testing.contracts.provider import DeltaListener, sample_request
from retinue.testing.fake_chat import FakeChat, Playable

KEY = "s3cret-and-long-enough"
VARIABLE = "FAKE_VENDOR_KEY"


async def failure_of(provider: OpenAIChatProvider, listener: DeltaListener | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as failure:
        await provider.answer(sample_request(), (listener or DeltaListener()).publish)
    return failure.value


async def failure(played: Playable, listener: DeltaListener | None = None) -> ProviderError:
    """The error of a request to a server that answers like this; its address is replaced by `VENDOR`."""
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url, VARIABLE) as provider:
        with patch.dict(os.environ, {VARIABLE: KEY}):
            error = await failure_of(provider, listener)
        message = str(error).replace(vendor.url, "VENDOR")
        error.args = (message.replace(vendor.url.removeprefix("http://"), "VENDOR:PORT"),)
        return error


Facts = tuple[str, ProviderFault, int | None]


def facts(error: ProviderError) -> Facts:
    return str(error), error.fault, error.status
