"""The codec: formats, upcasting, blobs, and errors for damaged bytes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import StoreCorrupt, UnknownFormat, UnknownVariant
from retinue.core.events import FORMAT, RunAccepted, RunLeft
from retinue.core.inbox import Close, TextMessage
from retinue.core.policy import Policy
from retinue.core.run import Outcome
from retinue.core.text import utf8_safe
from retinue.store.codec import (
    BLOB_THRESHOLD,
    Codec,
    JsonTree,
    RecordKind,
    blob_name,
    checked_blob,
    split_large,
)
from tests.store.samples import EXPECTED, RUN_SPEC


@pytest.mark.parametrize("name", EXPECTED[1])
def test_an_encoded_value_begins_with_its_format_number(name: str) -> None:
    value = EXPECTED[1][name]

    assert Codec().encode(value) == b"1" + msgspec.json.encode(value)


def test_a_newer_format_raises_unknown_format_with_both_numbers() -> None:
    with pytest.raises(UnknownFormat) as refused:
        Codec(format=11).event(b'12{"type":"adopted","at":1.0,"driver_id":"d"}')

    assert (refused.value.found, refused.value.known) == (12, 11)
    assert str(refused.value) == (
        "a stored event has format 12; this retinue knows up to 11: upgrade retinue to drive it"
    )


def test_outcome_if_known_is_none_for_a_newer_format() -> None:
    assert Codec().outcome_if_known(b'2{"how":"well"}') is None
    assert Codec().outcome_if_known(b'1{"result":"failed","reason":"bug"}') == Outcome(result="failed", reason="bug")


@pytest.mark.parametrize(
    ("body", "variant", "path"),
    [
        (b'1{"type":"no such event","at":1.0}', "no such event", "$.type"),
        (b'1{"type":"advice","at":1.0,"about":"the weather","text":""}', "the weather", "$.about"),
        (b'1{"type":"mail","at":1.0,"items":[{"type":"poem","key":"k"}]}', "poem", "$.items[0].type"),
        (b'1{"type":"%s"}' % (b"long" * 1000), "long" * 20, "$.type"),
    ],
    ids=["event", "value", "item in an event", "long"],
)
def test_a_variant_that_a_newer_version_added_is_named(body: bytes, variant: str, path: str) -> None:
    with pytest.raises(UnknownVariant) as refused:
        Codec().event(body)

    assert (refused.value.variant, refused.value.path, refused.value.known) == (variant, path, FORMAT)


def test_values_of_a_newer_version_are_none_where_the_others_are_read() -> None:
    codec = Codec()

    assert codec.event_if_known(b'1{"type":"no such event","at":1.0}') is None
    assert codec.event_if_known(b'1{"type":"left","at":1.0}') == RunLeft(at=1.0)
    assert codec.item_if_known(b'2{"type":"close","key":"k"}') is None
    assert codec.item_if_known(b'1{"type":"close","key":"k"}') == Close(key="k")
    assert codec.outcome_if_known(b'1{"result":"no such result","reason":"bug"}') is None


def upcast_one(kind: RecordKind, tree: JsonTree) -> JsonTree:
    return {**tree, "text": tree["words"]} if kind == "item" else tree


def upcast_two(kind: RecordKind, tree: JsonTree) -> JsonTree:
    return {**tree, "text": tree["text"] + "!"} if kind == "item" else tree


def test_older_formats_are_upcast_step_by_step() -> None:
    codec = Codec(format=3, upcasters={1: upcast_one, 2: upcast_two})

    assert codec.item(b'1{"type":"words","key":"k","words":"hello"}') == TextMessage(key="k", text="hello!")
    assert codec.item(b'2{"type":"words","key":"k","text":"hello"}') == TextMessage(key="k", text="hello!")
    assert codec.item(b'3{"type":"words","key":"k","text":"hello"}') == TextMessage(key="k", text="hello")


def test_a_run_keeps_the_format_it_was_accepted_in() -> None:
    accepted = RunAccepted(at=1.0, run_id="r", session_id="s", root_id="r", run_spec="b", task="t", policy=Policy())
    body = Codec(format=2).encode(accepted)

    event = Codec(format=3, upcasters={2: upcast_two}).event(body)

    assert isinstance(event, RunAccepted)
    assert event.format == 2


def test_unknown_fields_are_ignored() -> None:
    assert Codec().item(b'1{"type":"close","key":"k","since":7}') == Codec().item(b'1{"type":"close","key":"k"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1",
        b"{}",
        b'{"type":"close","key":"k"}',
        b"1{",
        b'1{"type":"close"}',
        b'1{"type":5,"key":"k"}',
        b'x1{"type":"close","key":"k"}',
        b'1{"type":"close","key":"\xff"}',
    ],
)
def test_invalid_bytes_raise_store_corrupt(body: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        Codec().item(body)


def test_an_invalid_policy_raises_store_corrupt_and_one_of_a_newer_version_its_own_error() -> None:
    accepted = RunAccepted(at=1.0, run_id="r", session_id="s", root_id="r", run_spec="b", task="t", policy=Policy())
    body = Codec().encode(accepted)

    with pytest.raises(StoreCorrupt, match="a stored event cannot be read"):
        Codec().event(body.replace(b'"supervised"', b"1"))
    with pytest.raises(UnknownVariant, match=r"has 'unleashed' at \$\.policy\.autonomy"):
        Codec().event(body.replace(b'"supervised"', b'"unleashed"'))


def test_lone_surrogates_are_replaced_when_encoded() -> None:
    message = TextMessage(key="k", text="a\ud800b")

    assert Codec().item(Codec().encode(message)) == TextMessage(key="k", text="a?b")


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    message = TextMessage(key="k", text=text)

    assert Codec().item(Codec().encode(message)) == message
    assert utf8_safe(text) == text


def test_a_large_body_becomes_a_blob_reference() -> None:
    body = Codec().encode(TextMessage(key="k", text="x" * BLOB_THRESHOLD))

    stored, digest = split_large(body)

    assert digest is not None
    assert (stored, blob_name(stored)) == (b"@" + digest.encode(), digest)
    assert checked_blob(digest, body) == body


def test_a_small_body_is_stored_inline() -> None:
    body = Codec().encode(TextMessage(key="k", text="x"))

    assert split_large(body) == (body, None)
    assert blob_name(body) is None


def test_a_run_spec_is_a_blob_under_its_own_digest() -> None:
    body = Codec().encode(RUN_SPEC)

    assert Codec().run_spec(checked_blob(RUN_SPEC.digest(), body)) == RUN_SPEC


@pytest.mark.parametrize(("body", "what"), [(None, "is missing"), (b'1{"agent":"other"}', "was changed")])
def test_a_missing_or_changed_blob_raises_store_corrupt(body: bytes | None, what: str) -> None:
    with pytest.raises(StoreCorrupt, match=what):
        checked_blob(RUN_SPEC.digest(), body)
