"""`RUST_LOG` where `RETINUE_LOG` is unset: levels, targets of other programs, and parts that are ignored."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from retinue import dialects
from retinue.dialects.registry import rust_programs
from retinue.telemetry.rust_log import Programs, parse

DEBUG, INFO, WARNING, ERROR, OFF = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL + 1


@pytest.mark.parametrize(
    ("filters", "levels"),
    [
        ("", {}),
        ("info", {"retinue": INFO}),
        ("WARN", {"retinue": WARNING}),
        ("off", {"retinue": OFF}),
        ("xzatoma=debug", {"retinue": DEBUG}),
        ("xzatoma", {"retinue": DEBUG}),
        ("xzatoma=", {"retinue": DEBUG}),
        ("xzatoma::tools::subagent=debug", {"retinue.tools.subagent": DEBUG}),
        ("xzatoma::tools=trace,warn", {"retinue.tools": DEBUG, "retinue": WARNING}),
        (" info , zeroclaw::cron = error ", {"retinue": INFO, "retinue.cron": ERROR}),
        ("xzatoma::providers::copilot=debug", {"retinue.engine": DEBUG}),
        ("zeroclaw_runtime::agent::loop_=info", {"retinue.engine": INFO}),
        ("retinue::spec=info", {"retinue.spec": INFO}),
        ("hyper=trace,tokio::net=debug,h2", {}),
        ("retinuex=debug", {}),
    ],
)
def test_levels_and_targets(filters: str, levels: dict[str, int]) -> None:
    assert parse(filters, rust_programs()) == (levels, [])


LEVEL = "is ignored: expected off, error, warn, info, debug or trace after the ="
FORM = "is ignored: expected LEVEL, TARGET or TARGET=LEVEL"


@pytest.mark.parametrize(
    ("filters", "levels", "complaints"),
    [
        ("info,xzatoma=loud", {"retinue": INFO}, [f"RUST_LOG: 'xzatoma=loud' {LEVEL}"]),
        ("a=b=c,debug", {"retinue": DEBUG}, [f"RUST_LOG: 'a=b=c' {LEVEL}"]),
        ("=debug", {}, [f"RUST_LOG: '=debug' {FORM}"]),
        ("xzatoma[turn]=debug", {}, [f"RUST_LOG: 'xzatoma[turn]=debug' {FORM}"]),
        ("info/fail", {"retinue": INFO}, ["RUST_LOG: '/fail' is ignored: lines are not filtered by their text"]),
    ],
)
def test_malformed_parts_are_ignored_and_named(filters: str, levels: dict[str, int], complaints: list[str]) -> None:
    assert parse(filters, rust_programs()) == (levels, complaints)


def test_the_names_of_programs_come_from_the_dialects() -> None:
    dialect = Programs(names=("rusty",), loggers=("tools.web",))

    assert parse("rusty_core::tools::web=info,xzatoma=debug", dialect).levels == {"retinue.tools.web": INFO}
    assert parse("retinue::tools::web=info", Programs()).levels == {"retinue.engine": INFO}


def test_every_logger_of_a_dialect_is_a_target() -> None:
    names = {
        ast.literal_eval(node.args[0])
        for path in Path(dialects.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logger" and isinstance(node.args[0], ast.Constant)
    }
    targets = {name: name.replace(".", "::") for name in names}

    assert {"retinue.spec", "retinue.context", "retinue.zeroclaw", "retinue.tools.subagent"} <= names
    assert {name: parse(target, rust_programs()).levels for name, target in targets.items()} == {
        name: {name: DEBUG} for name in names
    }
