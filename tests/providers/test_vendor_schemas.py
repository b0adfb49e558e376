"""Every tool of every dialect and every generated output schema keeps the rules of the vendors, as wires send them."""

import enum
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import cycle
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, cast
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta, Struct

import retinue
from retinue.app.structured_output import make_output
from retinue.core.agent import Agent, ToolSpec
from retinue.core.messages import Reply, UserMessage
from retinue.core.policy import Policy
from retinue.core.ports import Publish, Request, Tool
from retinue.dialects import registry
from retinue.dialects.buzzllm.requests import CATALOG
from retinue.dialects.claude import ClaudeSettings
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.dialects.spec.settings import SpecSettings
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.providers.anthropic import request as anthropic
from retinue.providers.gemini import request as gemini
from retinue.providers.openai_chat import request as openai_chat
from retinue.providers.openai_responses import request as openai_responses
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says
from retinue.testing.harness import Harness
from retinue.tools.builtin import BUILTIN
from retinue.tools.function import FunctionTool
from tests.providers import vendor_rules
from tests.providers.vendor_rules import (
    ANTHROPIC_TOOLS,
    GEMINI_TOOLS,
    OPENAI_TOOLS,
    DeclarationRules,
    Rules,
    declaration_violations,
    violations,
)

Declaration: TypeAlias = tuple[str, str, Any]
"""Name, description and parameters of a tool, as a vendor receives them."""


class Wire(NamedTuple):
    """A wire: its request bodies, the tools in them, and the rules of its vendor."""

    encode: Callable[[Request], bytes]
    declarations: Callable[[Any], Iterator[Declaration]]
    rules: DeclarationRules
    output_schema: Callable[[Any], Any]
    output_rules: Rules


def chat_tools(body: Any) -> Iterator[Declaration]:
    for tool in body["tools"]:
        yield tool["function"]["name"], tool["function"]["description"], tool["function"]["parameters"]


def responses_tools(body: Any) -> Iterator[Declaration]:
    for tool in body["tools"]:
        yield tool["name"], tool["description"], tool["parameters"]


def anthropic_tools(body: Any) -> Iterator[Declaration]:
    for tool in body["tools"]:
        yield tool["name"], tool["description"], tool["input_schema"]


def gemini_tools(body: Any) -> Iterator[Declaration]:
    for tool in body["tools"][0]["functionDeclarations"]:
        yield tool["name"], tool["description"], tool.get("parametersJsonSchema")


def chat_output(body: Any) -> Any:
    return body["response_format"]["json_schema"]["schema"]


def responses_output(body: Any) -> Any:
    return body["text"]["format"]["schema"]


def anthropic_output(body: Any) -> Any:
    return body["output_config"]["format"]["schema"]


def gemini_output(body: Any) -> Any:
    return body["generationConfig"]["responseJsonSchema"]


WIRES = {
    "openai-chat": Wire(
        openai_chat.encode,
        chat_tools,
        OPENAI_TOOLS,
        chat_output,
        vendor_rules.OPENAI_OUTPUT,
    ),
    "openai-responses": Wire(
        openai_responses.encode,
        responses_tools,
        OPENAI_TOOLS,
        responses_output,
        vendor_rules.OPENAI_OUTPUT,
    ),
    "anthropic": Wire(
        anthropic.encode,
        anthropic_tools,
        ANTHROPIC_TOOLS,
        anthropic_output,
        vendor_rules.ANTHROPIC_OUTPUT,
    ),
    "gemini": Wire(
        gemini.encode,
        gemini_tools,
        GEMINI_TOOLS,
        gemini_output,
        vendor_rules.GEMINI_OUTPUT,
    ),
}

over_every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


def request(**fields: Any) -> Request:
    return Request(model="m", system="", messages=[UserMessage("hi")], **fields)


# ---- the tools -------------------------------------------------------------------------------------------------------


class Level(enum.Enum):
    """An enumeration of numbers."""

    LOW = 1
    HIGH = 2


class Point(Struct):
    """A point; its fields have names of keywords."""

    type: str
    items: int = 0
    enum: Literal["a", "b"] = "a"


class Tree(Struct):
    """A recursive type."""

    name: str
    children: list["Tree"] = msgspec.field(default_factory=list["Tree"])


def _everything(
    point: Point,
    points: list[Point],
    anything: object,
    names: list,  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType] -- a list of anything
    pair: tuple[int, str],
    tree: Tree,
    unique: set[int],
    by_name: dict[str, int],
    level: Level,
    mixed: Literal["x", 1],
    moment: datetime,
    short: Annotated[str, Meta(min_length=1, max_length=9, pattern="^[a-z]+$")] = "a",
    positive: Annotated[int, Meta(gt=0)] = 1,
    number_or_text: int | str = 1,
    perhaps: int | None = None,
    nothing: list[str] | None = None,
) -> str:
    """Take arguments of every kind."""
    return ""


everything: Tool = FunctionTool(cast("Callable[..., str]", _everything), name="everything")


def many(count: int) -> list[Tool]:
    def make(number: int) -> Tool:
        def empty() -> str:
            """Do nothing."""
            return ""

        return FunctionTool(empty, name=f"tool_{number}", kind="pure")

    return [make(number) for number in range(count)]


SETTINGS: dict[str, Sequence[object]] = {
    "claude": (None, ClaudeSettings(agent_tool="Task")),
    "spec": (None, SpecSettings(extensions=()), SpecSettings()),
    "meerkat": (
        None,
        MeerkatSettings(enable_comms=True),
        MeerkatSettings(enable_comms=True, comms_tools="send", nested_tools=True),
    ),
}


async def shown(
    dialect: str, *, settings: object = None, tools: Sequence[Tool | str] = (), **options: Any
) -> tuple[ToolSpec, ...]:
    """The tools that a root with this dialect is shown."""
    async with retinue.open(
        provider=ScriptedProvider(Script()),
        dialects=[dialect],
        dialect_settings={} if settings is None else {dialect: settings},
        tools=tools,
        home=retinue.MEMORY,
        **options,
    ) as r:
        return r.offers()


def broken(specs: Sequence[ToolSpec], wire: Wire) -> dict[str, list[str]]:
    """The rules that tools break, by the tool's name."""
    body = json.loads(wire.encode(request(tools=tuple(specs))))
    found = {
        name: declaration_violations(name, description, parameters, wire.rules)
        for name, description, parameters in wire.declarations(body)
    }
    assert len(found) == len(specs) <= wire.rules.max_tools
    return {name: texts for name, texts in found.items() if texts}


@over_every_wire
@pytest.mark.parametrize("dialect", [entry.name for entry in registry.entries()])
async def test_every_tool_of_a_dialect_keeps_the_rules(dialect: str, wire: Wire) -> None:
    names = {name for entry in registry.entries() if entry.name == dialect for name in entry.tool_names}
    seen: set[str] = set()
    for settings in SETTINGS.get(dialect, (None,)):
        specs = await shown(dialect, settings=settings, tools=list(BUILTIN))
        seen |= {spec.name for spec in specs}
        assert broken(specs, wire) == {}
    assert seen == names | set(BUILTIN)


@over_every_wire
@pytest.mark.parametrize("dialect", [entry.name for entry in registry.entries()])
async def test_lists_of_names_keep_the_rules_when_they_are_empty_or_huge(dialect: str, wire: Wire) -> None:
    none = await shown(dialect, policy=Policy(excluded_tools=(*CATALOG, *BUILTIN, "shared_context")))
    huge = await shown(dialect, tools=many(100))
    assert (broken(none, wire), broken(huge, wire)) == ({}, {})

    beyond = [spec for spec in await shown(dialect, tools=many(600)) if not spec.name.startswith("tool_")]
    assert broken(beyond, wire) == {}


def agents(names: Sequence[str], models: Sequence[str] = ("",)) -> list[Agent]:
    """Agents of these names, with these models in turn."""
    return [Agent(name=name, description="Digs.", model=model) for name, model in zip(names, cycle(models))]


AGENTS: dict[str, list[Agent]] = {
    "one": agents(["reviewer"]),
    "some": agents(["reviewer", "writer", "dig"], ["gpt-5", "openai-chat:qwen3:8b", ""]),
    "many": agents([f"agent_{number}" for number in range(1000)], [f"model-{number}" for number in range(1000)]),
    "long": agents([f"{number:064}" for number in range(1000)], ["m" * 200]),
    "odd": agents(
        ["-", "_", "0", "main-", "none", "null"], ['say "hi"', "a\\b\n<c>", "名前/模型", "{model}", "\x1b[31m"]
    ),
}


@over_every_wire
@pytest.mark.parametrize("dialect", [entry.name for entry in registry.entries()])
@pytest.mark.parametrize("agents", AGENTS.values(), ids=AGENTS)
async def test_tools_that_list_agents_and_models_keep_the_rules(dialect: str, wire: Wire, agents: list[Agent]) -> None:
    assert broken(await shown(dialect, agents=agents), wire) == {}


async def property_of(dialect: str, tool: str, name: str, agents: list[Agent]) -> str:
    """The description of a tool's property."""
    (spec,) = [spec for spec in await shown(dialect, agents=agents) if spec.name == tool]
    return json.loads(spec.parameters)["properties"][name]["description"]


async def test_of_very_many_agents_and_models_the_first_ones_are_listed() -> None:
    some = await property_of("zeroclaw", "delegate", "agent", AGENTS["some"])
    many = await property_of("zeroclaw", "delegate", "agent", AGENTS["many"])
    assert some == "The agent that gets the task. Available: reviewer, writer, dig"
    assert many.startswith("The agent that gets the task. Available: agent_0, agent_1, ")
    assert many.endswith("agent_98, agent_99, and 900 more")

    few = await property_of("spec", "subagent", "model", AGENTS["some"])
    countless = await property_of("spec", "subagent", "model", AGENTS["many"])
    assert few.endswith(" Models of other agents: gpt-5, openai-chat:qwen3:8b.")
    assert countless.endswith("model-98, model-99, and 900 more.")


class SpecRecorder(ScriptedProvider):
    """Plays a script and records the tools of requests by the task of the run."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.tools: dict[str, tuple[ToolSpec, ...]] = {}

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.tools.setdefault(request.messages[0].text, tuple(request.tools))
        return await super().answer(request, publish)


class Nested(NamedTuple):
    """A tree of three runs: how each one delegates, the lines that end each one, and the delegation tools of each."""

    dialect: str
    settings: object
    delegations: Sequence[Line]
    children: Sequence[str]
    endings: Sequence[Sequence[Line]]
    tools: Sequence[Sequence[str]]


WAITS = (says("Waiting."), says("Done."))
DIG, DEEPER = "Dig.", "Deeper."
MEERKAT = ["agent_spawn", "agent_fork", "agent_status", "agent_cancel", "agent_list"]
NESTED = {
    "xzatoma": Nested(
        "xzatoma",
        XzatomaSettings(max_depth=2),
        [calls("subagent", label="dig", task_prompt=task) for task in (DIG, DEEPER)],
        ["main", "main"],
        [[says("Done.")], [says("Done."), says("Sum.")], [says("Done."), says("Sum.")]],
        [["subagent", "parallel_subagent"], ["subagent"], ["subagent"]],
    ),
    "meerkat": Nested(
        "meerkat",
        MeerkatSettings(nested_tools=True),
        [calls("agent_spawn", prompt=task) for task in (DIG, DEEPER)],
        ["sub-agent", "sub-agent"],
        [WAITS, WAITS, [says("Done.")]],
        [MEERKAT, MEERKAT, MEERKAT],
    ),
    "zeroclaw": Nested(
        "zeroclaw",
        None,
        [calls("delegate", agent="dig", prompt=DIG), calls("delegate", agent="deep", prompt=DEEPER)],
        ["dig", "deep"],
        [[says("Done.")]] * 3,
        [["spawn_subagent", "delegate"]] * 3,
    ),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
async def test_the_tools_of_children_keep_the_rules(nested: Nested) -> None:
    provider = SpecRecorder(Script())
    async with Harness(
        provider=provider,
        dialects=[nested.dialect],
        dialect_settings={} if nested.settings is None else {nested.dialect: nested.settings},
        tools=["grep", "file_read"],
        agents=[Agent(name=name, tools=("grep", "file_read")) for name in ("dig", "deep")],
    ) as harness:
        root, child, grandchild = nested.endings
        harness.script("main", nested.delegations[0], *root, task="Go.")
        harness.script(nested.children[0], nested.delegations[1], *child, task=DIG)
        harness.script(nested.children[1], *grandchild, task=DEEPER)
        await harness.run("Go.")

    names = [[spec.name for spec in provider.tools[task]] for task in ("Go.", DIG, DEEPER)]
    assert [set(each) - {"grep", "file_read"} for each in names] == [set(each) for each in nested.tools]
    assert {
        (task, name): broken(specs, wire) for task, specs in provider.tools.items() for name, wire in WIRES.items()
    } == {(task, name): {} for task in provider.tools for name in WIRES}


@over_every_wire
def test_a_function_with_parameters_of_every_kind_keeps_the_rules(wire: Wire) -> None:
    assert broken([everything.spec], wire) == {}


@pytest.mark.parametrize("encode", [openai_chat.encode, openai_responses.encode])
def test_no_tool_asks_for_strict_mode(encode: Callable[[Request], bytes]) -> None:
    assert b'"strict":true' not in encode(request(tools=(everything.spec,)))


def test_what_a_subset_cannot_express_is_written_into_the_description() -> None:
    body = json.loads(gemini.encode(request(tools=(everything.spec,))))
    properties = body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]["properties"]

    assert properties["short"] == {
        "type": "string",
        "description": "(maxLength: 9; minLength: 1; pattern: ^[a-z]+$; default: a)",
    }
    assert properties["level"] == {
        "type": "integer",
        "title": "Level",
        "description": "An enumeration of numbers. (enum: [1,2])",
    }
    assert properties["perhaps"] == {"type": "integer"}
    assert properties["number_or_text"] == {
        "anyOf": [{"description": "(default: 1)", "type": "integer"}, {"description": "(default: 1)", "type": "string"}]
    }


@over_every_wire
@pytest.mark.parametrize(
    "parameters",
    [
        '{"type": "object", "properties": {"names": {"type": "array"}, "level": {"enum": ["a", "b"]}}}',
        '{"properties": {"point": {"type": ["array", "null"], "prefixItems": [{"type": "number"}], "items": false}}}',
        '{"type": "object"}',
    ],
)
def test_parameters_that_a_user_wrote_are_completed(parameters: str, wire: Wire) -> None:
    assert broken([ToolSpec("mine", "Mine.", parameters)], wire) == {}


@over_every_wire
@pytest.mark.parametrize("parameters", ["", "[]", "null", "{", '{"properties": 7}', '{"type": 7, "enum": 8}'])
def test_parameters_that_are_no_schema_do_not_break_a_request(parameters: str, wire: Wire) -> None:
    assert b'"mine"' in wire.encode(request(tools=(ToolSpec("mine", "Mine.", parameters),)))


@over_every_wire
def test_parameters_within_the_rules_are_sent_unchanged(wire: Wire) -> None:
    schema = '{"type": "object",\n "properties": {"path": {"type": "string", "enum": ["a"]}}, "required": ["path"]}'
    body = wire.encode(request(tools=(ToolSpec("read", "Read.", schema),)))

    assert schema.encode() in body


# ---- output schemas --------------------------------------------------------------------------------------------------


class Address(TypedDict):
    """A typed dict."""

    street: str
    number: int | None


@dataclass
class Person:
    """A dataclass with constraints, unions, literals, formats and nested types."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    age: Annotated[int, Meta(ge=0, lt=150)]
    born: date
    seen: datetime
    id: UUID
    addresses: Annotated[list[Address], Meta(min_length=2, max_length=9)]
    kind: Literal["customer", "supplier"]
    rank: Literal[1, 2, 3]
    position: tuple[float, float]
    tags: set[str]
    size: float | str
    boss: Annotated[Address | None, Meta(description="Where the boss lives.")] = None
    home: Annotated[Address | None, Meta(title="Home", description="Where it lives.")] = None
    score: Annotated[float, Meta(multiple_of=0.5)] = 1.0
    words: list[str] = field(default_factory=list[str])


class Circle(Struct, tag=True):
    """One of two tagged types."""

    radius: float


class Square(Struct, tag=True):
    """The other one."""

    side: float


class Drawing(Struct):
    """A list of either."""

    shapes: list[Circle | Square]


@over_every_wire
@pytest.mark.parametrize("kind", [Person, Address, Drawing])
def test_the_schema_of_a_type_keeps_the_rules(kind: type, wire: Wire) -> None:
    body = json.loads(wire.encode(request(output=make_output(kind))))

    assert violations(wire.output_schema(body), wire.output_rules) == []


@over_every_wire
def test_an_output_schema_within_the_rules_is_sent_unchanged(wire: Wire) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
        "required": ["capital", "country"],
        "additionalProperties": False,
    }

    assert wire.output_schema(json.loads(wire.encode(request(output=make_output(schema))))) == schema


# ---- the rules themselves --------------------------------------------------------------------------------------------


def object_of(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "rules", "found"),
    cast(
        "list[tuple[Any, Rules, list[str]]]",
        [
            ({"type": "object"}, OPENAI_TOOLS.parameters, ["root: not an object with properties"]),
            ({"type": "string"}, ANTHROPIC_TOOLS.parameters, ["root: not an object with properties"]),
            (object_of(), GEMINI_TOOLS.parameters, ["root: an object without properties"]),
            (object_of(a={}) | {"anyOf": [{}]}, ANTHROPIC_TOOLS.parameters, ["root: anyOf"]),
            (object_of(a={"type": "array"}), OPENAI_TOOLS.parameters, ["root.a: an array without items"]),
            (object_of(a={"type": ["array", "null"]}), OPENAI_TOOLS.parameters, ["root.a: an array without items"]),
            (
                object_of(a={"type": "string", "minLength": 1}),
                GEMINI_TOOLS.parameters,
                ["root.a: unknown keyword minLength"],
            ),
            (object_of(a={"type": ["string", "null"]}), GEMINI_TOOLS.parameters, ["root.a: several types"]),
            (object_of(a={}), GEMINI_TOOLS.parameters, ["root.a: no type"]),
            (
                object_of(a={"type": "integer", "enum": [1]}),
                GEMINI_TOOLS.parameters,
                [
                    "root.a: an enumeration of other values than strings",
                    "root.a: an enumeration without the type string",
                ],
            ),
            (
                object_of(a={"type": "string", "enum": []}),
                OPENAI_TOOLS.parameters,
                ["root.a: an enumeration that is empty or repeats a value"],
            ),
            (
                object_of(a={"anyOf": [{"type": "string"}], "description": "A."}),
                GEMINI_TOOLS.parameters,
                ["root.a: keywords beside anyOf"],
            ),
            (object_of(**{"a-b": {"type": "string"}}), GEMINI_TOOLS.parameters, ["root: property 'a-b'"]),
            (
                object_of(a={"type": "string"}) | {"required": ["b"]},
                OPENAI_TOOLS.parameters,
                ["root: required 'b' does not exist"],
            ),
            (
                object_of(a={"type": "string"}),
                vendor_rules.OPENAI_OUTPUT,
                ["root: a property is not required", "root: other properties are allowed"],
            ),
        ],
    ),
)
def test_a_broken_rule_is_found(schema: Any, rules: Rules, found: list[str]) -> None:
    assert violations(schema, rules) == found


def test_a_bad_name_and_a_missing_description_are_found() -> None:
    assert declaration_violations("a.b", "", object_of(a={"type": "string"}), OPENAI_TOOLS) == [
        "name: 'a.b'",
        "description: 0 characters",
    ]
