"""Log lines: which levels are printed for which logger, and their format."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue import telemetry
from retinue.core.errors import BadInput
from retinue.telemetry.logs import is_on, parse, turn_on

NAMES = ("retinue", "retinue.spec", "retinue.tools.subagent")


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in NAMES]
    yield
    logging.getLogger("retinue").handlers.clear()
    for logger, level in before:
        logger.setLevel(level)


def test_a_bare_level_is_for_all_loggers_and_a_target_has_its_own() -> None:
    assert parse("info") == {"retinue": logging.INFO}
    assert parse("retinue.tools.subagent=debug,warn") == {
        "retinue.tools.subagent": logging.DEBUG,
        "retinue": logging.WARNING,
    }
    assert parse("") == {}


@pytest.mark.parametrize(
    ("filters", "complaint"),
    [
        ("loud", "unknown level 'loud'; known: debug, info, warn, warning, error, off"),
        ("retinue.spec=", "unknown level ''"),
        ("asyncio=debug", "'asyncio' is no logger of retinue"),
    ],
)
def test_an_invalid_filter_raises_an_error_with_the_variable(filters: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=f"RETINUE_LOG: {complaint}"):
        parse(filters)


def test_only_selected_records_are_written() -> None:
    stream = io.StringIO()
    turn_on("retinue.tools.subagent=info", stream)

    logging.getLogger("retinue.tools.subagent").info("spawned label=%s", "dig")
    logging.getLogger("retinue.spec").info("not asked for")
    logging.getLogger("retinue.spec").warning("worth knowing")

    lines = stream.getvalue().splitlines()
    assert [line.partition("Z ")[2] for line in lines] == [
        "INFO retinue.tools.subagent spawned label=dig",
        "WARNING retinue.spec worth knowing",
    ]


def test_after_two_calls_of_turn_on_each_line_is_written_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    turn_on("info", first)
    turn_on("info", second)

    logging.getLogger("retinue.spec").info("hello")

    assert (first.getvalue(), second.getvalue().count("hello")) == ("", 1)


@pytest.mark.parametrize("tracebacks", [False, True])
def test_tracebacks_are_written_on_request(tracebacks: bool) -> None:
    stream = io.StringIO()
    turn_on("", stream, tracebacks=tracebacks)
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        logging.getLogger("retinue.engine").exception("a run ended by a bug")

    assert "a run ended by a bug" in stream.getvalue()
    assert ("Traceback" in stream.getvalue()) is tracebacks


@pytest.mark.parametrize("tracebacks", [False, True])
def test_no_text_in_a_record_or_a_traceback_looks_like_a_record(tracebacks: bool) -> None:
    stream = io.StringIO()
    turn_on("", stream, tracebacks=tracebacks)
    forged = "x\n2026-01-01T00:00:00Z ERROR retinue.engine forged\r\x1b[2J\u2028"
    try:
        raise RuntimeError(forged)
    except RuntimeError:
        logging.getLogger("retinue.engine").exception("tool %s failed", forged)

    first, *others = stream.getvalue().splitlines()
    assert first.endswith(" tool x 2026-01-01T00:00:00Z ERROR retinue.engine forged ␛[2J  failed")
    assert [line for line in others if not line.startswith("  ")] == []
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"RETINUE_LOG": "info"}, True),
        ({"RUST_LOG": "info"}, True),
        ({"RETINUE_LOG": "", "RUST_LOG": "info"}, False),
    ],
)
def test_a_live_tree_gives_way_to_log_lines_of_either_variable(environment: dict[str, str], expected: bool) -> None:
    assert is_on(environment) is expected


def test_every_logger_adds_the_fields_of_the_run_to_its_lines() -> None:
    """Modules get their logger from `retinue.core.log_context`; these two set up logging itself."""
    source = Path(telemetry.__file__).parents[1]
    direct = [
        path.relative_to(source).as_posix()
        for path in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
    ]
    assert sorted(set(direct)) == ["core/log_context.py", "telemetry/logs.py"]
