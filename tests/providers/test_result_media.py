"""Images and files in results of tools: in the result, in a message after it, or named, over HTTP on each wire."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from retinue.core.agent import ToolSpec
from retinue.core.attachments import Attachment, File, Image
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Provider, Request
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.scripted import says
from retinue.testing import fake_chat
from retinue.testing.contracts.provider import DeltaListener
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeServer, ReceivedRequest
from tests.providers.fakes import anthropic as fake_anthropic
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

pytestmark = pytest.mark.real_time

PNG, PDF = Image(b"\x89PNG dots", name="shot.png"), File(b"%PDF pages", name="report.pdf")
TUNE, NOTES = File(b"RIFF\0\0\0\0WAVE dots", name="tune.wav"), File(b"max = 10", name="pool.toml")
PNG_64, PDF_64 = b64encode(PNG.data).decode(), b64encode(PDF.data).decode()
TUNE_64 = b64encode(TUNE.data).decode()

LOOK, LS = ToolSpec("look", "Look."), ToolSpec("ls", "List.")
CALLS = (ToolCall("look", "{}", "call_1"), ToolCall("ls", "{}", "call_2"))


def conversation(*attachments: Attachment) -> list[Message]:
    return [
        UserMessage("What do you see?"),
        AssistantMessage("", CALLS),
        ToolMessage("look", "A window.", "call_1", attachments=attachments),
        ToolMessage("ls", "2 files", "call_2"),
    ]


Vendor = Callable[[Playable], FakeServer]
Create = Callable[[Any], AbstractAsyncContextManager[Provider]]


def chat(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return OpenAIChatProvider(vendor.base_url)


def anthropic(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return AnthropicProvider(vendor.base_url)


def responses(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return OpenAIResponsesProvider(vendor.base_url)


def gemini(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return GeminiProvider(vendor.base_url)


WIRES: dict[str, tuple[Vendor, Create, str]] = {
    "chat": (FakeChat, chat, "m"),
    "anthropic": (FakeAnthropic, anthropic, "m"),
    "responses": (FakeResponses, responses, "m"),
    "gemini 2": (FakeGemini, gemini, "gemini-2.5-flash"),
    "gemini 3": (lambda script: FakeGemini(script, signs=True), gemini, "gemini-3-pro"),
}


async def sent(wire: str, messages: Sequence[Message], script: Playable | None = None) -> list[dict[str, Any]]:
    """The bodies of requests with these messages, until the vendor answers one."""
    vendor_of, create, model = WIRES[wire]
    async with vendor_of(script or says("A window.")) as vendor, create(vendor) as provider:
        request = Request(model=model, system="", messages=messages, tools=(LOOK, LS))
        reply = await provider.answer(request, DeltaListener().publish)
        assert reply.message.text == "A window."
        return [heard.body for heard in vendor.requests]


async def test_anthropic_gets_them_in_the_result() -> None:
    (body,) = await sent("anthropic", conversation(PNG, PDF, NOTES, TUNE))

    look, ls = body["messages"][2]["content"]
    text = (
        'A window.\n<file name="pool.toml">\nmax = 10\n</file>\n'
        "[tune.wav (audio/wav) is not shown: the wire anthropic cannot send it]"
    )
    assert look["content"] == [
        {"type": "text", "text": text},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_64}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF_64},
            "title": "report.pdf",
        },
    ]
    assert ls["content"] == "2 files"


async def test_openai_responses_gets_them_in_the_output() -> None:
    (body,) = await sent("responses", conversation(PNG, PDF))

    assert body["input"][3]["output"] == [
        {"type": "input_text", "text": "A window."},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG_64}"},
        {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF_64}"},
    ]
    assert body["input"][4]["output"] == "2 files"


async def test_gemini_gets_them_in_the_response_from_version_3_on() -> None:
    (body,) = await sent("gemini 3", conversation(PNG, TUNE))

    _, _, results, following = body["contents"]
    look = results["parts"][0]["functionResponse"]
    assert look["parts"] == [{"inlineData": {"mimeType": "image/png", "data": PNG_64}}]
    assert look["response"] == {"result": "A window.\n[tune.wav (audio/wav) follows after the results]"}
    assert following["parts"][0] == {"inlineData": {"mimeType": "audio/wav", "data": TUNE_64}}


async def test_gemini_2_gets_them_after_all_results() -> None:
    (body,) = await sent("gemini 2", conversation(PNG))

    _, _, results, following = body["contents"]
    assert [part["functionResponse"]["name"] for part in results["parts"]] == ["look", "ls"]
    assert following == {
        "role": "user",
        "parts": [
            {"inlineData": {"mimeType": "image/png", "data": PNG_64}},
            {"text": "[part of the result of the call of look (call_1), not a message of a person]"},
        ],
    }


async def test_chat_completions_get_them_in_a_user_message_after_all_results() -> None:
    (body,) = await sent("chat", conversation(PNG, TUNE))

    _, _, look, ls, following = body["messages"]
    lines = [f"[{each} follows after the results]" for each in ("shot.png (image/png)", "tune.wav (audio/wav)")]
    assert (look["content"], ls["content"]) == ("\n".join(["A window.", *lines]), "2 files")
    assert following == {
        "role": "user",
        "content": [
            {"type": "text", "text": "[part of the result of the call of look (call_1), not a message of a person]"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG_64}"}},
            {"type": "input_audio", "input_audio": {"data": TUNE_64, "format": "wav"}},
        ],
    }


async def test_a_conversation_that_grows_keeps_its_beginning() -> None:
    memo: dict[str, object] = {}
    messages = conversation(PNG)
    bodies: list[list[Any]] = []
    async with FakeChat(says("A window.")) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        for _ in range(3):
            request = Request(model="m", system="", messages=messages, tools=(LOOK, LS), memo=memo)
            await provider.answer(request, DeltaListener().publish)
            messages += [AssistantMessage("Hm."), UserMessage("And now?")]
        bodies = [heard.body["messages"] for heard in vendor.requests]

    assert [len(body) for body in bodies] == [5, 7, 9]
    assert bodies[2][:5] == bodies[1][:5] == bodies[0]


def refusing(error: str, wanted: Callable[[str], bool]) -> Playable:
    """A vendor that refuses bodies with something in them."""

    def play(heard: ReceivedRequest) -> Any:
        refused = wanted(msgspec.json.encode(heard.body).decode())
        return fake_chat.error_response(400, error) if refused else says("A window.")

    return play


@pytest.mark.parametrize(
    "error",
    [
        "Invalid content type. image_url is only supported by certain models.",
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        "unknown variant `image_url`, expected `text`",
        "At most 0 image(s) may be provided in one request.",
        "messages[4].content must be a string",
        "this is not a multimodal model",
    ],
)
async def test_images_of_results_are_left_out_for_a_model_that_takes_none(error: str) -> None:
    script = refusing(error, lambda body: "image_url" in body)
    async with FakeChat(script) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        for _ in range(2):
            request = Request(model="m", system="", messages=conversation(PNG), tools=(LOOK, LS))
            await provider.answer(request, DeltaListener().publish)
        bodies = [heard.body["messages"] for heard in vendor.requests]

    # Refused once, then left out, and left out at once from then on.
    assert [len(body) for body in bodies] == [5, 4, 4]
    assert bodies[1] == bodies[2]
    text = "A window.\n[shot.png (image/png) is not shown: the server does not take it]"
    assert bodies[1][2]["content"] == text


async def test_an_image_that_the_server_cannot_read_is_left_out_of_this_request_alone() -> None:
    error = fake_anthropic.failed(400, "messages.2.content.0.tool_result.image: Could not process image")
    refusals = [error]
    script: Playable = lambda heard: refusals.pop() if refusals else says("A window.")  # noqa: E731
    async with FakeAnthropic(script) as vendor, AnthropicProvider(vendor.base_url) as provider:
        for _ in range(2):
            request = Request(model="m", system="", messages=conversation(PNG), tools=(LOOK, LS))
            await provider.answer(request, DeltaListener().publish)
        has_image = [b'"image"' in heard.raw for heard in vendor.requests]

    assert has_image == [True, False, True]


async def test_the_image_of_a_person_is_not_left_out() -> None:
    script = refusing("image input is not supported", lambda body: "image_url" in body)
    with pytest.raises(ProviderError, match="image input is not supported"):
        await sent("chat", [UserMessage("What is this?", attachments=(PNG,))], script)


async def test_a_server_that_takes_no_user_message_after_a_result_gets_one_of_the_model_between() -> None:
    error = "Unexpected role 'user' after role 'tool'"
    script = refusing(error, lambda body: '"role":"assistant","content":"[goes on]"' not in body)
    bodies = await sent("chat", conversation(PNG), script)

    roles = [[message["role"] for message in body["messages"]] for body in bodies]
    assert roles == [
        ["user", "assistant", "tool", "tool", "user"],
        ["user", "assistant", "tool", "tool", "assistant", "user"],
    ]
