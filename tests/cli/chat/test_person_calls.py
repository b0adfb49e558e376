"""`!command` and `@file` at the prompt of a chat: within the policy of the agent, and sent with the next input."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.providers.scripted import says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.pty_command import PtyCommand
from tests.cli.stage import retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]


def start_chat(vendor: FakeChat, *flags: str, **env: str) -> PtyCommand:
    return PtyCommand("chat", "--base-url", vendor.base_url, "--model", "m", *flags, all_there=True, **env)


async def test_the_output_of_a_shell_command_goes_along_with_the_next_input(folder: Path) -> None:
    async with FakeChat(ChatScript().play(says("One."), says("Two."))) as vendor:
        terminal = start_chat(vendor, "--no-sandbox")
        await terminal.expect("> ")
        terminal.type_line("!echo six times seven > sum.txt; cat sum.txt")
        await terminal.expect("six times seven\r\n")
        await terminal.expect("> ")
        terminal.type_line("What is it?")
        await terminal.expect("One.\r\n")
        await terminal.expect("> ")
        terminal.type_line("Sure?")
        await terminal.expect("Two.\r\n")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()
    last_inputs = [heard.body["messages"][-1]["content"] for heard in vendor.requests]

    command = "echo six times seven > sum.txt; cat sum.txt"
    assert last_inputs == [f'What is it?\n\n<shell name="{command}">\nsix times seven\n</shell>', "Sure?"]
    assert (folder / "sum.txt").read_text() == "six times seven\n"
    rows = (await retinue("runs", "--json")).json
    assert {(row["label"], row["state"]) for row in rows} == {("chat", "ended"), ("host:chat", "ended")}


async def test_a_shell_command_that_the_policy_forbids_is_refused(folder: Path) -> None:
    (folder / "kept").mkdir()
    async with FakeChat(ChatScript()) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect("> ")
        terminal.type_line("!rm -rf kept")
        await terminal.expect("high-risk calls are blocked")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()

    assert (folder / "kept").is_dir()


async def test_a_named_file_is_added_within_the_policy(folder: Path) -> None:
    (folder / "notes.md").write_text("the pool\nis small\n")
    (folder.parent / "outside.md").write_text("secret\n")
    async with FakeChat(ChatScript().play(says("One."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect("> ")
        terminal.type_line("Sum up @notes.md, @../outside.md and @missing.md.")
        await terminal.expect("added notes.md (2 lines)\r\n")
        await terminal.expect("note: @../outside.md is sent as it is: Security policy: ")
        await terminal.expect("note: @missing.md is sent as it is: No such file or directory: missing.md")
        await terminal.expect("One.\r\n")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()

    (sent,) = [heard.body["messages"][-1]["content"] for heard in vendor.requests]
    assert sent == (
        'Sum up @notes.md, @../outside.md and @missing.md.\n\n<file name="notes.md">\n1: the pool\n2: is small\n</file>'
    )


async def test_a_named_image_goes_along_as_an_image(folder: Path) -> None:
    (folder / "chart.png").write_bytes(b"\x89PNG\r\n\x1a\ndots")
    async with FakeChat(ChatScript().play(says("A chart."))) as vendor:
        terminal = start_chat(vendor)
        await terminal.expect("> ")
        terminal.type_line("What is @chart.png?")
        await terminal.expect("added chart.png (image/png)")
        await terminal.expect("A chart.\r\n")
        await terminal.expect("> ")
        terminal.type_line("/quit")
        await terminal.result()

    (heard,) = vendor.requests
    text, image = heard.body["messages"][-1]["content"]
    assert text == {"type": "text", "text": "What is @chart.png?"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
