"""How each wire demands an answer in JSON: in its own field, and in words where it has none."""

from typing import Any

import msgspec
import pytest

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic import provider as anthropic
from retinue.providers.gemini import provider as gemini
from retinue.providers.openai_chat import provider as openai_chat
from retinue.providers.openai_responses import provider as openai_responses

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
    """What a demand adds to a request, or changes in it."""
    before = decoded(without)
    return {key: value for key, value in decoded(body).items() if before.get(key) != value}


@pytest.mark.promise("BZ-STRUCTURED-CHAT")
def test_openai_chat_demands_a_schema_in_response_format() -> None:
    assert added(openai_chat.encode(asking(OF_SCHEMA)), openai_chat.encode(asking(None))) == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": True},
        }
    }


@pytest.mark.promise("BZ-STRUCTURED-CHAT")
def test_openai_chat_demands_an_object_in_response_format_and_tells_the_model_of_json() -> None:
    assert added(openai_chat.encode(asking(ANY_OBJECT)), openai_chat.encode(asking(None))) == {
        "response_format": {"type": "json_object"},
        "messages": [
            {"role": "system", "content": f"Be brief.\n\n{WORDS}"},
            {"role": "user", "content": "Capital of France?"},
        ],
    }


@pytest.mark.promise("BZ-STRUCTURED-ANTHROPIC")
@pytest.mark.parametrize("version", ["", "vertex-2023-10-16"])
def test_anthropic_demands_a_schema_in_output_config_on_all_servers(version: str) -> None:
    body, without = (anthropic.encode(asking(output), version=version) for output in (OF_SCHEMA, None))

    assert added(body, without) == {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}


def test_anthropic_has_no_field_for_an_object_and_is_told_in_words() -> None:
    body = decoded(anthropic.encode(asking(ANY_OBJECT, system="")))

    assert "output_config" not in body
    assert [block["text"] for block in body["system"]] == [WORDS]


def test_openai_responses_demands_the_form_of_the_text() -> None:
    without = openai_responses.encode(asking(None))

    assert added(openai_responses.encode(asking(OF_SCHEMA)), without) == {
        "text": {"format": {"type": "json_schema", "name": "structured_output", "schema": SCHEMA, "strict": True}}
    }
    assert added(openai_responses.encode(asking(ANY_OBJECT)), without) == {
        "text": {"format": {"type": "json_object"}},
        "instructions": f"Be brief.\n\n{WORDS}",
    }


def test_gemini_demands_a_mime_type_and_a_schema() -> None:
    without = gemini.encode(asking(None))

    assert added(gemini.encode(asking(OF_SCHEMA)), without) == {
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    }
    assert added(gemini.encode(asking(ANY_OBJECT)), without) == {
        "generationConfig": {"responseMimeType": "application/json"}
    }


def test_a_gemini_that_refuses_the_field_together_with_tools_is_told_in_words() -> None:
    tools = (ToolSpec("search"),)
    old, new = (decoded(gemini.encode(asking(OF_SCHEMA, model=f"gemini-{v}-pro", tools=tools))) for v in ("2.5", "3"))

    assert "generationConfig" not in old
    assert old["systemInstruction"]["parts"][0]["text"] == f"Be brief.\n\n{OF_SCHEMA.in_words}"
    assert OF_SCHEMA.schema in OF_SCHEMA.in_words
    assert new["generationConfig"]["responseJsonSchema"] == SCHEMA
    assert new["systemInstruction"]["parts"][0]["text"] == "Be brief."
