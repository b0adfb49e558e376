"""The base class of tools, and objects that are used as tools without it."""

from typing import cast

import retinue
from retinue.core.agent import ToolSpec
from retinue.core.policy import Autonomy, Policy, Risk
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Tool, ToolLike, ToolResult, ToolWrapper, as_tool
from retinue.providers.scripted import calls, says
from retinue.testing.harness import Harness

CONTEXT = cast("CallContext", None)


class Plain:
    """An object with the attributes of a tool, and no base class."""

    spec = ToolSpec("plain")
    kind = "pure"
    risk = Risk.MEDIUM
    acts = True
    timeout = 7.0
    waits = True
    stoppable = False
    ordered = True
    polls = True
    effect = "stops"

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return ToolResult(f"got {arguments}")


class Bare:
    """An object with the two attributes that have no default."""

    spec = ToolSpec("bare")
    acts: bool

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return ToolResult("bare result")


class Echo(Tool):
    """A tool that overrides what it must."""

    spec = ToolSpec("echo")

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return ToolResult(arguments)


class Denied(Echo):
    """A tool that counts how often a call is prepared and that no policy permits."""

    waits = True
    prepared = 0

    def prepare(self, arguments: str) -> PreparedCall:
        self.prepared += 1
        risk = CallRisk(Risk.LOW)
        return PreparedCall(arguments, risk, super().prepare(arguments).run, True, lambda policy: "never")


class Counted(Echo):
    """A tool that counts how often a call is prepared."""

    waits = True
    prepared = 0

    def prepare(self, arguments: str) -> PreparedCall:
        self.prepared += 1
        return super().prepare(arguments)


class Loud(ToolWrapper):
    """A wrapper that adds to each result."""

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        return ToolResult((await call.run(context)).text + "!")


def traits(tool: Tool) -> tuple[object, ...]:
    known = tool.kind, tool.risk, tool.acts, tool.timeout, tool.waits, tool.stoppable
    return (*known, tool.ordered, tool.polls, tool.effect)


async def test_a_tool_has_defaults_for_all_but_its_spec_and_its_call() -> None:
    tool = Echo()
    call = tool.prepare("{}")

    assert traits(tool) == ("once", Risk.LOW, False, None, False, True, False, False, "unknown")
    assert (call.arguments, call.risk, call.waits) == ("{}", CallRisk(Risk.LOW), False)
    assert (call.denied_by(Policy()), tool.why_hidden(CONTEXT)) == (None, None)
    assert await call.run(CONTEXT) == ToolResult("{}")


async def test_an_object_with_the_attributes_of_a_tool_is_adapted_once() -> None:
    tool = as_tool(cast("ToolLike", Plain()))

    assert tool.spec is Plain.spec
    assert traits(tool) == ("pure", Risk.MEDIUM, True, 7.0, True, False, True, True, "stops")
    assert await tool.prepare("{}").run(CONTEXT) == ToolResult("got {}")
    assert as_tool(tool) is tool


async def test_what_an_object_lacks_has_the_default_of_the_base_class() -> None:
    tool = as_tool(cast("ToolLike", Bare()))

    assert traits(tool) == traits(Echo())
    assert await tool.call("{}", CONTEXT) == ToolResult("bare result")


async def test_a_wrapper_is_the_inner_tool_but_for_what_it_adds_to_a_call() -> None:
    inner = Denied()
    wrapper = Loud(inner)
    call = wrapper.prepare("hello")

    assert wrapper.spec is inner.spec
    assert traits(wrapper) == traits(inner)
    assert (call.waits, call.denied_by(Policy()), inner.prepared) == (True, "never", 1)
    assert await call.run(CONTEXT) == ToolResult("hello!")
    assert await wrapper.call("hello", CONTEXT) == ToolResult("hello!")


async def test_the_engine_prepares_a_call_once() -> None:
    tool = Counted()
    async with Harness(dialects=(), tools=[tool]) as r:
        r.script("main", calls("echo"), calls("echo"), says("done"))
        await r.run("go")

    assert tool.prepared == 2


async def test_a_call_denied_by_its_tool_is_not_made() -> None:
    tool = Denied()
    async with Harness(dialects=(), tools=[tool], policy=retinue.Policy()) as r:
        r.script("main", calls("echo"), says("done"))
        await r.run("go")

        assert r.results("main") == ["never"]
    assert tool.prepared == 1


async def test_an_object_without_the_base_class_is_used_by_a_run() -> None:
    async with Harness(dialects=(), tools=[cast("ToolLike", Bare())]) as r:
        r.script("main", calls("bare"), says("done"))
        await r.run("go")

        assert r.results("main") == ["bare result"]


async def test_an_object_that_acts_is_refused_by_a_policy_that_only_reads() -> None:
    deploy = Bare()
    deploy.acts = True
    policy = retinue.Policy(autonomy=Autonomy.READONLY)
    async with Harness(dialects=(), tools=[cast("ToolLike", deploy)], policy=policy) as r:
        r.script("main", calls("bare"), says("done"))
        await r.run("go")

        assert r.results("main") == ["Security policy: read-only mode, cannot perform 'bare'"]
