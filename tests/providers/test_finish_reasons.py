"""Finish reasons over HTTP: only a reason that is known as an end makes an answer complete."""

import pytest

import retinue
from retinue.core.errors import ProviderError
from retinue.core.ports import Provider
from retinue.testing.contracts.provider import DeltaListener, sample_request
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.providers.raw_answers import PROVIDERS, answer

INCOMPLETE = [
    ("chat", "abort"),
    ("chat", "repetition_truncation"),
    ("chat", "something_new"),
    ("responses", "something_new"),
    ("anthropic", "something_new"),
    ("bedrock", "something_new"),
    ("gemini", "NO_IMAGE"),
    ("gemini", "SOMETHING_NEW"),
]


async def failure_of(wire: str, response: FakeResponse) -> ProviderError:
    async with FakeServer(lambda _: response) as server, PROVIDERS[wire](server.url) as provider:
        with pytest.raises(ProviderError) as failed:
            await provider.answer(sample_request(), DeltaListener().publish)
    return failed.value


@pytest.mark.parametrize(("wire", "reason"), INCOMPLETE)
async def test_an_answer_with_an_unknown_finish_reason_is_incomplete(wire: str, reason: str) -> None:
    error = await failure_of(wire, answer(wire, "It is bec", stop=reason))

    assert (error.fault, error.partial, error.transient) == ("cut", "It is bec", True)
    assert f"the answer is incomplete: the server ended it with the reason '{reason}'" in str(error)


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "network_error", "error"])
async def test_a_chat_server_that_gave_up_is_tried_again(reason: str) -> None:
    error = await failure_of("chat", answer("chat", "It is bec", stop=reason))

    assert (error.fault, error.wants_less) == ("overloaded", False)
    assert "the server gave up in the middle of the answer" in str(error)


@pytest.mark.parametrize(
    ("wire", "reason", "stop"),
    [
        ("chat", "stop", "end"),
        ("chat", "STOP", "end"),
        ("chat", "eos", "end"),
        ("chat", "model_length", "length"),
        ("chat", "sensitive", "refusal"),
        ("responses", "", "end"),
        ("responses", "max_output_tokens", "length"),
        ("responses", "content_filter", "refusal"),
        ("anthropic", "stop_sequence", "end"),
        ("anthropic", "model_context_window_exceeded", "length"),
        ("bedrock", "model_context_window_exceeded", "length"),
        ("bedrock", "content_filtered", "refusal"),
        ("gemini", "STOP", "end"),
        ("gemini", "CONTINUATION", "length"),
        ("gemini", "SPII", "refusal"),
    ],
)
async def test_known_finish_reasons_say_how_an_answer_ended(wire: str, reason: str, stop: str) -> None:
    response = answer(wire, "It is bec", stop=reason)
    async with FakeServer(lambda _: response) as server, PROVIDERS[wire](server.url) as provider:
        reply = await provider.answer(sample_request(), DeltaListener().publish)

    assert (reply.message.text, reply.stop) == ("It is bec", stop)


async def run_with(provider: Provider) -> retinue.Outcome:
    async with retinue.open(model="m", provider=provider, dialects=(), home=retinue.MEMORY) as r:
        return await r.run("Why is it slow?")


@pytest.mark.parametrize(("wire", "reason"), INCOMPLETE)
async def test_a_run_takes_the_next_complete_answer(wire: str, reason: str) -> None:
    answers = [answer(wire, "It is bec", stop=reason), answer(wire, "It is because of the pool.")]
    async with FakeServer(lambda _: answers.pop(0)) as server:
        outcome = await run_with(PROVIDERS[wire](server.url))

    assert (outcome.result, outcome.text, len(server.requests)) == ("completed", "It is because of the pool.", 2)


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_run_whose_answers_stay_incomplete_fails_with_the_reason(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "It is bec", stop="something_new")) as server:
        outcome = await run_with(PROVIDERS[wire](server.url))

    assert (outcome.result, outcome.reason, outcome.text) == ("failed", "model_error", "It is bec")
    assert "something_new" in outcome.error
