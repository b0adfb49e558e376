"""Images and files as input, through the front door."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import retinue
from retinue.app.transcript import entries
from retinue.core.attachments import MAX_BYTES, read_attachment
from retinue.core.compaction import SizeTarget, Truncation, plan, transcript
from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.events import Event
from retinue.messages import Attachment
from retinue.ports import Request, ToolResult
from retinue.providers.scripted import Line
from retinue.testing import Script, ScriptedProvider, calls, fails, says, together

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
CHART = retinue.Image(PNG, name="chart.png")


class Recorder:
    """A model that keeps the attachments of each request."""

    def __init__(self, *lines: str) -> None:
        self.seen: list[tuple[Attachment, ...]] = []
        self.script = ScriptedProvider(Script().play("main", *(self._line(text) for text in lines)))

    def _line(self, text: str) -> Callable[[Request], Line]:
        def line(request: Request) -> Line:
            messages = [message for message in request.messages if isinstance(message, UserMessage)]
            self.seen.append(tuple(each for message in messages for each in message.attachments))
            return says(text)

        return line


async def test_the_model_gets_the_images_of_a_task_and_of_later_inputs() -> None:
    model = Recorder("A chart.", "A table.")
    notes = retinue.File(b"a,b\n1,2\n", name="table.csv")
    async with retinue.open(provider=model.script, home=retinue.MEMORY, dialects=()) as r:
        run = await r.spawn("What is this?", attachments=[CHART], keep_alive=True)
        await run.answer()
        await run.ask("And this?", attachments=[notes])
        await run.close()

    assert model.seen == [(CHART,), (CHART, notes)]


async def test_attachments_are_stored_and_survive_a_restart(tmp_path: Path) -> None:
    first, second = Recorder("Unused."), Recorder("A chart.")
    async with retinue.open(provider=first.script, home=tmp_path, dialects=()) as r:
        run = await r.spawn("What is this?", attachments=[CHART], detached=True)
    async with retinue.open(provider=second.script, home=tmp_path, dialects=()) as r:
        outcome = await (await r.resume(run.run_id)).wait()

    assert (outcome.text, second.seen) == ("A chart.", [(CHART,)])


async def test_a_refused_request_with_an_image_names_the_image_and_the_model() -> None:
    line = fails(ProviderError("invalid content type", fault="bad_request", status=400))
    model = ScriptedProvider(Script().play("main", line))
    async with retinue.open(provider=model, model="tiny", home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("What is this?", attachments=[CHART])

    assert "invalid content type (the request had chart.png (image/png); perhaps" in outcome.error


@pytest.mark.parametrize(
    ("attachment", "reason"),
    [
        ("chart.png", "expected retinue.Image or retinue.File, found str"),
        (retinue.Image(b"BM....", name="old.bmp"), "attachment 'old.bmp' is not an image that models take"),
        (retinue.Image(b"", media_type="image/png", name="none.png"), "attachment 'none.png' is empty"),
        (retinue.File(b"x" * (MAX_BYTES + 1)), "at most 20 MiB, and these have 21"),
    ],
)
async def test_an_attachment_that_no_model_takes_is_refused_at_once(attachment: Attachment, reason: str) -> None:
    async with retinue.open(provider=Recorder("Unused.").script, home=retinue.MEMORY) as r:
        with pytest.raises(retinue.RetinueError, match=reason):
            await r.run("What is this?", attachments=[attachment])
        with pytest.raises(retinue.RetinueError, match="at most 20 attachments"):
            await r.run("What is this?", attachments=[CHART] * 21)


def test_the_type_of_a_file_is_found_by_its_content(tmp_path: Path) -> None:
    for name, data in {"a.txt": PNG, "b.png": b"words", "c.dat": b"%PDF-1.7", "d": b"RIFF\0\0\0\0WEBP"}.items():
        (tmp_path / name).write_bytes(data)

    found = {name: read_attachment(tmp_path / name) for name in sorted(os.listdir(tmp_path))}

    assert {name: (type(each), each.media_type) for name, each in found.items()} == {
        "a.txt": (retinue.Image, "image/png"),
        "b.png": (retinue.File, "text/plain"),
        "c.dat": (retinue.File, "application/pdf"),
        "d": (retinue.Image, "image/webp"),
    }
    with pytest.raises(retinue.RetinueError, match=r"cannot read .*nothing: No such file"):
        retinue.Image.read(tmp_path / "nothing")


# ---- results of tools ------------------------------------------------------------------------------------------------


@retinue.tool(kind="pure")
def screenshot(page: int = 1) -> list[object]:
    """Take a picture of a page."""
    return [f"Page {page}:", CHART, {"width": 640}]


@retinue.tool(kind="pure")
def chart() -> retinue.Image:
    """Draw the chart."""
    return CHART


@retinue.tool(kind="pure")
def album() -> list[retinue.Image]:
    """Get too many pictures."""
    return [CHART] * 21


def shown(request: Request) -> list[tuple[str, tuple[Attachment, ...]]]:
    return [(each.text, each.attachments) for each in request.messages if isinstance(each, ToolMessage)]


async def test_the_model_gets_the_images_that_a_tool_returns() -> None:
    found: list[tuple[str, tuple[Attachment, ...]]] = []

    def look(request: Request) -> Line:
        found.extend(shown(request))
        return says("Done.")

    script = Script().play("main", together(calls("screenshot"), calls("chart"), calls("album")), look)
    async with retinue.open(
        provider=ScriptedProvider(script), tools=[screenshot, chart, album], home=retinue.MEMORY, dialects=()
    ) as r:
        await r.run("Look.")

    too_many = "[its images and files were left out: a result has at most 20 attachments, and this one has 21]"
    assert found == [('Page 1:\n{"width":640}', (CHART,)), ("", (CHART,)), (too_many, ())]


async def test_images_of_results_survive_a_restart_and_a_fork_and_are_named_in_the_transcript(tmp_path: Path) -> None:
    seen: list[list[tuple[str, tuple[Attachment, ...]]]] = []

    def look(request: Request) -> Line:
        seen.append(shown(request))
        return says("A chart.")

    first = ScriptedProvider(Script().play("main", calls("chart"), fails(ProviderError("down", fault="unreachable"))))
    async with retinue.open(provider=first, tools=[chart], home=tmp_path, dialects=()) as r:
        run = await r.spawn("What is this?")
        assert (await run.wait()).result == "failed"
        history = [event async for event in run.events() if isinstance(event, Event)]
    async with retinue.open(
        provider=ScriptedProvider(Script().play("main", look)), tools=[chart], home=tmp_path, dialects=()
    ) as r:
        outcome = await (await r.fork(run.run_id, "Go on.")).wait()

    assert (outcome.text, seen) == ("A chart.", [[("", (CHART,))]])
    results = [entry.text for entry in entries(history) if entry.kind == "result"]
    assert results == ["[chart.png, image/png, 10 kB]"]


async def test_the_same_call_with_another_image_is_no_repetition() -> None:
    pictures = iter(range(100))

    @retinue.tool(kind="pure")
    def camera() -> retinue.Image:
        """Take a picture."""
        return retinue.Image(PNG + bytes([next(pictures)]))

    model = ScriptedProvider(Script().play("main", *[calls("camera")] * 12, says("Nothing moves.")))
    async with retinue.open(provider=model, tools=[camera], home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("Watch.")

    assert outcome.text == "Nothing moves."


async def test_a_result_that_a_hook_withholds_has_no_image() -> None:
    class Broken(retinue.Hooks):
        async def after_tool(
            self, call: ToolCall, context: retinue.CallContext, result: ToolResult
        ) -> ToolResult | None:
            raise RuntimeError("no")

    found: list[tuple[str, tuple[Attachment, ...]]] = []

    def look(request: Request) -> Line:
        found.extend(shown(request))
        return says("Done.")

    model = ScriptedProvider(Script().play("main", calls("chart"), look))
    async with retinue.open(provider=model, tools=[chart], home=retinue.MEMORY, dialects=(), hooks=[Broken()]) as r:
        await r.run("Look.")

    ((text, attachments),) = found
    assert (text.startswith("The call was made, and its result is withheld"), attachments) == (True, ())


async def test_compaction_leaves_out_the_images_of_old_results() -> None:
    messages: list[Message] = [UserMessage("Watch.")]
    for number in range(6):
        messages += [AssistantMessage("", (ToolCall("camera", "{}", f"c{number}"),))]
        messages += [ToolMessage("camera", "", f"c{number}", attachments=(CHART,))]
    planned = plan(messages, SizeTarget(target=20_000, acceptable=30_000))

    assert isinstance(planned, Truncation)
    results = [each for each in planned.messages if isinstance(each, ToolMessage)]
    without = ToolMessage("camera", "[result of camera left out: 0 characters]\n[without chart.png (image/png)]", "c0")
    assert results[0] == without
    assert "[with chart.png (image/png)]" in transcript(messages, 10_000)


def test_audio_is_recognised_by_its_content() -> None:
    types = {
        b"RIFF\0\0\0\0WAVEfmt ": "audio/wav",
        b"FORM\0\0\0\0AIFFCOMM": "audio/aiff",
        b"ID3\x03\0": "audio/mpeg",
        b"\xff\xfb\x90\0": "audio/mpeg",
        b"\xff\xf1\x50\x80": "audio/aac",
        b"fLaC\0": "audio/flac",
        b"OggS\0": "audio/ogg",
        b"\xff\xfeh\0i\0": "application/octet-stream",
    }

    assert {data: retinue.File(data).media_type for data in types} == types
    assert retinue.File(b"...", "audio/mp3").media_type == "audio/mpeg"
