"""Hooks around model calls and tool calls: observe, replace, deny, and fail closed."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

import retinue
from retinue.core.ports import BeforeModel, BeforeTool
from retinue.events import CallReturned, ReplyReceived
from retinue.messages import AssistantMessage, DiscardDelta, Reply, ToolCall
from retinue.ports import CallContext, Request, ToolResult
from retinue.providers.scripted import Line
from retinue.testing import Script, ScriptedProvider, calls, says


@retinue.tool(kind="pure")
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is empty"


class Log(retinue.Hooks):
    """Notes every call of a hook."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def before_model(self, request: Request) -> BeforeModel:
        self.notes.append(f"{self.name}: turn {request.turn}")

    async def after_model(self, request: Request, reply: Reply) -> Reply | None:
        self.notes.append(f"{self.name}: reply {request.turn}")

    async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
        self.notes.append(f"{self.name}: {call.name} of {context.agent}")

    async def after_tool(self, call: ToolCall, context: CallContext, result: ToolResult) -> ToolResult | None:
        self.notes.append(f"{self.name}: {result.text}")


def last(request: Request) -> Line:
    """The model repeats what it read last."""
    return says(request.messages[-1].text)


def open_hooked(*hooks: retinue.Hooks, policy: retinue.Policy | None = None) -> retinue.Retinue:
    model = ScriptedProvider(Script().play("main", calls("look", place="the well"), last))
    return retinue.open(
        provider=model, tools=[look], hooks=hooks, dialects=(), home=retinue.MEMORY, policy=policy or retinue.Policy()
    )


async def test_hooks_are_called_in_order_before_a_call_and_in_the_opposite_order_after_it() -> None:
    notes: list[str] = []
    async with open_hooked(Log("a", notes), Log("b", notes)) as r:
        await r.run("Look.")

    assert notes == [
        "a: turn 1",
        "b: turn 1",
        "b: reply 1",
        "a: reply 1",
        "a: look of main",
        "b: look of main",
        "b: the well is empty",
        "a: the well is empty",
        "a: turn 2",
        "b: turn 2",
        "b: reply 2",
        "a: reply 2",
    ]


async def test_a_denied_tool_call_is_not_made_and_the_model_reads_the_reason() -> None:
    class Denying(retinue.Hooks):
        async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
            return retinue.Denial("not today")

    notes: list[str] = []
    async with open_hooked(Denying(), Log("later", notes)) as r:
        run = await r.spawn("Look.")
        returned = [event async for event in run.events() if isinstance(event, CallReturned)]

    assert [(event.text, event.failed, event.refused) for event in returned] == [("not today", True, "policy")]
    assert [note for note in notes if "look" in note or "empty" in note] == []


async def test_arguments_and_results_can_be_replaced() -> None:
    class Replacing(retinue.Hooks):
        async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
            return replace_struct(call, arguments='{"place": "the barn"}')

        async def after_tool(self, call: ToolCall, context: CallContext, result: ToolResult) -> ToolResult | None:
            return ToolResult(result.text.upper())

    async with open_hooked(Replacing()) as r:
        outcome = await r.run("Look.")

    assert outcome.text == "THE BARN IS EMPTY"


async def test_a_hook_answers_a_call_without_the_tool() -> None:
    class Answering(retinue.Hooks):
        async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
            return ToolResult("from a cache")

    async with open_hooked(Answering()) as r:
        assert (await r.run("Look.")).text == "from a cache"


async def test_replaced_arguments_are_bound_by_the_policy() -> None:
    class Replacing(retinue.Hooks):
        async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
            return replace_struct(call, arguments='{"command": "rm -rf ."}')

    model = ScriptedProvider(Script().play("main", calls("shell", command="ls"), last))
    async with retinue.open(
        provider=model,
        tools=["shell"],
        hooks=[Replacing()],
        dialects=(),
        home=retinue.MEMORY,
        policy=retinue.Policy(autonomy=retinue.Autonomy.SUPERVISED, allowed_commands=("ls",)),
    ) as r:
        outcome = await r.run("List.")

    assert outcome.text.startswith("Security policy: 'shell': high-risk calls are blocked")


async def test_requests_and_replies_can_be_replaced_and_streamed_text_is_taken_back() -> None:
    class Redacting(retinue.Hooks):
        async def before_model(self, request: Request) -> BeforeModel:
            return replace(request, system="Say nothing secret.")

        async def after_model(self, request: Request, reply: Reply) -> Reply | None:
            assert request.system == "Say nothing secret."
            return Reply(AssistantMessage("[redacted]"), usage=reply.usage)

    model = ScriptedProvider(Script().play("main", says("The key is 42.")))
    async with retinue.open(provider=model, hooks=[Redacting()], dialects=(), home=retinue.MEMORY) as r:
        run = await r.spawn("Tell me.")
        events = [event async for event in run.events()]

    assert any(isinstance(event, DiscardDelta) for event in events)
    (reply,) = [event.reply for event in events if isinstance(event, ReplyReceived)]
    assert reply.message.text == "[redacted]"


async def test_a_reply_of_a_hook_takes_the_place_of_the_model() -> None:
    class Cache(retinue.Hooks):
        async def before_model(self, request: Request) -> BeforeModel:
            return Reply(AssistantMessage("From the cache."))

    model = ScriptedProvider(Script())  # it complains about any request
    async with retinue.open(provider=model, hooks=[Cache()], dialects=(), home=retinue.MEMORY) as r:
        outcome = await r.run("Tell me.")

    assert (outcome.text, outcome.usage.total, outcome.cost) == ("From the cache.", 0, 0)


async def test_a_denied_model_call_ends_the_run_with_the_reason() -> None:
    class Denying(retinue.Hooks):
        async def before_model(self, request: Request) -> BeforeModel:
            return retinue.Denial("the budget of the team is used up")

    async with open_hooked(Denying()) as r:
        outcome = await r.run("Look.")

    assert (outcome.result, outcome.error) == (
        "failed",
        "Denying denied the model call: the budget of the team is used up",
    )


class Broken(retinue.Hooks):
    """A hook whose method with this name fails."""

    def __init__(self, method: str, answer: object = None) -> None:
        self.method = method
        self.answer = answer

    async def before_model(self, request: Request) -> BeforeModel:
        return self._fail("before_model")

    async def after_model(self, request: Request, reply: Reply) -> Reply | None:
        return self._fail("after_model")

    async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
        return self._fail("before_tool")

    async def after_tool(self, call: ToolCall, context: CallContext, result: ToolResult) -> ToolResult | None:
        return self._fail("after_tool")

    def _fail(self, method: str) -> None:
        if method == self.method:
            if self.answer is not None:
                return self.answer  # pyright: ignore[reportReturnType] what an untyped program may return
            raise LookupError("no such list")
        return None


@pytest.mark.parametrize("method", ["before_model", "after_model"])
async def test_an_error_in_a_model_hook_fails_the_run_and_names_the_hook(method: str) -> None:
    async with open_hooked(Broken(method)) as r:
        outcome = await r.run("Look.")

    assert (outcome.result, outcome.error) == ("failed", f"hook Broken.{method} failed: LookupError: no such list")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("before_tool", "The call was not made: hook Broken.before_tool failed: LookupError: no such list"),
        (
            "after_tool",
            "The call was made, and its result is withheld: hook Broken.after_tool failed: LookupError: no such list",
        ),
    ],
)
async def test_an_error_in_a_tool_hook_is_the_result_of_the_call(method: str, text: str) -> None:
    async with open_hooked(Broken(method)) as r:
        assert (await r.run("Look.")).text == text


async def test_a_wrong_return_value_of_a_hook_is_an_error_with_the_expected_type() -> None:
    async with open_hooked(Broken("before_tool", answer="no")) as r:
        text = (await r.run("Look.")).text

    expected = "hook Broken.before_tool returned str: expected a ToolCall, ToolResult, Denial or None"
    assert text == f"The call was not made: {expected}"


def test_objects_that_are_no_hooks_are_refused_at_once() -> None:
    class Sync(retinue.Hooks):
        def before_tool(self, call: ToolCall, context: CallContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            """Not a coroutine."""

    for wrong, reason in (
        ([Sync()], r"Sync.before_tool has to be written with `async def`"),
        ([Sync], r"Sync is not an object of a subclass of retinue.Hooks"),
        (Sync(), r"hooks is one object: write hooks=\[...\]"),
    ):
        with pytest.raises(retinue.RetinueError, match=reason):
            retinue.open(provider=ScriptedProvider(Script()), home=retinue.MEMORY, hooks=wrong)  # pyright: ignore[reportArgumentType]


async def test_hooks_see_the_calls_of_children_and_of_programs_outside() -> None:
    notes: list[str] = []
    script = Script().play("main", calls("run_agent", agent="dig", task="Dig."), says("Done."))
    script.play("dig", calls("look", place="the well"), says("Empty."))
    async with retinue.open(
        provider=ScriptedProvider(script),
        agents=[retinue.Agent(name="dig", tools=("look",))],
        tools=[look],
        dialects=["native"],
        hooks=[Log("h", notes)],
        home=retinue.MEMORY,
    ) as r:
        await r.run("Look.")

    assert "h: look of dig" in notes
    assert "h: run_agent of main" in notes
