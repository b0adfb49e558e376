"""How results are cut and written, whatever the dialect."""

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.text import Cut, cut, rfc3339

TEXTS = st.text(max_size=60)
LIMITS = st.integers(0, 80)


@given(TEXTS, LIMITS)
def test_a_cut_by_characters_keeps_exactly_the_limit(text: str, limit: int) -> None:
    kept = text[:limit]

    assert cut(text, limit, "[more]") == Cut(kept if kept == text else kept + "[more]", len(text), len(kept))


@given(TEXTS, LIMITS)
def test_a_cut_by_bytes_keeps_the_longest_beginning_of_whole_characters(text: str, limit: int) -> None:
    shown = cut(text, limit, "[more]", unit="bytes")
    fitting = [text[:n] for n in range(len(text) + 1) if len(text[:n].encode()) <= limit]
    longest = fitting[-1]

    assert shown == Cut(
        text if longest == text else longest + "[more]", size=len(text.encode()), kept=len(longest.encode())
    )
    assert shown.shortened == (longest != text)


def test_times_are_utc_to_the_second() -> None:
    assert [rfc3339(at) for at in (0, 0.999, 1767225600.0)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
    ]
