"""Recorded answers of real vendors, replayed over HTTP: whole, in small pieces, and cut at every byte."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply, Stop, ToolCall
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.anthropic.response import Decoder as AnthropicDecoder
from retinue.providers.gemini.response import Decoder as GeminiDecoder
from retinue.providers.openai_chat.response import Decoder as ChatDecoder
from retinue.providers.openai_responses.response import Decoder as ResponsesDecoder
from retinue.providers.stream_decoder import StreamDecoder
from retinue.testing.contracts.provider import DeltaListener, sample_request
from retinue.testing.fake_chat import EVENTS
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.conftest import STRESS
from tests.providers.raw_answers import PROVIDERS

FOLDER = Path(__file__).with_name("recordings")

DECODERS: dict[str, Callable[[], StreamDecoder]] = {
    "anthropic": AnthropicDecoder,
    "chat": ChatDecoder,
    "gemini": GeminiDecoder,
    "responses": ResponsesDecoder,
}


@dataclass(frozen=True)
class Recorded:
    """A recording and what it says; `text` is how the text begins, `chars` how long it and the thinking are."""

    name: str
    text: str = ""
    chars: tuple[int, int] = (0, 0)
    calls: tuple[ToolCall, ...] = ()
    usage: tuple[int, int] = (0, 0)
    reasoning: int = 0
    cost: int | None = None
    stop: Stop = "end"
    model: str = ""

    @property
    def wire(self) -> str:
        return self.name.partition("-")[0]

    @property
    def body(self) -> bytes:
        return (FOLDER / f"{self.name}.sse").read_bytes()

    def check(self, reply: Reply) -> None:
        message = reply.message
        thinking = "".join(block.text for block in message.thinking)
        assert message.text.startswith(self.text)
        assert (len(message.text), len(thinking)) == self.chars
        assert (message.calls, reply.stop, reply.model, reply.cost) == (self.calls, self.stop, self.model, self.cost)
        assert reply.usage == Usage(*self.usage, reasoning=self.reasoning)


PELICANS = (
    ToolCall("pelican_name_generator", "{}", "toolu_01LtHJmixrs9NcWQkK8hu8hj"),
    ToolCall("pelican_name_generator", "{}", "toolu_01N8a4jWyf116qKTMqKKmjyt"),
)
HAIKU, FLASH, GPT = "claude-haiku-4-5-20251001", "gemini-2.0-flash", "gpt-4o-2024-08-06"
CAPITAL = ToolCall("get_capital", '{"country":"France"}', "call_kL0PCQV7M2WMoVX8V8OtYSAL")

RECORDINGS = [
    Recorded("anthropic-llm-tools.0", calls=PELICANS, usage=(542, 62), stop="calls", model=HAIKU),
    Recorded("anthropic-llm-tools.1", "Here are two great names", (299, 0), usage=(678, 82), model=HAIKU),
    Recorded(
        "anthropic-thinking.0",
        "Here are the basic steps",
        (1021, 202),
        usage=(43, 282),
        model="claude-sonnet-4-20250514",
    ),
    Recorded(
        "chat-deepseek-thinking.0",
        "Hello there! 😊 How can I help you today?",
        (40, 882),
        usage=(6, 212),
        reasoning=198,
        model="deepseek-reasoner",
    ),
    Recorded(
        "chat-llm-tools-a.0",
        calls=(ToolCall("llm_version", "{}", "0"),),
        usage=(57, 17),
        cost=71_590,
        stop="calls",
        model="moonshotai/kimi-k2",
    ),
    Recorded(
        "chat-llm-tools-a.1",
        "The current version of *llm* is **0.fixed-version**.",
        (52, 0),
        usage=(107, 15),
        cost=101_700,
        model="moonshotai/kimi-k2",
    ),
    Recorded(
        "gemini-tool-calls.0",
        calls=(ToolCall("get_capital", '{"country": "France"}'),),
        usage=(52, 5),
        stop="calls",
        model=FLASH,
    ),
    Recorded(
        "gemini-tool-calls.1",
        calls=(ToolCall("get_temperature", '{"city": "Paris"}'),),
        usage=(64, 5),
        stop="calls",
        model=FLASH,
    ),
    Recorded("gemini-tool-calls.2", "The temperature in Paris is 30°C.\n", (34, 0), usage=(79, 12), model=FLASH),
    Recorded("responses-tool-call.0", calls=(CAPITAL,), usage=(255, 16), stop="calls", model=GPT),
    Recorded("responses-tool-call.1", "The capital of France is Paris.", (31, 0), usage=(278, 9), model=GPT),
]

each_recording = pytest.mark.parametrize("recorded", RECORDINGS, ids=lambda recorded: recorded.name)


def test_every_recording_is_replayed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.sse")) == sorted(recorded.name for recorded in RECORDINGS)


async def replayed(recorded: Recorded, response: FakeResponse) -> tuple[Reply, DeltaListener]:
    listener = DeltaListener()
    async with FakeServer(lambda _: response) as server, PROVIDERS[recorded.wire](server.url) as provider:
        return await provider.answer(sample_request(), listener.publish), listener


@each_recording
@pytest.mark.parametrize("chunk", [None, 1, 7])
async def test_a_recording_is_decoded_over_http(recorded: Recorded, chunk: int | None) -> None:
    body = recorded.body
    if chunk == 1 and len(body) > 8192 and not STRESS:
        pytest.skip("a long recording, byte by byte, at full size only")
    response = FakeResponse(headers=EVENTS, pieces=(body,), chunk=997 if chunk == 7 and len(body) > 8192 else chunk)
    reply, listener = await replayed(recorded, response)

    recorded.check(reply)
    assert listener.text == reply.message.text
    assert listener.thinking == "".join(block.text for block in reply.message.thinking)
    assert listener.calls == [(call.name, call.arguments) for call in reply.message.calls]


@pytest.mark.timeout(900)
@each_recording
async def test_a_recording_that_breaks_off_is_whole_or_an_error(recorded: Recorded) -> None:
    body = recorded.body
    whole, _ = await replayed(recorded, FakeResponse(headers=EVENTS, pieces=(body,)))
    failures: list[tuple[str, str]] = []  # an error would keep the frames of its request: 67,000 of them fill 22 GB
    sent = body
    async with (
        FakeServer(lambda _: FakeResponse(headers=EVENTS, pieces=(sent,), ending="cut")) as server,
        PROVIDERS[recorded.wire](server.url) as provider,
    ):
        for end in range(1, len(body), 1 if STRESS else len(body) // 12):
            sent = body[:end]
            server.requests.clear()
            try:
                reply = await provider.answer(sample_request(), DeltaListener().publish)
            except ProviderError as error:
                failures.append((error.fault, error.partial))
            else:
                assert (reply.message, reply.stop) == (whole.message, whole.stop)
    assert len(failures) >= 6
    assert {fault for fault, _ in failures} == {"cut"}
    assert all(whole.message.text.startswith(partial) for _, partial in failures)


@each_recording
def test_a_recording_cut_at_any_byte_never_gives_a_part_as_whole(recorded: Recorded) -> None:
    body, reader, decoder = recorded.body, EventReader(), DECODERS[recorded.wire]()
    whole: list[Reply] = []
    cut: list[tuple[str, int]] = []
    for position in range(len(body)):
        payloads = list(reader.feed(body[position : position + 1]))
        for payload in payloads:
            decoder.feed(payload)
        if not payloads:
            continue  # between two events nothing changes
        try:
            whole.append(decoder.finish())
        except ProviderError as error:
            cut.append((error.fault, len(whole)))
    assert set(cut) <= {("cut", 0)}, "once it is whole, it stays whole"
    assert {(reply.message, reply.stop) for reply in whole} == {(whole[-1].message, whole[-1].stop)}
    recorded.check(whole[-1])
