"""How each wire requests an answer in JSON: in its own field, or in the prompt where it has none."""

from typing import Any

import msgspec
import pytest

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic import request as anthropic
from retinue.providers.gemini import request as gemini
from retinue.providers.openai_chat import request as openai_chat
from retinue.providers.openai_responses import request as openai_responses

SCHEMA = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
OF_SCHEMA = Output(mode="json_schema", schema=msgspec.json.encode(SCHEMA).decode())
ANY_OBJECT = Output()
WORDS = "Give your final answer as one JSON object, and nothing else."


def asking(output: Output | None, **fields: Any) -> Request:
    options: dict[str, Any] = {"model": "m", "system": "Be brief."} | fields
    return Request(messages=[UserMessage("Capital of France?")], output=output, **options)


def decoded(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body)


def added(body: bytes, without: bytes) -> dict[str, Any]:
    """The fields that an output format adds to a request, or changes in it."""
    before = decoded(without)
    return {key: value for key, value in decoded(body).items() if before.get(key) != value}


@pytest.mark.promise("BZ-STRUCTURED-CHAT")
def test_openai_chat_sends_a_schema_in_response_format() -> None:
    assert added(openai_chat.encode(asking(OF_SCHEMA)), openai_chat.encode(asking(None))) == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": True},
        }
    }


@pytest.mark.promise("BZ-STRUCTURED-CHAT")
def test_openai_chat_sends_json_object_and_mentions_json_in_the_prompt() -> None:
    assert added(openai_chat.encode(asking(ANY_OBJECT)), openai_chat.encode(asking(None))) == {
        "response_format": {"type": "json_object"},
        "messages": [
            {"role": "system", "content": f"Be brief.\n\n{WORDS}"},
            {"role": "user", "content": "Capital of France?"},
        ],
    }


@pytest.mark.promise("BZ-STRUCTURED-ANTHROPIC")
@pytest.mark.parametrize("version", ["", "vertex-2023-10-16"])
def test_anthropic_sends_a_schema_in_output_config(version: str) -> None:
    body, without = (anthropic.encode(asking(output), version=version) for output in (OF_SCHEMA, None))

    assert added(body, without) == {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}


def test_anthropic_describes_json_object_in_the_prompt() -> None:
    body = decoded(anthropic.encode(asking(ANY_OBJECT, system="")))

    assert "output_config" not in body
    assert [block["text"] for block in body["system"]] == [WORDS]


def test_openai_responses_sends_the_format_in_text_format() -> None:
    without = openai_responses.encode(asking(None))

    assert added(openai_responses.encode(asking(OF_SCHEMA)), without) == {
        "text": {"format": {"type": "json_schema", "name": "structured_output", "schema": SCHEMA, "strict": True}}
    }
    assert added(openai_responses.encode(asking(ANY_OBJECT)), without) == {
        "text": {"format": {"type": "json_object"}},
        "instructions": f"Be brief.\n\n{WORDS}",
    }


def test_gemini_sends_mime_type_and_schema() -> None:
    without = gemini.encode(asking(None))

    assert added(gemini.encode(asking(OF_SCHEMA)), without) == {
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    }
    assert added(gemini.encode(asking(ANY_OBJECT)), without) == {
        "generationConfig": {"responseMimeType": "application/json"}
    }


def test_older_gemini_with_tools_describes_the_format_in_the_prompt() -> None:
    tools = (ToolSpec("search"),)
    old, new = (decoded(gemini.encode(asking(OF_SCHEMA, model=f"gemini-{v}-pro", tools=tools))) for v in ("2.5", "3"))

    assert "generationConfig" not in old
    assert old["systemInstruction"]["parts"][0]["text"] == f"Be brief.\n\n{OF_SCHEMA.in_words}"
    assert OF_SCHEMA.schema in OF_SCHEMA.in_words
    assert new["generationConfig"]["responseJsonSchema"] == SCHEMA
    assert new["systemInstruction"]["parts"][0]["text"] == "Be brief."
