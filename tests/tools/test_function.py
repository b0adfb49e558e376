"""A typed function as a tool: its schema, its arguments, and its results."""

import asyncio
import contextvars
import datetime
import functools
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from retinue.core.agent import ToolSpec
from retinue.core.errors import BadInput, ToolError
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.providers.scripted import calls, says
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.tools.function import FunctionTool, as_text, described, tool
from retinue.tools.function_schema import Misfit
from retinue.tools.threads import AT_ONCE

CONTEXT = CallContext(
    run_id="r",
    session_id="s",
    root_id="r",
    key="r/1/0",
    turn=1,
    index=0,
    depth=0,
    agent="lead",
    path="lead",
    handle=None,
    policy=Policy(),
    offered=("search_logs",),
)


async def call(used: Tool, arguments: str = "{}") -> ToolResult:
    return await used.call(arguments, CONTEXT)


def parameters(used: Tool) -> Any:
    return msgspec.json.decode(used.spec.parameters)


def properties(used: Tool) -> Any:
    return parameters(used)["properties"]


@tool
def search_logs(query: str, limit: int = 20, *, newest: bool = True) -> str:
    """Search the service logs.

    Finds lines of the last week.

    Args:
        query (str): what to look for,
            as a regular expression
        limit: how many lines

    Returns:
        Lines.
    """
    return f"{limit} lines about {query}, newest={newest}"


# ---- what the model sees --------------------------------------------------------------------------------------------


def test_a_function_becomes_a_tool_spec() -> None:
    assert parameters(search_logs) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, as a regular expression"},
            "limit": {"type": "integer", "description": "how many lines", "default": 20},
            "newest": {"type": "boolean", "default": True},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    described = "Search the service logs.\n\nFinds lines of the last week."
    assert search_logs.spec == ToolSpec("search_logs", described, search_logs.spec.parameters)


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "noon"

    empty: dict[str, object] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert (parameters(now), now.spec.description) == (empty, "")


def test_default_kind_and_risk_and_only_async_tools_are_stoppable() -> None:
    @tool(name="rm", description="Remove a file.", kind="idempotent", risk="high", timeout=3.5)
    async def remove(path: str) -> None:
        """Never mind."""

    def facts(used: Tool) -> tuple[object, ...]:
        return used.spec.name, used.kind, used.risk, used.timeout, used.waits, used.stoppable

    assert facts(search_logs) == ("search_logs", "once", Risk.LOW, None, False, False)
    assert facts(remove) == ("rm", "idempotent", Risk.HIGH, 3.5, False, True)
    assert remove.spec.description == "Remove a file."


def test_for_python_the_tool_is_still_the_function() -> None:
    assert search_logs("pool", 3, newest=False) == "3 lines about pool, newest=False"
    assert search_logs.__name__ == "search_logs"
    assert (search_logs.__doc__ or "").startswith("Search the service logs.")
    assert list(inspect.signature(search_logs).parameters) == ["query", "limit", "newest"]
    assert search_logs.__wrapped__("a") == search_logs("a")
    assert repr(search_logs) == "<tool search_logs>"


async def test_an_async_function_can_still_be_awaited() -> None:
    @tool
    async def double(number: int) -> int:
        return number * 2

    assert await double(4) == 8
    assert await call(double, '{"number": 4}') == ToolResult("8")


# ---- types ----------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where something is."""

    name: str
    floor: int = 0


class Size(TypedDict):
    width: int


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Model:
    """Behaves like a pydantic model, as far as tools can see."""

    def __init__(self, city: str) -> None:
        self.city = city

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        return {
            "$defs": {"City": {"type": "string"}},
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
        }

    @classmethod
    def model_validate(cls, value: dict[str, str]) -> "Model":
        if "city" not in value:
            raise ValueError("1 validation error for Model\ncity\n  Field required")
        return cls(value["city"])

    def model_dump(self, mode: str) -> dict[str, str]:
        return {"city": self.city, "mode": mode}


def test_schemas_of_own_types_are_written_where_they_are_used() -> None:
    @tool
    def build(place: Place, sizes: list[Size], model: Model | None = None) -> None: ...

    place = {
        "title": "Place",
        "description": "Where something is.",
        "type": "object",
        "properties": {"name": {"type": "string"}, "floor": {"type": "integer", "default": 0}},
        "required": ["name"],
    }
    size = {"title": "Size", "type": "object", "properties": {"width": {"type": "integer"}}, "required": ["width"]}
    model = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert properties(build) == {
        "place": place,
        "sizes": {"type": "array", "items": size},
        "model": {"anyOf": [model, {"type": "null"}], "default": None},
    }


def test_a_type_inside_itself_is_only_named_the_second_time() -> None:
    @tool
    def plant(tree: Node) -> None: ...

    assert properties(plant)["tree"] == {
        "title": "Node",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {
                "type": "array",
                "items": {"type": "object", "description": "another Node"},
                "default": [],
            },
        },
        "required": ["name"],
    }


def test_a_parameter_can_be_described_and_bounded_in_its_annotation() -> None:
    @tool
    def page(
        number: Annotated[int, msgspec.Meta(ge=1, description="from 1")], size: Annotated[int, "lines"] = 10
    ) -> None:
        """Turn a page.

        Args:
            size: not this
        """

    assert properties(page) == {
        "number": {"type": "integer", "minimum": 1, "description": "from 1"},
        "size": {"type": "integer", "description": "lines", "default": 10},
    }


async def test_arguments_arrive_as_the_types_that_were_asked_for() -> None:
    seen: list[object] = []

    @tool
    def keep(
        place: Place, size: Size, tree: Node, color: Color, day: datetime.date, model: Model, tags: set[str]
    ) -> None:
        seen.extend([place, size, tree, color, day, model.city, tags])

    result = await call(
        keep,
        '{"place":{"name":"hall"},"size":{"width":3},"tree":{"name":"a","children":[{"name":"b"}]},"color":"blue",'
        '"day":"2026-01-01","model":{"city":"Rome"},"tags":["x","x"]}',
    )

    assert result == ToolResult("")
    tree = Node("a", [Node("b")])
    assert seen == [Place("hall"), {"width": 3}, tree, Color.BLUE, datetime.date(2026, 1, 1), "Rome", {"x"}]


async def test_positional_only_parameters_and_defaults_of_any_kind_work() -> None:
    @tool
    def combine(a: int, /, b: int = 2, tags: list[str] = ["x"], where: object = Path("here")) -> list[object]:  # noqa: B006
        return [a, b, tags, str(where)]

    assert await call(combine, '{"a": 1}') == ToolResult('[1,2,["x"],"here"]')
    assert properties(combine) == {
        "a": {"type": "integer"},
        "b": {"type": "integer", "default": 2},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
        "where": {},
    }


async def test_a_parameter_of_type_object_takes_any_value() -> None:
    @tool
    def count(values: dict[str, object]) -> int:
        return len(values)

    assert properties(count)["values"] == {"type": "object", "additionalProperties": {}}
    assert await call(count, '{"values": {"a": [1], "b": null}}') == ToolResult("2")


# ---- calling --------------------------------------------------------------------------------------------------------


async def test_a_call_gets_the_models_arguments_and_defaults_for_the_rest() -> None:
    assert await call(search_logs, '{"query": "pool", "newest": false}') == ToolResult(
        "20 lines about pool, newest=False"
    )


@pytest.mark.parametrize("nothing", ["", "  ", "{}"])
async def test_no_arguments_may_be_written_as_nothing(nothing: str) -> None:
    @tool
    def now() -> str:
        return "noon"

    assert await call(now, nothing) == ToolResult("noon")


async def test_the_context_is_handed_in_and_hidden_from_the_model() -> None:
    @tool
    def whoami(loud: bool, context: CallContext) -> str:
        return f"{context.agent} at {context.key}, loud={loud}"

    assert parameters(whoami)["properties"] == {"loud": {"type": "boolean"}}
    assert await call(whoami, '{"loud": true}') == ToolResult("lead at r/1/0, loud=True")
    assert (await call(whoami, '{"loud": true, "context": {}}')).failed


async def test_an_optional_context_is_passed_in_and_cannot_be_forged() -> None:
    @tool
    def whoami(context: CallContext | None = None) -> str:
        return "nobody" if context is None else context.agent

    forged = msgspec.json.encode({"context": {**msgspec.to_builtins(CONTEXT), "agent": "root"}}).decode()

    assert parameters(whoami)["properties"] == {}
    assert (whoami(), await call(whoami)) == ("nobody", ToolResult("lead"))
    assert await call(whoami, forged) == ToolResult(
        "whoami: argument 'context' is not known; arguments: none", failed=True
    )


who: contextvars.ContextVar[str] = contextvars.ContextVar("who")


async def test_sync_functions_run_in_a_thread_with_the_callers_context_variables() -> None:
    @tool
    def plain() -> list[object]:
        return [who.get(), threading.current_thread() is threading.main_thread()]

    @tool
    async def in_loop() -> list[object]:
        return [who.get(), threading.current_thread() is threading.main_thread()]

    who.set("lead")
    assert await call(plain) == ToolResult('["lead",false]')
    assert await call(in_loop) == ToolResult('["lead",true]')


async def test_a_plain_function_may_hand_on_what_an_async_one_gave_it() -> None:
    async def slow() -> str:
        return "done"

    @tool
    def start() -> object:
        return slow()

    assert await call(start) == ToolResult("done")


async def test_a_bound_method_can_be_a_tool() -> None:
    class Shop:
        def __init__(self) -> None:
            self.sold: list[str] = []

        def sell(self, what: str) -> int:
            """Sell something."""
            self.sold.append(what)
            return len(self.sold)

    shop = Shop()

    assert await call(tool(shop.sell), '{"what": "tea"}') == ToolResult("1")
    assert shop.sold == ["tea"]


async def test_a_wrapped_function_keeps_its_signature() -> None:
    def shouting(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: object, **kwargs: object) -> str:
            return str(function(*args, **kwargs)).upper()

        return wrapper

    def greet(name: str) -> str:
        return f"hello {name}"

    assert await call(tool(shouting(greet)), '{"name": "ann"}') == ToolResult("HELLO ANN")


async def test_errors_of_the_function_travel_as_they_are() -> None:
    @tool
    def fragile(how: str) -> str:
        if how == "expected":
            raise ToolError("no such file: a.txt")
        lines: list[str] = []
        return next(iter(lines)) if how == "stop" else lines[0]

    with pytest.raises(ToolError, match=r"no such file: a\.txt"):
        await call(fragile, '{"how": "expected"}')
    with pytest.raises(IndexError):
        await call(fragile, '{"how": "other"}')
    with pytest.raises(RuntimeError, match="StopIteration left the function"):
        await call(fragile, '{"how": "stop"}')


@pytest.mark.parametrize("escaped", [GeneratorExit, KeyboardInterrupt])
async def test_exits_and_interrupts_in_a_function_fail_its_call_alone(escaped: type[BaseException]) -> None:
    @tool
    def fragile() -> str:
        raise escaped

    with pytest.raises(RuntimeError, match=f"^{escaped.__name__} left the function$"):
        await call(fragile)


async def test_a_cancelled_call_lets_go_at_once() -> None:
    begun = asyncio.Event()

    @tool
    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    made = asyncio.create_task(call(wait_for_ever))
    await begun.wait()
    made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made


# ---- results --------------------------------------------------------------------------------------------------------


class Markup(str):
    """A kind of text, as template engines and data frames have them."""

    def __str__(self) -> str:
        return f"Markup({super().__str__()!r})"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is ", "as it is "),
        (None, ""),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        ("half \ud83e", "half ?"),
        (Markup("<b>"), "<b>"),
        (True, "true"),
        (1.5, "1.5"),
        ({"b": [1, None], "a": "é"}, '{"b":[1,null],"a":"é"}'),
        (Place("hall"), '{"name":"hall","floor":0}'),
        (Node("a"), '{"name":"a","children":[]}'),
        (Color.RED, "red"),
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (Path("/srv"), "/srv"),
        ({"path": Path("/srv")}, '{"path":"/srv"}'),
        (Model("Rome"), '{"city":"Rome","mode":"json"}'),
        ([Model("Rome")], '[{"city":"Rome","mode":"json"}]'),
        ({(1, 2): 3}, '{"(1, 2)":3}'),
        (2**70, str(2**70)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_become_text(value: object, text: str) -> None:
    assert type(as_text(value)) is str
    assert as_text(value) == text


def test_a_value_that_contains_itself_is_still_text() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert as_text(endless) == "[[...]]"


async def test_a_run_goes_on_after_a_kind_of_text_that_no_store_knows(tmp_path: Path) -> None:
    @tool
    def page() -> str:
        return Markup("<b>")

    @tool
    def result() -> ToolResult:
        return ToolResult(Markup("<i>"))

    store = SqliteStore(tmp_path / "runs.db")
    async with Harness(store=store, dialects=(), tools=[page, result]) as harness:
        harness.script("main", calls("page"), calls("result"), says("done"))

        assert (await harness.run("go")).text == "done"
        assert harness.results("main") == ["<b>", "<i>"]
    store.close()


async def test_a_function_may_report_its_own_failure() -> None:
    @tool
    def check() -> ToolResult:
        return ToolResult("3 tests failed", failed=True)

    assert await call(check) == ToolResult("3 tests failed", failed=True)


# ---- arguments that do not fit --------------------------------------------------------------------------------------


@tool
def book(
    place: Place,
    color: Literal["red", "blue"],
    days: list[int] | None = None,
    nights: Annotated[int, msgspec.Meta(ge=1)] = 1,
    shades: list[Color] | None = None,
    model: Model | None = None,
) -> str:
    """Book a place."""
    return "booked"


KNOWN = "arguments: place (required), color (required), days, nights, shades, model"
OK = '"place":{"name":"hall"},"color":"red"'


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{}", f"argument 'place' is missing; {KNOWN}"),
        ("", f"argument 'place' is missing; {KNOWN}"),
        ("{" + OK + ',"colour":1}', f"argument 'colour' is not known; {KNOWN}"),
        ("{" + OK + ',"nights":"two"}', "argument 'nights': expected `int`, got `str`; found \"two\""),
        ("{" + OK + ',"nights":0}', "argument 'nights': expected `int` >= 1; found 0"),
        ("{" + OK + ',"days":[1,"x"]}', "argument 'days[1]': expected `int`, got `str`; found \"x\""),
        ('{"place":{"floor":1}}', "argument 'name' in 'place' is missing"),
        ('{"place":{"name":1}}', "argument 'place.name': expected `str`, got `int`; found 1"),
        (
            '{"place":{"name":"h"},"color":"green"}',
            'argument \'color\': invalid enum value \'green\'; expected one of: "blue", "red"; found "green"',
        ),
        (
            "{" + OK + ',"shades":["red","green"]}',
            'argument \'shades[1]\': invalid enum value \'green\'; expected one of: "blue", "red"; found "green"',
        ),
        (
            "{" + OK + ',"model":{}}',
            "argument 'model': 1 validation error for Model\ncity\n  Field required; found {}",
        ),
        ("[]", f"the arguments must be one JSON object: expected `object`, got `array`; {KNOWN}"),
        (
            "{" + OK,
            "the arguments are not valid JSON: Expecting ',' delimiter at the end, after character 38; "
            "it may have been cut off; send one JSON object",
        ),
        (
            '{"place": hall, "color": "red"}',
            'the arguments are not valid JSON: Expecting value at character 11, before \'hall, "color": "red"\'; '
            "send one JSON object",
        ),
        ('{"place":{"name":1}, oops', "argument 'place.name': expected `str`, got `int`"),
        (
            "{" + OK + ',"nights":"' + "x" * 100 + '"}',
            "argument 'nights': expected `int`, got `str`; found \"" + "x" * 78 + "…",
        ),
        ("[" * 100_000, "the arguments must be one JSON object: expected `object`, got `array`; " + KNOWN),
    ],
)
async def test_arguments_that_do_not_fit_are_explained_to_the_model(arguments: str, complaint: str) -> None:
    assert await call(book, arguments) == ToolResult(f"book: {complaint}", failed=True)


Odd = TypedDict("Odd", {"in-days": int, "per cent": int, "v1.2": int}, total=False)


@tool
def measure(odd: Odd | None = None, by_number: dict[int, str] | None = None) -> str:
    """Measure."""
    return "measured"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ('{"odd":{"in-days":"x"}}', "argument 'odd.in-days': expected `int`, got `str`; found \"x\""),
        ('{"odd":{"per cent":"x"}}', "argument 'odd.per cent': expected `int`, got `str`; found \"x\""),
        ('{"odd":{"v1.2":"x"}}', 'argument \'odd.v1.2\': expected `int`, got `str`; found {"v1.2":"x"}'),
        ('{"by_number":{"a":"b"}}', 'argument \'by_number\': in a key, expected `int`, got `str`; found {"a":"b"}'),
    ],
)
async def test_names_and_keys_of_any_kind_are_complained_about_in_words(arguments: str, complaint: str) -> None:
    assert await call(measure, arguments) == ToolResult(f"measure: {complaint}", failed=True)


async def test_arguments_nested_beyond_reason_are_refused_in_words() -> None:
    @tool
    def anything(value: Any) -> str:
        return "never"

    result = await call(anything, '{"value":' + "[" * 100_000 + "]" * 100_000 + "}")

    assert result == ToolResult("anything: the arguments are nested too deeply; send flatter ones", failed=True)


# ---- functions that cannot be tools ---------------------------------------------------------------------------------


def many(*queries: str) -> str:
    return ""


def options(**queries: str) -> str:
    return ""


def unsupported(query: complex) -> str:
    return ""


def ambiguous(query: Place | Node) -> str:
    return ""


def callers(query: list[CallContext]) -> str:
    return ""


def bare(function: Any, annotation: object) -> Any:
    """The function as it would be with other annotations, which a type checker would not let us write."""
    function.__annotations__ = {} if annotation is None else {"query": annotation}
    return function


def untyped(query: str) -> str:
    return query


def unknown(query: str) -> str:
    return query


def yields(query: str) -> Iterator[str]:
    yield query


class Shop:
    def sell(self, what: str) -> str:
        return what


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (bare(untyped, None), "tool untyped: parameter 'query' has no type annotation"),
        (many, "tool many: parameter 'queries': a model cannot fill *queries: str; name each argument"),
        (options, "tool options: parameter 'queries': a model cannot fill **queries: str; name each argument"),
        (
            bare(unknown, "Nowhere"),
            "tool unknown: parameter 'query': its annotation 'Nowhere' cannot be read: name 'Nowhere' is not defined; "
            "the type must be known in the module when the function is defined",
        ),
        (unsupported, "tool unsupported: parameter 'query': type <class 'complex'> is not supported"),
        (
            callers,
            "tool callers: parameter 'query': a CallContext is handed in by itself, not as a part of something else",
        ),
        (yields, "tool yields: the function yields; a tool returns its whole result"),
        (Shop.sell, "tool sell: parameter 'self' has no type annotation (for a method, use tool(instance.method))"),
        (lambda: "", "tool name '<lambda>': expected a letter or _ and then up to 63 letters, digits, _ and -; "
                     "give one with @tool(name=...)"),
    ],
    ids=["untyped", "args", "kwargs", "unknown", "unsupported", "callers", "yields", "method", "lambda"],
)  # fmt: skip
def test_a_function_that_cannot_be_a_tool_is_refused_where_it_is_defined(function: Any, complaint: str) -> None:
    with pytest.raises(BadInput) as raised:
        tool(function)

    assert str(raised.value) == complaint


def test_a_union_that_is_ambiguous_in_json_is_refused() -> None:
    with pytest.raises(BadInput, match="tool ambiguous: parameter 'query': Type unions may not contain more than one"):
        tool(ambiguous)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kind": "twice"}, "tool search_logs: kind is 'twice'; expected one of: pure, idempotent, keyed, once"),
        ({"risk": "huge"}, "tool search_logs: risk is 'huge'; expected one of: low, medium, high"),
        ({"timeout": 0}, "tool search_logs: timeout is 0; expected seconds above 0, or None"),
        ({"name": "a b"}, "tool name 'a b': expected a letter or _ and then up to 63 letters, digits, _ and -; "
                          "give one with @tool(name=...)"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput) as raised:
        FunctionTool(search_logs.__wrapped__, **given)

    assert str(raised.value) == complaint


async def test_functions_that_never_return_do_not_block_others() -> None:
    released = threading.Event()

    @tool
    def hangs() -> None:
        """Wait for ever."""
        released.wait()

    @tool
    def answers() -> str:
        """Answer."""
        return "here"

    waiting = [asyncio.ensure_future(call(hangs)) for _ in range(3 * AT_ONCE)]
    try:
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

        assert await call(answers) == ToolResult("here")
    finally:
        released.set()


async def test_arguments_that_are_too_deep_where_they_do_not_fit_are_complained_about_too() -> None:
    answer = await call(search_logs, '{"query": ' + "[" * 100_000 + "]" * 100_000 + "}")

    assert answer == ToolResult("search_logs: argument 'query': expected `str`, got `array`", failed=True)


class Bound:
    """Behaves like the metadata of annotated-types."""

    def __init__(self, **bounds: object) -> None:
        self.__dict__.update(bounds)


class FieldInfo:
    """Behaves like `pydantic.Field(...)`, as far as tools can see."""

    def __init__(self, *metadata: Bound, description: str | None = None) -> None:
        self.metadata = list(metadata)
        self.description = description
        self.title = None


def test_bounds_and_descriptions_of_pydantic_fields_are_honoured() -> None:
    @tool
    def pick(
        count: Annotated[int, FieldInfo(Bound(ge=0), Bound(le=9), description="how many")],
        name: Annotated[str, FieldInfo(Bound(min_length=2))] = "xx",
        part: Annotated[float, Bound(gt=0.5)] = 1.0,
        size: Annotated[int, msgspec.Meta(ge=1, description="how large")] = 1,
    ) -> str:
        """Pick.

        Args:
            count: what the docstring says
            name: its name
            size: what the docstring says
        """
        return f"{count} {name} {part} {size}"

    parameters = msgspec.json.decode(pick.spec.parameters)["properties"]
    assert parameters == {
        "count": {"type": "integer", "minimum": 0, "maximum": 9, "description": "how many"},
        "name": {"type": "string", "minLength": 2, "description": "its name", "default": "xx"},
        "part": {"type": "number", "exclusiveMinimum": 0.5, "default": 1.0},
        "size": {"type": "integer", "minimum": 1, "description": "how large", "default": 1},
    }
    assert pick.decode('{"count": 10}') == Misfit("pick: argument 'count': expected `int` <= 9; found 10")
    assert pick.decode('{"count": 1, "name": "x"}') == Misfit(
        "pick: argument 'name': expected `str` of length >= 2; found \"x\""
    )


@pytest.mark.parametrize(
    "docstring",
    [
        """Search the logs.

        :param query: what to look for,
            as a regular expression
        :type query: str
        :param int limit: how many lines
        :returns: lines
        """,
        """Search the logs.

        Parameters
        ----------
        query : str
            what to look for,
            as a regular expression
        limit : int, optional
            how many lines

        Returns
        -------
        str
            lines
        """,
    ],
    ids=["sphinx", "numpy"],
)
def test_docstrings_of_sphinx_and_numpy_describe_parameters(docstring: str) -> None:
    assert described(inspect.cleandoc(docstring)) == (
        "Search the logs.",
        {"query": "what to look for, as a regular expression", "limit": "how many lines"},
    )


async def test_a_crash_is_logged_with_file_and_line(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def divide(by: int) -> str:
        """Divide."""
        return str(1 // by)

    line = divide.__wrapped__.__code__.co_firstlineno + 3
    async with Harness(dialects=(), tools=[divide]) as harness:
        harness.script("main", calls("divide", by=0), says("Broken."))
        outcome = await harness.run("Divide.")

    assert outcome.text == "Broken."
    (record,) = (record for record in caplog.records if "failed unexpectedly" in record.getMessage())
    assert record.getMessage().endswith(f"tool divide failed unexpectedly: ZeroDivisionError at {__file__}:{line}")
