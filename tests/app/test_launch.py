"""The service layer as a front end without a terminal uses it: start, follow, resume and chat by `app` alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from retinue.app.chat.conversation import Conversation
from retinue.app.chat.delegation import delegation_for
from retinue.app.follow import TreeWatch, polled, tree_outcome, unless_stopped
from retinue.app.launch.resume import find_stored, reopen, resume
from retinue.app.launch.start import Launch, LaunchOptions, LimitOptions, prepare, settings_for
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.errors import BadInput
from retinue.core.events import Event, ReplyReceived
from retinue.core.messages import Delta
from retinue.core.run import Limits
from retinue.engine.run_view import RunView

pytestmark = pytest.mark.real_time

LINES = {
    "main: Why is it slow?": [
        {"call": {"name": "subagent", "arguments": {"label": "dig", "task_prompt": "find it"}}},
        {"say": "The pool."},
    ],
    "main: find it": [{"say": "It is the pool."}, {"say": "Too small."}],
    "main: Hello": [{"say": "Hi."}, {"say": "Bye."}],
}


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flags:
    """A scripted model, in an empty folder with a state folder of its own."""
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.json").write_text(json.dumps(LINES))
    return Flags(provider="scripted", model="lines.json")


async def prepared(flags: Flags, *dialects: str) -> Launch:
    return await prepare(
        settings_for(None, agent=None), LaunchOptions(flags=flags, dialects=dialects, tools=(), session="s")
    )


async def test_a_run_is_started_and_its_tree_followed(flags: Flags) -> None:
    launch = await prepared(flags, "xzatoma")
    shown: list[list[str]] = []

    def show(rows: object, tasks: object) -> None:
        shown.append([row.label for row in watch.look()])

    async with launch.open() as retinue:
        root = await launch.spawn(retinue, "Why is it slow?")
        watch = TreeWatch(retinue.supervisor, root.run_id)
        async with polled(watch, show):
            outcome = await tree_outcome(retinue, root, asyncio.Event())

    assert outcome is not None
    assert (outcome.text, shown[-1], launch.warnings()) == ("The pool.", ["", "dig"], [])


async def test_a_stored_run_is_resumed_as_it_was_launched(flags: Flags) -> None:
    launch = await prepared(flags)
    async with launch.open() as retinue:
        root = await launch.spawn(retinue, "Hello", detached="wait")

    stored = await find_stored(root.run_id[-8:], Flags())
    again, model_choice = reopen(stored, Flags())
    async with again:
        outcome = await tree_outcome(again, await resume(again, stored), asyncio.Event())
    ended = await find_stored(root.run_id, Flags())

    assert (stored.view.run_id, stored.view.outcome, model_choice) == (root.run_id, None, launch.model_choice)
    assert stored.launch_config == retinue.launch_config
    assert (outcome, again.session_id) == (ended.view.outcome, "s")
    assert outcome is not None
    assert outcome.text == "Hi."


async def test_resume_warns_about_missing_settings_and_folder(flags: Flags, tmp_path: Path) -> None:
    settings = tmp_path / "retinue.toml"
    settings.write_text("[cron]\nmax_running = 2\n")
    launch = await prepared(flags)
    async with launch.open() as retinue:
        root = await launch.spawn(retinue, "Hello", detached="wait")
    settings.unlink()
    warnings: list[str] = []

    again, _ = reopen(await find_stored(root.run_id, Flags()), Flags(), warn=warnings.append)
    async with again:
        pass

    assert warnings == [f"the settings file {settings} does not exist any more; continuing without it"]


async def test_a_stopped_run_has_no_outcome_and_can_be_resumed(flags: Flags) -> None:
    launch = await prepared(flags)
    stop = asyncio.Event()
    stop.set()
    async with launch.open() as retinue:
        root = await launch.spawn(retinue, "Hello", keep_alive=True)
        outcome = await tree_outcome(retinue, root, stop)
        finished = await unless_stopped(root.answer(), asyncio.Event())

    assert (outcome, finished) == (None, True)
    assert (await find_stored(root.run_id, Flags())).view.state == "interrupted"


async def test_a_conversation_needs_no_terminal(flags: Flags) -> None:
    launch = await prepared(flags)
    received: list[Event | Delta] = []
    async with launch.open() as retinue:
        conversation = Conversation(retinue, launch)
        run_id, first = await conversation.begin("Hello", ())
        hello = await conversation.answer(first, received.append, asyncio.Event())
        same_run, second = await conversation.begin("Goodbye", ())
        goodbye = await conversation.answer(second, received.append, asyncio.Event())
        notice = await conversation.close()
        trees: list[list[RunView]] = await conversation.trees()

    assert (hello.text, goodbye.text, same_run, notice) == ("Hi.", "Bye.", run_id, None)
    assert [[view.turns for view in tree] for tree in trees] == [[2]]
    assert sum(isinstance(event, ReplyReceived) for event in received) == 2


def test_given_limits_replace_those_of_the_settings() -> None:
    limits = Limits(max_turns=50, max_calls=9)

    assert LimitOptions().over(limits) == limits
    assert LimitOptions(max_turns=5, max_tokens=1000, max_cost=0.5, timeout=60).over(limits) == Limits(
        max_turns=5, max_calls=9, max_tokens=1000, max_cost=0.5, timeout=60
    )


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ("", r"the settings have no \[agents.NAME\]"),
        ('[agents.scout]\nsystem_prompt = "You look."\n', "known: .*scout"),
    ],
    ids=["none", "another one"],
)
def test_an_agent_has_to_be_in_the_settings(tmp_path: Path, agents: str, words: str) -> None:
    (tmp_path / "retinue.toml").write_text(agents)

    with pytest.raises(BadInput, match=words):
        settings_for(str(tmp_path / "retinue.toml"), agent="ghost")


@pytest.mark.parametrize(
    ("dialects", "chosen", "is_on", "by_words"),
    [(None, ("xzatoma",), False, False), (("spec",), ("spec",), True, True), ((), ("xzatoma",), False, False)],
    ids=["no flag", "a dialect", "none"],
)
def test_delegation_at_the_start_of_a_chat_follows_the_flag(
    dialects: tuple[str, ...] | None, chosen: tuple[str, ...], is_on: bool, by_words: bool
) -> None:
    delegation = delegation_for(dialects, Settings())

    assert (delegation.chosen, delegation.is_on, delegation.by_words) == (chosen, is_on, by_words)
