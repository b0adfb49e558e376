"""Errors: messages and attributes agree, and the tree in the module docstring is the class tree."""

from __future__ import annotations

import inspect
import re

import pytest

from retinue.core import errors
from retinue.core.errors import (
    ConfigError,
    DepthExceeded,
    Fenced,
    NoAllowance,
    NotAdoptable,
    PolicyError,
    Problem,
    ProviderError,
    ProviderFault,
    RetinueError,
    RunIsOver,
    SessionClosed,
    StoreNotOpened,
    StoreUnavailable,
    TooManyRunning,
    TreeCancelled,
    UnknownFormat,
    UnknownName,
    UnknownVariant,
)
from retinue.core.usage import NO_USAGE, Usage

NO_ROOM = Problem(file="retinue.toml", line=3, column=9, key="spec.depth", complaint="found 0; expected 1 or more")
NAMED = Problem(file="retinue.toml", key="spec.depth", complaint="spec.depth must be greater than 0")


@pytest.mark.parametrize(
    ("error", "sentence", "facts"),
    [
        (
            ConfigError(NO_ROOM, NAMED, Problem(file="retinue.yaml", line=1, complaint="not YAML")),
            "retinue.toml:3:9: spec.depth: found 0; expected 1 or more\n"
            "retinue.toml: spec.depth must be greater than 0\n"
            "retinue.yaml:1: not YAML",
            {"problems": (NO_ROOM, NAMED, Problem(file="retinue.yaml", line=1, complaint="not YAML"))},
        ),
        (
            UnknownName("agent", "writter", ("reader", "writer")),
            "unknown agent: 'writter'; known: reader, writer",
            {"kind": "agent", "name": "writter", "known": ("reader", "writer")},
        ),
        (UnknownName("run", "r1"), "unknown run: 'r1'", {"kind": "run", "name": "r1", "known": ()}),
        (
            DepthExceeded(depth=2, max_depth=1),
            "cannot delegate at depth 2; this tree stops at 1",
            {"depth": 2, "max_depth": 1},
        ),
        (
            TooManyRunning(running=5, limit=4),
            "5 runs are running already; the limit is 4",
            {"running": 5, "limit": 4},
        ),
        (
            NoAllowance(account="run", dimension="tokens", asked=10, left=3),
            "account run has 3 tokens left; 10 were asked for",
            {"account": "run", "dimension": "tokens", "asked": 10, "left": 3},
        ),
        (TreeCancelled("r1"), "run r1 is cancelled; nothing can be started under it", {"run_id": "r1"}),
        (
            SessionClosed("s1", "archived"),
            "session 's1' is archived",
            {"session_id": "s1", "state": "archived"},
        ),
        (
            RunIsOver("r1", "failed"),
            "run r1 has ended (failed) already",
            {"run_id": "r1", "result": "failed"},
        ),
        (
            NotAdoptable("r1", "no tool named 'x'"),
            "run r1 cannot be continued here: no tool named 'x'",
            {"run_id": "r1", "reason": "no tool named 'x'"},
        ),
        (
            PolicyError("too much", field="autonomy", asked="full", allowed="supervised"),
            "too much",
            {"field": "autonomy", "asked": "full", "allowed": "supervised"},
        ),
        (
            ProviderError(
                "slow down", fault="rate_limited", status=429, retry_after=1.5, partial="half a", usage=Usage(7), cost=9
            ),
            "slow down",
            {
                "fault": "rate_limited",
                "status": 429,
                "retry_after": 1.5,
                "partial": "half a",
                "usage": Usage(7),
                "cost": 9,
                "busy": None,
                "slip": "",
                "is_priced": False,
            },
        ),
        (
            ProviderError("what?"),
            "what?",
            {
                "fault": "internal",
                "status": None,
                "retry_after": None,
                "partial": "",
                "usage": NO_USAGE,
                "cost": 0,
                "busy": None,
                "slip": "",
                "is_priced": False,
            },
        ),
        (
            StoreUnavailable("disk full"),
            "the store cannot be written: disk full; runs stopped where they were and can be resumed",
            {"reason": "disk full"},
        ),
        (
            StoreNotOpened("no room"),
            "the store cannot be opened: no room",
            {"reason": "no room"},
        ),
        (
            UnknownFormat("run r1", found=3, known=1),
            "run r1 has format 3; this retinue knows up to 1: upgrade retinue to drive it",
            {"what": "run r1", "found": 3, "known": 1},
        ),
        (
            UnknownVariant("event 2 of run r1", variant="future", path="$.type", known=1),
            "event 2 of run r1 has 'future' at $.type, which this retinue does not know: a newer version wrote it; "
            "upgrade retinue to drive it",
            {"what": "event 2 of run r1", "variant": "future", "path": "$.type", "found": 1, "known": 1},
        ),
        (
            Fenced("d1"),
            "driver d1 was declared dead and lost its runs; another process may be driving them",
            {"driver_id": "d1"},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RetinueError) else "",
)
def test_an_error_has_a_message_and_its_facts_as_attributes(
    error: RetinueError, sentence: str, facts: dict[str, object]
) -> None:
    assert (str(error), vars(error)) == (sentence, facts)


@pytest.mark.parametrize(
    ("fault", "transient"),
    [
        ("rate_limited", True),
        ("overloaded", True),
        ("unreachable", True),
        ("cut", True),
        ("timeout", True),
        ("auth", False),
        ("bad_request", False),
        ("too_long", False),
        ("refused", False),
        ("internal", False),
    ],
)
def test_only_temporary_faults_are_transient(fault: ProviderFault, transient: bool) -> None:
    assert ProviderError("no", fault=fault).transient == transient


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+)  ", line):
            depth = len(found[1]) // 4
            above = [*above[:depth], found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"

    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]

    assert drawn == {kind.__name__: kind.__mro__[1].__name__ for kind in classes}


@pytest.mark.parametrize(
    ("error", "wants_less"),
    [
        (ProviderError("slow down", fault="rate_limited", status=429), True),
        (ProviderError("no room", fault="overloaded", status=503), True),
        (ProviderError("no room", fault="overloaded", status=529), True),
        (ProviderError("no room", fault="overloaded"), True),
        (ProviderError("no room", fault="overloaded", status=500, busy=True), True),
        (ProviderError("come later", fault="overloaded", status=500, retry_after=1.0), True),
        (ProviderError("oops", fault="overloaded", status=500), False),
        (ProviderError("bad gateway", fault="overloaded", status=502), False),
        (ProviderError("in conflict", fault="overloaded", status=409), False),
        (ProviderError("gave up", fault="overloaded", busy=False), False),
        (ProviderError("slow", fault="timeout", status=504), False),
        (ProviderError("who are you", fault="auth", status=401), False),
    ],
    ids=str,
)
def test_only_overload_errors_ask_for_fewer_requests(error: ProviderError, wants_less: bool) -> None:
    assert error.wants_less == wants_less
