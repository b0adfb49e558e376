"""Transcripts: the events of a run as readable text."""

from retinue.app.transcript import TranscriptEntry, entries
from retinue.core.events import CompactedBy, HistoryCompacted
from retinue.core.messages import UserMessage


def notes_of(way: CompactedBy, *, model: str = "", before: int = 0, after: int = 0) -> str:
    event = HistoryCompacted(
        at=0.0, replaced=12, messages=(UserMessage("so far"),), way=way, model=model, before=before, after=after
    )
    (entry,) = entries([event])
    assert entry == TranscriptEntry(at="1970-01-01T00:00:00Z", kind="note", text=entry.text)
    return entry.text


def test_a_compaction_note_has_kind_and_sizes() -> None:
    assert notes_of("shortened", before=9100, after=4000) == (
        "to make room, long texts in the first 12 messages were left out: about 9.1k tokens became 4.0k"
    )
    assert notes_of("summarised", model="m-1", before=91_000, after=40_000) == (
        "to make room, the first 12 messages were summarised by m-1: about 91.0k tokens became 40.0k"
    )
    assert notes_of("left_out") == "to make room, the first 12 messages were left out without a summary"
