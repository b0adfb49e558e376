"""Structured output: validated, requested again with the error, and never accepted when invalid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import msgspec
import pytest

import retinue
from retinue.app.structured_output import MAX_DEPTH, BadSchema, make_output, schema_of, validate_output
from retinue.core.agent import Output
from retinue.core.errors import BadInput, RetinueError
from retinue.core.events import RepairAsked, ReplyReceived
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.core.run import Exchange, Limits
from retinue.providers.scripted import Line, calls, says
from retinue.testing.harness import Harness

PARIS = '{"capital":"Paris","country":"France"}'
VALUE = {"capital": "Paris", "country": "France"}


class Place(TypedDict):
    capital: str
    country: str


SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}


@retinue.tool(kind="pure")
async def look() -> str:
    """Look it up."""
    return "Paris"


def plain(**options: Any) -> Harness:
    return Harness(dialects=(), **options)


def repairs(r: Harness) -> list[str]:
    return [event.error for event in r.events(r.run_of("main")) if isinstance(event, RepairAsked)]


# ---- valid and invalid answers --------------------------------------------------------------------------------------


async def test_a_valid_answer_is_the_structured_outcome() -> None:
    async with plain() as r:
        r.script("main", says(PARIS))
        outcome = await r.run("Capital of France?", output=Place)

        assert (outcome.ok, outcome.structured, outcome.text, outcome.turns) == (True, VALUE, PARIS, 1)
        assert repairs(r) == []


async def test_every_request_has_the_required_output() -> None:
    heard: list[Output | None] = []

    def hears(request: Request) -> Line:
        heard.append(request.output)
        return says("Paris.") if len(heard) == 1 else says(PARIS)

    async with plain() as r:
        r.script("main", hears, hears)
        await r.run("Capital of France?", output=SCHEMA)

    output = Output(mode="json_schema", schema=msgspec.json.encode(SCHEMA).decode(), name="structured_output")
    assert heard == [output, output]


async def test_an_invalid_answer_is_requested_again_with_its_error() -> None:
    told: list[UserMessage] = []

    def repaired(request: Request) -> Line:
        told.extend(message for message in request.messages[1:] if isinstance(message, UserMessage))
        return says(PARIS)

    async with plain() as r:
        r.script("main", says('{"capital":"Paris"}'), repaired)
        outcome = await r.run("Capital of France?", output=Place)

        assert (outcome.ok, outcome.structured, outcome.turns) == (True, VALUE, 2)
        assert repairs(r) == ["data must contain ['country'] properties"]
    assert told == [
        UserMessage(
            "Your answer does not have the required form: data must contain ['country'] properties. "
            "Give the whole answer again as JSON of that form, and nothing else.",
            origin="engine",
        )
    ]


async def test_two_repairs_may_be_needed() -> None:
    async with plain() as r:
        r.script("main", says("Paris."), says("[]"), says(PARIS))
        outcome = await r.run("Capital of France?", output=dict)

        assert (outcome.ok, outcome.structured, outcome.turns, len(repairs(r))) == (True, VALUE, 3, 2)


async def test_after_two_repairs_an_invalid_answer_fails_and_keeps_its_text() -> None:
    async with plain() as r:
        r.script("main", says("Paris."), says("Paris!"), says("Paris, I said."))
        outcome = await r.run("Capital of France?", output=dict)

        assert (outcome.result, outcome.reason, outcome.ok) == ("failed", "bad_output", False)
        assert (outcome.structured, outcome.text, outcome.turns) == (None, "Paris, I said.", 3)
        assert outcome.error.startswith("the answer is not of the form that was demanded: it is not JSON: ")


async def test_an_empty_answer_is_repaired_and_never_a_success() -> None:
    async with plain() as r:
        r.script("main", says(""), says(" "), says(""))
        outcome = await r.run("Capital of France?", output=dict)

        assert (outcome.result, outcome.reason, outcome.structured) == ("failed", "bad_output", None)
        assert outcome.error == "the answer is not of the form that was demanded: it is empty"
        assert repairs(r) == ["it is empty", "it is empty"]


async def test_text_before_a_call_is_not_validated_and_a_repair_may_use_tools() -> None:
    async with plain(tools=[look]) as r:
        r.script("main", calls("look"), says("Paris."), calls("look"), says(PARIS))
        outcome = await r.run("Capital of France?", output=Place)

        assert (outcome.ok, outcome.structured, outcome.turns, len(repairs(r))) == (True, VALUE, 4, 1)


async def test_without_a_required_output_nothing_is_validated() -> None:
    async with plain() as r:
        r.script("main", says(PARIS))
        outcome = await r.run("Capital of France?")

        assert (outcome.text, outcome.structured) == (PARIS, None)


async def test_repair_turns_count_as_turns() -> None:
    async with plain() as r:
        r.script("main", says("Paris."), says("Paris!"))
        outcome = await r.run("Capital of France?", output=dict, limits=Limits(max_turns=2))

        assert (outcome.reason, outcome.turns, len(repairs(r))) == ("bad_output", 2, 1)


# ---- keep-alive runs, children, crashes -----------------------------------------------------------------------------


async def test_a_keep_alive_run_validates_every_exchange_and_may_fail_one() -> None:
    async with plain() as r:
        r.script("main", says("{}"), says("no"), says("no"), says("no"), says("no"), says('{"n":3}'))
        handle = await r.retinue.spawn("one", keep_alive=True, output=dict)
        first, second, third = await handle.answer(), await handle.ask("two"), await handle.ask("three")
        outcome = await handle.close()

        assert first == Exchange(result="completed", reason="answered", text="{}", turns=1, structured={})
        assert (second.result, second.reason, second.turns) == ("failed", "bad_output", 3)
        assert (third.result, third.structured, third.turns) == ("completed", {"n": 3}, 2)
        assert (outcome.ok, outcome.structured, outcome.exchanges) == (True, {"n": 3}, 3)


async def test_children_need_no_structured_output() -> None:
    async with Harness(dialects=("xzatoma",)) as r:
        r.script("main", calls("subagent", label="dig", task_prompt="Dig."), says(PARIS))
        r.script("main", says("It is Paris."), says("Said enough."), task="Dig.")
        outcome = await r.run("Capital of France?", output=Place)

        assert (outcome.structured, outcome.turns) == (VALUE, 2)


@pytest.mark.parametrize("writes", range(1, 9))
async def test_a_repair_continues_after_a_crash_at_any_write(writes: int) -> None:
    async with plain() as r:
        r.script("main", says("Paris."), says(PARIS))
        await r.close()
        try:
            life = await r.open(killed_after=writes)
            await life.run("Capital of France?", key="once", output=Place)
        except RetinueError:
            pass  # this process ended too early
        life = await r.restart()
        outcome = await life.run("Capital of France?", key="once", output=Place)

        assert (outcome.structured, outcome.turns, len(repairs(r))) == (VALUE, 2, 1)
        replies = [event for event in r.events(r.run_of("main")) if isinstance(event, ReplyReceived)]
        assert [reply.reply.message.text for reply in replies] == ["Paris.", PARIS]


# ---- output requirements --------------------------------------------------------------------------------------------


@dataclass
class Node:
    name: str
    size: tuple[int, str] = (1, "x")
    below: list[Node] | None = None


class Point(msgspec.Struct):
    x: int
    label: str | None = None


class LikePydantic:
    schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return cls.schema


def test_the_schema_of_a_type_has_an_object_on_top_and_is_strict() -> None:
    assert schema_of(Point) == {
        "title": "Point",
        "type": "object",
        "properties": {"x": {"type": "integer"}, "label": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["x", "label"],
        "additionalProperties": False,
    }
    assert schema_of(LikePydantic) == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert schema_of(Node)["$defs"]["Node"]["required"] == ["name", "size", "below"]


def test_types_that_refer_to_themselves_and_fixed_lists_are_checked() -> None:
    output = make_output(Node)
    good = '{"name":"a","size":[1,"b"],"below":[{"name":"c","size":[2,"d"],"below":null}]}'

    assert validate_output(output, good).error == ""
    assert validate_output(output, good.replace('"b"', "3")).error == "data.size[1] must be string"
    assert validate_output(output, good.replace('"c"', "3")).error != ""


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(msgspec.json.encode(SCHEMA))

    assert make_output(file) == make_output(SCHEMA)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "null"}]},
            "[null]",
            "[1]",
        ),
        ({"prefixItems": [{"type": "integer"}], "items": False}, "[1]", "[1,2]"),
        ({"dependentRequired": {"a": ["b"]}}, '{"b":1}', '{"a":1}'),
        ({"properties": {"prefixItems": {"type": "string"}}}, '{"prefixItems":"x"}', '{"prefixItems":[]}'),
        ({"enum": [{"prefixItems": 1}]}, '{"prefixItems":1}', "{}"),
        ({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}, "[1]", '["x"]'),
        ({"type": "string", "format": "int64"}, '"x"', "1"),
    ],
)
def test_newer_keywords_of_json_schema_are_supported(schema: dict[str, Any], good: str, bad: str) -> None:
    output = make_output(schema)

    assert validate_output(output, good).error == ""
    assert validate_output(output, bad).error != ""


def test_a_default_is_not_put_into_an_answer() -> None:
    output = make_output({"type": "object", "properties": {"n": {"type": "integer", "default": 3}}})

    assert validate_output(output, "{}").value == {}


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```\n", "\n{}\n", " {} "])
def test_a_code_fence_around_an_answer_is_removed(fence: str) -> None:
    assert validate_output(Output(), fence).value == {}


DEEP = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "text",
    ["{} and more", "NaN", "{'a': 1}", "[" * 100_000, "\ud800", DEEP],
    ids=["more", "nan", "quotes", "unclosed", "half a character", "deep"],
)
def test_invalid_or_unstorable_json_is_an_output_error(text: str) -> None:
    assert validate_output(Output(), text).error != ""
    assert validate_output(make_output({}), text).error != ""


@pytest.mark.parametrize(
    "demand",
    [
        {"type": "strange"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"pattern": "("},
        {"default": object()},
        Path("no-such-file.json"),
        Output(mode="json_schema", schema='{"type":"strange"}'),
        "capital",
    ],
)
async def test_an_invalid_output_requirement_is_rejected_before_the_start(demand: Any) -> None:
    async with plain() as r:
        with pytest.raises(BadSchema) as refused:
            await r.run("Capital of France?", output=demand)

        assert isinstance(refused.value, BadInput)
        assert await r.retinue.list() == []
