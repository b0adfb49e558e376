"""Images and files in requests: each wire writes them in its vendor's format."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import retinue
from retinue.core.attachments import File, Image
from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic import request as anthropic
from retinue.providers.gemini import request as gemini
from retinue.providers.openai_chat import request as openai_chat
from retinue.providers.openai_responses import request as openai_responses
from retinue.testing.fake_server import FakeServer
from tests.providers.raw_answers import PROVIDERS, answer

PNG = Image(b"\x89PNG dots", name="chart.png")
PDF = File(b"%PDF pages", name="report.pdf")
TUNE = File(b"RIFF\0\0\0\0WAVE dots", name="tune.wav")
NOTES = File(b"max = 10\n", name="pool.toml")
PNG_64, PDF_64 = b64encode(PNG.data).decode(), b64encode(PDF.data).decode()
TEXT = 'What is this?\n\n<file name="pool.toml">\nmax = 10\n</file>'

ENCODERS: dict[str, Callable[[Request], bytes]] = {
    "anthropic": anthropic.encode,
    "openai-chat": openai_chat.encode,
    "openai-responses": openai_responses.encode,
    "gemini": gemini.encode,
}


def body(wire: str, *attachments: Image | File) -> dict[str, Any]:
    message = UserMessage("What is this?", attachments=attachments)
    return msgspec.json.decode(ENCODERS[wire](Request(model="m", system="", messages=[message])))


def test_anthropic_gets_image_and_document_blocks() -> None:
    (message,) = body("anthropic", PNG, PDF, NOTES)["messages"]

    assert message["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_64}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF_64},
            "title": "report.pdf",
        },
        {"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}},
    ]


def test_openai_chat_gets_image_url_and_file_parts() -> None:
    (message,) = body("openai-chat", PNG, PDF, NOTES)["messages"]

    assert message["content"] == [
        {"type": "text", "text": TEXT},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG_64}"}},
        {"type": "file", "file": {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF_64}"}},
    ]


def test_openai_responses_gets_input_image_and_input_file() -> None:
    (message,) = body("openai-responses", PNG, PDF, NOTES)["input"]

    assert message["content"] == [
        {"type": "input_text", "text": TEXT},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG_64}"},
        {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF_64}"},
    ]


def test_gemini_gets_inline_data() -> None:
    (message,) = body("gemini", PNG, PDF, NOTES)["contents"]

    assert message["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG_64}},
        {"inlineData": {"mimeType": "application/pdf", "data": PDF_64}},
        {"text": TEXT},
    ]


def test_audio_is_sent_where_the_wire_takes_it() -> None:
    (chat,), (gemini,) = body("openai-chat", TUNE)["messages"], body("gemini", TUNE)["contents"]

    tune = b64encode(TUNE.data).decode()
    assert chat["content"][1] == {"type": "input_audio", "input_audio": {"data": tune, "format": "wav"}}
    assert gemini["parts"][0] == {"inlineData": {"mimeType": "audio/wav", "data": tune}}
    for wire in ("anthropic", "openai-responses"):
        with pytest.raises(ProviderError, match=rf"the wire {wire} cannot send tune.wav \(audio/wav\): it takes text"):
            body(wire, TUNE)


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_audio_reaches_the_server_or_the_wire_is_named(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "A song.")) as server:
        provider = PROVIDERS[wire](server.url)
        async with retinue.open(model="m", provider=provider, dialects=(), home=retinue.MEMORY) as r:
            outcome = await r.run("What is this?", attachments=[TUNE])

    if wire in ("chat", "gemini", "bedrock"):
        assert (outcome.text, len(server.requests)) == ("A song.", 1)
        assert b64encode(TUNE.data) in server.requests[0].raw
    else:
        assert (outcome.result, len(server.requests)) == ("failed", 0)
        assert "cannot send tune.wav (audio/wav)" in outcome.error


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_images_documents_and_texts_reach_the_server(wire: str) -> None:
    async with FakeServer(lambda _: answer(wire, "A pool.")) as server:
        provider = PROVIDERS[wire](server.url)
        async with retinue.open(model="m", provider=provider, dialects=(), home=retinue.MEMORY) as r:
            outcome = await r.run("What is this?", attachments=[PNG, PDF, NOTES])

    (heard,) = server.requests
    assert outcome.text == "A pool."
    assert [each in heard.raw for each in (PNG_64.encode(), PDF_64.encode(), b"max = 10")] == [True, True, True]


@pytest.mark.parametrize("wire", ENCODERS)
def test_a_format_that_a_wire_cannot_send_is_named(wire: str) -> None:
    with pytest.raises(ProviderError, match=rf"the wire {wire} cannot send tune.bin \(application/octet-stream\)"):
        body(wire, File(b"\0\1\2", name="tune.bin"))


@pytest.mark.parametrize("wire", ENCODERS)
def test_a_text_file_alone_leaves_the_message_a_text(wire: str) -> None:
    plain = UserMessage(TEXT)

    assert body(wire, NOTES) == msgspec.json.decode(ENCODERS[wire](Request(model="m", system="", messages=[plain])))
