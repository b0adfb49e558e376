"""Images and files as input, through the front door."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import retinue
from retinue.core.attachments import MAX_BYTES, read_attachment
from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.messages import Attachment
from retinue.ports import Request
from retinue.providers.scripted import Line
from retinue.testing import Script, ScriptedProvider, fails, says

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
