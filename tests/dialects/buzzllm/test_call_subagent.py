"""The tool `call_subagent` with real child processes and a fake vendor over HTTP."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retinue
from retinue.core.errors import ProviderError
from retinue.core.policy import Autonomy
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.dialects.buzzllm import BuzzllmSettings
from retinue.dialects.buzzllm.requests import CATALOG, parse, subset
from retinue.dialects.error_codes import CallRefused
from retinue.providers.catalog import provider_config
from retinue.providers.scripted import (
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    calls_verbatim,
    fails,
    says,
    streams,
    together,
)
from retinue.testing.fake_server import ReceivedRequest
from retinue.tools.dependencies import ToolOptions
from tests.dialects.buzzllm.harness import (
    CHAT,
    MODEL,
    PROMPT,
    RESPONSES,
    BuzzllmHarness,
    Cast,
    Wire,
    call_subagent,
    callers,
    one_by_one,
    opened,
    over_every_wire,
)
from tests.providers.fakes.gemini import FakeGemini

pytestmark = pytest.mark.real_time
BYE = says("Thanks.")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(CATALOG),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def yes(question: retinue.Approval) -> bool:
    """A person who would allow anything."""
    return True


async def read(cast: Cast, wire: Wire = CHAT, **options: object) -> list[str]:
    """What the root's calls came to."""
    async with wire.vendor(cast) as vendor, opened(wire, vendor, **options) as r:
        harness = BuzzllmHarness(r)
        await harness.play()
        return harness.read()


@pytest.mark.promise("BZ-TOOL", "BZ-OFFERED", "BZ-TOLD-TOOLS")
async def test_the_root_is_offered_one_tool_as_the_document_describes_it() -> None:
    cast = Cast((says("Nothing to do."),), BYE)
    await read(cast)

    (tool,) = cast.root[0].body["tools"]
    assert tool["function"] == {
        "name": "call_subagent",
        "description": "Run a subagent with an optional tool subset.",
        "parameters": {
            "type": "object",
            "properties": {
                "prompt": {"type": "string"},
                "system_prompt": {"type": ["string", "null"]},
                "tool_subset": {
                    "type": ["array", "null"],
                    "items": {"type": "string", "enum": list(CATALOG)},
                    "description": "Names of the tools that the subagent has; none by default.",
                },
            },
            "required": ["prompt"],
        },
    }


@pytest.mark.promise("BZ-ANSWER", "BZ-PROCESS", "BZ-SAME-MODEL", "BZ-NO-TOOLS", "BZ-DEPTH")
@over_every_wire
async def test_a_call_is_answered_by_a_process_with_the_same_model(wire: Wire) -> None:
    seen: list[int] = []

    def child(request: ReceivedRequest) -> ScriptedReply:
        seen.append(len(callers()))
        return streams("It is ", "the pool.")

    cast = Cast((call_subagent(system_prompt="You dig."), BYE), child)
    assert await read(cast, wire) == ["It is the pool."]

    (request,) = cast.children
    assert seen == [1]
    assert request.path == cast.root[0].path
    assert request.body.get("model") == cast.root[0].body.get("model")
    assert "tools" not in request.body
    assert json.dumps("You dig.") in json.dumps(request.body)
    assert json.dumps(PROMPT) in json.dumps(request.body)
    assert callers() == set()


@pytest.mark.promise("BZ-DISCARDED")
@over_every_wire
async def test_an_attempt_that_broke_off_is_neither_returned_nor_stored(wire: Wire) -> None:
    broken = ProviderError("cut", fault="cut", partial="The first attempt says m")
    cast = Cast((call_subagent(), BYE), fails(broken, then=streams("Second ", "attempt answer")))
    async with wire.vendor(cast) as vendor, opened(wire, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play()
        child, _ = await r.tree(harness.root_id)

    assert harness.read() == ["Second attempt answer"]
    assert child.outcome is not None
    assert (child.outcome.text, len(cast.children)) == ("Second attempt answer", 2)


@pytest.mark.promise("BZ-CONCATENATED")
async def test_all_text_of_the_subagent_is_the_answer_and_nothing_else() -> None:
    looks = together(streams("Let me ", "look. "), calls("bash_find", path="."))
    cast = Cast(
        (call_subagent(tool_subset=["bash_find"]), BYE), one_by_one(looks, says("Error: nothing.", thinking="hm"))
    )

    assert await read(cast) == ["Let me look. Error: nothing."]


@pytest.mark.promise("BZ-SUBSET", "BZ-DEPTH")
async def test_a_subagent_has_the_tools_that_it_is_given_and_never_the_one_to_call_others() -> None:
    cast = Cast((call_subagent(tool_subset=["python_execute", "search_web", "search_web"]), BYE), says("Fine."))
    await read(cast)

    assert [tool["function"]["name"] for tool in cast.children[0].body["tools"]] == ["search_web", "python_execute"]


async def test_a_subagent_on_a_local_server_may_write_its_calls_as_text() -> None:
    written = says('```json\n{"name": "bash_find", "arguments": {"path": "."}}\n```')
    cast = Cast((call_subagent(tool_subset=["bash_find"]), BYE), one_by_one(written, says("Nothing there.")))
    async with (
        CHAT.vendor(cast) as vendor,
        retinue.open(
            provider="llamacpp",
            base_url=CHAT.base(vendor),
            model=MODEL,
            dialects=["buzzllm"],
            home=retinue.MEMORY,
        ) as r,
    ):
        harness = BuzzllmHarness(r)
        await harness.play()

    assert harness.read() == ["Nothing there."]
    assert [message["role"] for message in cast.children[1].body["messages"]][-2:] == ["assistant", "tool"]


@pytest.mark.promise("BZ-NO-TOOLS")
@pytest.mark.parametrize("subset", [{}, {"tool_subset": None}, {"tool_subset": []}])
async def test_without_a_subset_a_subagent_has_no_tools(subset: dict[str, object]) -> None:
    cast = Cast((calls("call_subagent", prompt=PROMPT, **subset), BYE), says("Fine."))

    assert await read(cast) == ["Fine."]
    assert "tools" not in cast.children[0].body


@pytest.mark.promise("BZ-UNKNOWN-TOOLS", "BZ-INVALID", "BZ-NO-PROCESS", "BZ-NEVER-RAISES")
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            '{"prompt":"x","tool_subset":["zap","call_subagent","bash_find"]}',
            "Unknown tool names: call_subagent, zap",
        ),
        ('{"prompt":"x","tool_subset":[""]}', "Unknown tool names: "),
        ('{"prompt":"x","tool_subset":["shell"]}', "Unknown tool names: shell"),
        ('{"prompt":"x","tool_subset":[7]}', "Invalid arguments: Expected `str`, got `int` - at `$.tool_subset[0]`"),
        (
            '{"prompt":"x","tool_subset":"a"}',
            "Invalid arguments: Expected `array | null`, got `str` - at `$.tool_subset`",
        ),
        ('{"prompt":7}', "Invalid arguments: Expected `str`, got `int` - at `$.prompt`"),
        ('{"prompt":null}', "Invalid arguments: Expected `str`, got `null` - at `$.prompt`"),
        (
            '{"prompt":"x","system_prompt":7}',
            "Invalid arguments: Expected `str | null`, got `int` - at `$.system_prompt`",
        ),
        ("{}", "Invalid arguments: Object missing required field `prompt`"),
        ("[]", "Invalid arguments: Expected `object`, got `array`"),
        ("nonsense", "Invalid arguments: JSON is malformed: invalid character (byte 4)"),
        ("", "Invalid arguments: Input data was truncated"),
        ('{"prompt":"x","tool_subset":["' + "y" * 100_000 + '"]}', f"Unknown tool names: {'y' * 200}"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_call_that_makes_no_sense_is_an_error_and_no_process(arguments: str, answer: str) -> None:
    cast = Cast((calls_verbatim("call_subagent", arguments), BYE), says("Never."))

    assert await read(cast) == [f"Error: {answer}"]
    assert cast.children == []


@pytest.mark.promise("BZ-NOT-CONFIGURED", "BZ-NO-PROCESS")
async def test_a_provider_that_no_process_could_reach_is_not_configured() -> None:
    mind = ScriptedProvider(Script().play("main", call_subagent(tool_subset=["zap"]), BYE))
    async with retinue.open(provider=mind, dialects=["buzzllm"], home=retinue.MEMORY) as r:
        harness = BuzzllmHarness(r)
        await harness.play()

    assert harness.read() == ["Error: Subagent context is not configured"]


@pytest.mark.promise("BZ-NOT-CONFIGURED")
async def test_a_wire_that_retinue_call_does_not_speak_is_not_configured() -> None:
    lines = one_by_one(call_subagent(), BYE)
    async with (
        FakeGemini(lines) as vendor,
        retinue.open(
            provider="gemini", base_url=vendor.base_url, model=MODEL, dialects=["buzzllm"], home=retinue.MEMORY
        ) as r,
    ):
        harness = BuzzllmHarness(r)
        await harness.play()

    assert harness.read() == ["Error: Subagent context is not configured"]


@pytest.mark.promise("BZ-NEVER-RAISES")
@given(
    st.text() | st.dictionaries(st.sampled_from(["prompt", "system_prompt", "tool_subset"]), ANYTHING).map(json.dumps)
)
def test_arguments_are_a_request_or_refused(arguments: str) -> None:
    def answer() -> str:
        try:
            return f"tools: {subset(parse(arguments).tool_subset, CATALOG)}"
        except CallRefused as refused:
            return str(refused)

    assert answer().startswith(("tools: (", "Invalid arguments: ", "Unknown tool names: "))


@pytest.mark.promise("BZ-POLICY-CATALOG")
async def test_a_tool_that_the_policy_takes_away_is_unknown() -> None:
    policy = retinue.Policy(excluded_tools=("bash_read",))
    cast = Cast((call_subagent(tool_subset=["bash_read", "bash_find"]), BYE), says("Never."))

    assert await read(cast, policy=policy) == ["Error: Unknown tool names: bash_read"]


@pytest.mark.promise("BZ-POLICY", "BZ-WORKSPACE", "BZ-NO-APPROVALS")
async def test_the_policy_of_the_parent_holds_in_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open.txt").write_text("the pool")
    (tmp_path / "closed.txt").write_text("a secret")
    policy = retinue.Policy(forbidden_paths=(str(tmp_path / "closed.txt"),), always_ask=("bash_find",))
    asks = together(
        calls("bash_read", filepath="open.txt"), calls("bash_read", filepath="closed.txt"), calls("bash_find", path=".")
    )
    cast = Cast((call_subagent(tool_subset=["bash_read", "bash_find"]), BYE), one_by_one(asks, says("Done.")))

    assert await read(cast, policy=policy, approvals=yes) == ["Done."]
    opened_file, closed_file, found = (
        message["content"] for message in cast.children[1].body["messages"] if message["role"] == "tool"
    )
    assert "the pool" in opened_file
    assert "a secret" not in closed_file
    assert found.startswith("Security policy: 'bash_find' needs approval every time (always_ask)")


@pytest.mark.promise("BZ-POLICY")
async def test_actions_in_the_process_are_counted_in_the_windows_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = retinue.Policy(autonomy=Autonomy.FULL, max_actions_per_hour=3)
    asks = together(*(calls("python_execute", code=f"print({number})") for number in range(2)))
    root = (call_subagent(tool_subset=["python_execute"]), call_subagent(tool_subset=["python_execute"]), BYE)
    cast = Cast(root, one_by_one(asks, says("Done."), asks, says("Done.")))

    assert await read(cast, policy=policy, tool_options=ToolOptions(sandbox="off")) == ["Done.", "Done."]
    results = [
        [message["content"] for message in child.body["messages"] if message["role"] == "tool"]
        for child in (cast.children[1], cast.children[3])
    ]
    refused = [result.startswith("Rate limit exceeded: action budget exhausted") for each in results for result in each]
    assert sorted(refused) == [False, False, False, True]


@pytest.mark.promise("BZ-STATE")
async def test_the_state_of_the_parent_is_shown_by_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asks = together(calls("bash_read", filepath="state/retinue.db"), calls("bash_find", path="."))
    cast = Cast((call_subagent(tool_subset=["bash_read", "bash_find"]), BYE), one_by_one(asks, says("Done.")))

    assert await read(cast, home=tmp_path / "state") == ["Done."]
    assert (tmp_path / "state" / "retinue.db").exists()
    results = [message["content"] for message in cast.children[1].body["messages"] if message["role"] == "tool"]
    assert not any("SQLite format" in result or '"./state/retinue.db"' in result for result in results)


@pytest.mark.promise("BZ-FAILURE")
async def test_a_failing_subagent_is_an_error_with_its_own_reason() -> None:
    refusal = fails(ProviderError("the model is on holiday", fault="bad_request"))
    (answer,) = await read(Cast((call_subagent(), BYE), refusal))

    assert answer.startswith("Error: ")
    assert "the model is on holiday" in answer


@pytest.mark.promise("BZ-ROUNDS")
async def test_a_subagent_that_never_stops_using_tools_is_an_error() -> None:
    cast = Cast((call_subagent(tool_subset=["bash_find"]), BYE), calls("bash_find", path="."))

    assert await read(cast) == ["Error: the turn limit was reached without a final answer: used 11, limit 11"]
    assert len(cast.children) == 11


@pytest.mark.promise("BZ-EMPTY")
async def test_a_subagent_without_text_gives_an_empty_answer() -> None:
    assert await read(Cast((call_subagent(), BYE), says(""))) == [""]


@pytest.mark.promise("BZ-BYTES")
async def test_prompts_and_answers_are_passed_byte_for_byte() -> None:
    words = "Größe 🦉\u2028\n\nevent: block_end\ndata: {}\n\n" + "x" * 200_000
    cast = Cast((call_subagent(prompt=words, system_prompt=words), BYE), says(words))

    assert await read(cast) == [words]
    assert json.dumps(cast.children[0].body).count(json.dumps(words)) == 2


@pytest.mark.promise("BZ-OPTIONS")
async def test_a_subagent_thinks_and_keeps_its_temperature_as_its_caller_does() -> None:
    cast = Cast((call_subagent(), BYE), says("Hi."))
    async with RESPONSES.vendor(cast) as vendor:
        settled = provider_config("mine", wire="openai-responses", base_url=vendor.base_url, temperature=0.25)
        async with retinue.open(
            provider="mine", provider_configs=[settled], model=MODEL, dialects=["buzzllm"], home=retinue.MEMORY
        ) as r:
            await BuzzllmHarness(r).play(think=True)

    body = cast.children[0].body
    assert body["temperature"] == 0.25
    assert body["reasoning"] == {"effort": "high", "summary": "detailed"}


@pytest.mark.promise("BZ-RUN", "BZ-USAGE")
async def test_a_subagent_is_a_run_of_the_tree_with_its_usage() -> None:
    looks = ScriptedReply(calls=calls("bash_find", path=".").calls, usage=Usage(input=100, output=10))
    ends = ScriptedReply(pieces=("Found.",), usage=Usage(input=200, output=20))
    cast = Cast((call_subagent(tool_subset=["bash_find"]), BYE), one_by_one(looks, ends))
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play()
        child, root = await r.tree(harness.root_id)

    assert (child.parent_id, child.depth, child.label, child.dialect) == (root.run_id, 1, "subagent", "buzzllm")
    assert child.outcome is not None
    assert (child.outcome.text, child.outcome.turns, child.usage) == ("Found.", 1, Usage(input=300, output=30))


@pytest.mark.promise("BZ-LIMITS")
async def test_a_subagent_is_limited_by_its_callers_budget_which_it_reduces() -> None:
    hungry = ScriptedReply(calls=calls("bash_find", path=".").calls, usage=Usage(input=1500, output=100))
    cast = Cast((call_subagent(tool_subset=["bash_find"]), BYE), hungry)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        outcome = await harness.play(limits=Limits(max_tokens=5000))
        child, _ = await r.tree(harness.root_id)

    (answer,) = harness.read()
    assert answer.startswith("Error: the token budget leaves too little for the next call: used 4800, limit ")
    used = len(cast.children) * 1600
    assert child.usage.total == used
    assert used <= 5000
    assert outcome.result in ("completed", "exhausted")


@pytest.mark.promise("BZ-LIMITS", "BZ-TOGETHER")
async def test_calls_of_one_reply_run_concurrently_and_share_the_budget() -> None:
    hungry = ScriptedReply(calls=calls("bash_find", path=".").calls, usage=Usage(input=900, output=100))
    both = together(call_subagent("a", tool_subset=["bash_find"]), call_subagent("b", tool_subset=["bash_find"]))
    cast = Cast((both, BYE), hungry)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        harness = BuzzllmHarness(r)
        await harness.play(limits=Limits(max_tokens=12_000))
        later, earlier, root = await r.tree(harness.root_id)

    short = "Error: the token budget leaves too little for the next call: used "
    assert all(text.startswith(short) for text in harness.read())
    assert later.usage.total > 0
    assert earlier.usage.total > 0
    assert root.usage.total + later.usage.total + earlier.usage.total <= 12_000
    assert earlier.ended_at is not None
    assert later.started_at < earlier.ended_at


@pytest.mark.promise("BZ-WARM", "BZ-REAPED")
async def test_after_the_first_call_a_process_waits_ready_and_none_is_left_at_the_end() -> None:
    seen: list[set[int]] = []

    def child(request: ReceivedRequest) -> ScriptedReply:
        seen.append(callers())
        return says("Hi.")

    cast = Cast((call_subagent(), call_subagent(), BYE), child)
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor) as r:
        await BuzzllmHarness(r).play()
        # The command line of a process that was just started is empty for a moment.
        ready = next(filter(None, iter(callers, None)))

    first, second = seen
    assert (len(first), len(second), len(ready)) == (1, 1, 1)
    assert first != second
    assert ready & (first | second) == set()
    assert callers() == set()


@pytest.mark.promise("BZ-WARM-ENVIRONMENT")
async def test_a_process_that_was_started_with_another_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []

    def child(request: ReceivedRequest) -> ScriptedReply:
        keys.append(request.headers.get("authorization"))
        monkeypatch.setenv("MY_KEY", "second")
        return says("Hi.")

    monkeypatch.setenv("MY_KEY", "first")
    await read(Cast((call_subagent(), call_subagent(), BYE), child), api_key_env="MY_KEY")

    assert keys == ["Bearer first", "Bearer second"]


@pytest.mark.promise("BZ-WARM")
async def test_no_process_is_kept_ready_if_the_settings_say_so() -> None:
    cast = Cast((call_subagent(), BYE), says("Hi."))
    settings = {"buzzllm": BuzzllmSettings(warm_processes=0)}
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor, dialect_settings=settings) as r:
        await BuzzllmHarness(r).play()
        assert callers() == set()


async def times(processes_kept_ready: int) -> list[float]:
    """How long calls take whose model answers at once, the slowest last."""
    # The root speaks slowly, as models do: there is time for the next process to get ready.
    slowly = together(streams("Let me ", "see.", every=0.2), call_subagent())
    cast = Cast((*[slowly] * 7, BYE), says("Hi."))
    settings = {"buzzllm": BuzzllmSettings(warm_processes=processes_kept_ready)}
    async with CHAT.vendor(cast) as vendor, opened(CHAT, vendor, dialect_settings=settings) as r:
        harness = BuzzllmHarness(r)
        await harness.play()
        return sorted((view.ended_at or 0.0) - view.started_at for view in await r.tree(harness.root_id) if view.depth)


@pytest.mark.stress
@pytest.mark.promise("BZ-SPEED")
async def test_a_call_costs_little_more_than_its_model() -> None:
    cold, warm = await times(0), await times(1)

    assert (cold[3] < 0.4, warm[3] < 0.06) == (True, True), (cold, warm)
