"""The corpus of stored formats: every sample still decodes, and every stored field has a sample."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from retinue.core.agent import RunSpec
from retinue.core.events import FORMAT, Event, RunAccepted, RunEnded
from retinue.core.inbox import Item
from retinue.core.run import Outcome
from retinue.core.state import fold
from retinue.store.codec import Codec
from tests.store.samples import CORPUS, EXPECTED, LOG, RUN_SPEC, folder_of

SAMPLES = [(format, name) for format, samples in EXPECTED.items() for name in samples]


def decode(name: str, body: bytes) -> Event | Item | Outcome | RunSpec:
    codec = Codec()
    match name.split("."):
        case ["event", _]:
            return codec.event(body)
        case ["item", _]:
            return codec.item(body)
        case ["outcome"]:
            return codec.outcome(body)
        case ["brief", *_]:
            return codec.run_spec(body)
        case _:
            raise LookupError(name)


@pytest.mark.parametrize(("format", "name"), SAMPLES)
def test_a_stored_sample_decodes_to_the_expected_value(format: int, name: str) -> None:
    content = (folder_of(format) / f"{name}.json").read_bytes()

    assert decode(name, b"%d" % format + content) == EXPECTED[format][name]


@pytest.mark.parametrize("format", sorted(EXPECTED))
def test_a_stored_log_folds_to_the_expected_run(format: int) -> None:
    lines = (folder_of(format) / "log.jsonl").read_bytes().splitlines()

    events = [Codec().event(b"%d" % format + line) for line in lines]

    assert events == list(LOG)
    run = fold(enumerate(events, 1), RUN_SPEC)
    ended = LOG[-1]
    assert isinstance(ended, RunEnded)
    assert (run.text, run.turns, run.calls_made, run.outcome) == ("42", 2, 1, ended.outcome)


def test_every_file_of_the_corpus_is_tested() -> None:
    files = {(path.parent.name, path.name) for path in CORPUS.glob("*/*")}

    named = {(f"format_{format}", f"{name}.json") for format, name in SAMPLES}
    assert files == named | {(f"format_{format}", "log.jsonl") for format in EXPECTED}
    assert set(EXPECTED) == set(range(1, FORMAT + 1))


def test_every_stored_field_has_a_sample() -> None:
    declared = {
        (kind.__name__, field.name)
        for stored in (Event, Item, Outcome, RunSpec)
        for kind in structs_below(msgspec.inspect.type_info(stored))
        for field in msgspec.structs.fields(kind)
    }
    # The current format is the default. That an older one is kept is tested with the codec.
    declared.remove((RunAccepted.__name__, "format"))
    # The answer as a Python type is added in the process that waits for a run, and never stored.
    declared.remove((Outcome.__name__, "typed"))

    filled = {field for sample in EXPECTED[FORMAT].values() for field in filled_fields(sample)}

    assert declared - filled == set()


def structs_below(info: msgspec.inspect.Type) -> Iterator[type[msgspec.Struct]]:
    match info:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            yield cls
            for field in fields:
                yield from structs_below(field.type)
        case msgspec.inspect.UnionType(types=types) | msgspec.inspect.TupleType(item_types=types):
            for member in types:
                yield from structs_below(member)
        case msgspec.inspect.VarTupleType(item_type=item):
            yield from structs_below(item)
        case _:
            return


def filled_fields(value: object) -> Iterator[tuple[str, str]]:
    """(class, field) of all values inside `value` that differ from their default."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            content = getattr(value, field.name)
            if field.required or content != field.default:
                yield type(value).__name__, field.name
            yield from filled_fields(content)
    elif isinstance(value, tuple):
        for content in cast("tuple[Any, ...]", value):
            yield from filled_fields(content)
