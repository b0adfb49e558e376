"""The chat wire keeps the promises of a provider, over a real connection to a fake vendor."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from retinue.core.ports import Provider
from retinue.providers.openai_chat import OpenAIChatProvider
from retinue.providers.scripted import Line
from retinue.testing.contracts.provider import PROMISES, Promise
from retinue.testing.fake_chat import FakeChat


@asynccontextmanager
async def stage(line: Line) -> AsyncGenerator[Provider]:
    async with FakeChat(line) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeChat(line, chunk=1) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_chat_wire_keeps_the_promises_of_a_provider(promise: Promise) -> None:
    await promise(stage)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_chat_wire_keeps_them_one_byte_at_a_time(promise: Promise) -> None:
    await promise(stage_of_single_bytes)
