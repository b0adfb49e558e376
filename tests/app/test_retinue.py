"""The Python API of an open retinue."""

import pytest

import retinue
from retinue.app.handle import RunHandle
from retinue.providers.scripted import Script, ScriptedProvider, says


def open_scripted(*answers: str) -> retinue.Retinue:
    model = ScriptedProvider(Script().play("main", *map(says, answers)))
    return retinue.open(provider=model, home=retinue.MEMORY)


async def ask_twice(run: RunHandle) -> list[str]:
    answers = [(await run.answer()).text, (await run.ask("And then?")).text]
    await run.close()
    return answers


async def test_spawn_accepts_the_deprecated_parameter_stays() -> None:
    async with open_scripted("One.", "Two.") as r:
        with pytest.warns(DeprecationWarning, match="stays= is deprecated: use keep_alive="):
            run = await r.spawn("Count.", stays=True)

        assert await ask_twice(run) == ["One.", "Two."]


async def test_fork_accepts_the_deprecated_parameter_stays() -> None:
    async with open_scripted("One.", "Two.") as r:
        origin = await r.spawn("Count.", detached=True)
        with pytest.warns(DeprecationWarning, match="stays= is deprecated: use keep_alive="):
            fork = await r.fork(origin, "Count on.", stays=True)

        assert await ask_twice(fork) == ["One.", "Two."]


async def test_a_run_without_keep_alive_takes_no_more_input() -> None:
    async with open_scripted("One.") as r:
        run = await r.spawn("Count.")
        await run.wait()

        with pytest.raises(retinue.RetinueError, match=r"start it with keep_alive=True, or use send\(\)"):
            await run.ask("And then?")


async def test_using_a_retinue_before_entering_it_is_an_error_that_shows_how() -> None:
    r = retinue.open(provider=ScriptedProvider(Script()), home=retinue.MEMORY)

    with pytest.raises(RuntimeError, match="not open: use it in an `async with` block"):
        await r.run("Hello.")
