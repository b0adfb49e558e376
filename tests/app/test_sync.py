"""`open_sync` has every verb of the asynchronous client, with the same parameters."""

import inspect
from collections.abc import Callable

import pytest

import retinue
from retinue.app.sync import OpenOptions
from retinue.events import RunEnded
from retinue.testing import Script, ScriptedProvider, calls, says

NOT_BLOCKING = {"host", "run_spec", "find_tool", "load_dialects"}
"""Parts of `Retinue` for front ends of this package."""

PAIRS = [(retinue.Retinue, retinue.SyncRetinue), (retinue.RunHandle, retinue.SyncHandle)]


def verbs(kind: type) -> dict[str, Callable[..., object]]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in methods if not name.startswith("_") and name not in NOT_BLOCKING}


@pytest.mark.parametrize(("kind", "blocking"), PAIRS)
def test_every_verb_has_a_blocking_form_with_its_parameters(kind: type, blocking: type) -> None:
    theirs = verbs(blocking)

    assert set(verbs(kind)) - set(theirs) == set()
    for name, method in verbs(kind).items():
        parameters = inspect.signature(theirs[name]).parameters
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            continue  # typed by a TypedDict
        assert set(inspect.signature(method).parameters) == set(parameters), name


def test_open_sync_takes_the_arguments_of_open() -> None:
    assert set(OpenOptions.__annotations__) == set(inspect.signature(retinue.open).parameters)


def test_a_tree_is_followed_without_await() -> None:
    script = Script().play("main", calls("run_agent", agent="dig", task="Dig."), says("Done."))
    model = ScriptedProvider(script.play("dig", says("Empty.")))
    with retinue.open_sync(
        provider=model, agents=[retinue.Agent(name="dig")], dialects=["native"], home=retinue.MEMORY
    ) as r:
        run = r.spawn("Look.")
        ends = [item.path for item in run.events(tree=True) if isinstance(item.event, RunEnded)]
        views = {view.path for view in r.tree(run)}
        again = r.handle(run.run_id).wait().text

    assert ends == ["root/dig/1", "root"]
    assert views == {"root", "root/dig/1"}
    assert again == "Done."
