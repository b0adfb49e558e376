"""Typed answers: `output=Person` gives an `Outcome[Person]`; failures raise where asked; cancelling reaches the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import pytest
from msgspec import Struct

import retinue
from retinue.errors import RunFailed
from retinue.testing import Script, ScriptedProvider, hangs, says


@dataclass
class PersonData:
    name: str
    age: int


class PersonStruct(Struct):
    name: str
    age: int


class PersonDict(TypedDict):
    name: str
    age: int


class PersonModel:
    """Behaves like a pydantic model: a schema, and a validator that accepts adults alone."""

    def __init__(self, name: str, age: int) -> None:
        self.name, self.age = name, age

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> PersonModel:
        if value["age"] < 18:
            raise ValueError("not an adult")
        return cls(**value)


def answering(text: str) -> retinue.Retinue:
    model = ScriptedProvider(Script().play("main", *[says(text)] * 3))
    return retinue.open(provider=model, home=retinue.MEMORY, dialects=())


ADA = '{"name": "Ada", "age": 36}'


async def test_an_answer_is_an_object_of_the_demanded_type() -> None:
    async with answering(ADA) as r:
        data = await r.run("Who?", output=PersonData)
        struct = await (await r.spawn("Who?", output=PersonStruct)).wait()
        plain = await r.run("Who?", output=PersonDict)

    assert_type(data, retinue.Outcome[PersonData])
    assert_type(struct.output, PersonStruct)
    assert_type(plain.unwrap(), PersonDict)
    assert (data.output, struct.output, plain.output) == (
        PersonData("Ada", 36),
        PersonStruct("Ada", 36),
        {"name": "Ada", "age": 36},
    )


async def test_a_model_of_pydantic_validates_itself() -> None:
    async with answering(ADA) as r:
        ada = (await r.run("Who?", output=PersonModel)).output
    async with answering('{"name": "Bo", "age": 3}') as r:
        child = await r.run("Who?", output=PersonModel)

    assert (ada.name, ada.age) == ("Ada", 36)
    assert (child.ok, child.result, child.reason, child.error) == (
        False,
        "failed",
        "bad_output",
        "the answer is no PersonModel: not an adult",
    )


async def test_the_output_of_a_plain_run_is_its_text() -> None:
    async with answering("Ada.") as r:
        outcome = await r.run("Who?")

    assert_type(outcome, retinue.Outcome[str])
    assert outcome.unwrap() == outcome.output == outcome.text == "Ada."


async def test_the_output_of_a_schema_is_its_json_value() -> None:
    async with answering(ADA) as r:
        outcome = await r.run("Who?", output={"type": "object"})

    assert outcome.output == {"name": "Ada", "age": 36}


async def test_a_failed_run_raises_where_its_answer_is_taken() -> None:
    model = ScriptedProvider(Script().play("main", *[says("No JSON.")] * 6))
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("Who?", output=PersonData)
        with pytest.raises(RunFailed) as unwrapped:
            outcome.unwrap()
        with pytest.raises(RunFailed) as checked:
            await r.run("Who?", output=PersonData, check=True)

    assert unwrapped.value.outcome is outcome
    assert checked.value.outcome.reason == "bad_output"
    assert str(unwrapped.value).startswith("the run failed: ")


async def test_an_empty_answer_is_no_output() -> None:
    async with answering("") as r:
        outcome = await r.run("Who?")

    with pytest.raises(RunFailed, match="the run gave an empty answer"):
        _ = outcome.output


async def test_cancelling_run_cancels_the_run_and_a_spawned_one_goes_on() -> None:
    model = ScriptedProvider(Script().play("main", hangs("It is"), hangs("It is")))
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        awaited = asyncio.ensure_future(r.run("Who?"))
        await asyncio.sleep(1)
        awaited.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        (view,) = await r.list()
        ended = (await r.wait(view.run_id))[view.run_id]
        handle = await r.spawn("Who?")
        waiting = asyncio.ensure_future(handle.wait())
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        spawned = await handle.look()
        await handle.cancel()

    assert (ended.result, ended.error) == ("cancelled", "its caller was cancelled")
    assert (spawned.state, spawned.outcome) == ("working", None)


def test_the_blocking_interface_is_typed_too() -> None:
    model = ScriptedProvider(Script().play("main", says(ADA), says(ADA)))
    with retinue.open_sync(provider=model, home=retinue.MEMORY, dialects=()) as r:
        person = r.run("Who?", output=PersonData, check=True).output
        handle = r.spawn("Who?", output=PersonStruct)
        struct = handle.wait().output

    assert_type(person, PersonData)
    assert_type(struct, PersonStruct)
    assert (person, struct) == (PersonData("Ada", 36), PersonStruct("Ada", 36))
