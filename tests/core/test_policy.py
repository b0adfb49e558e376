"""Policies: published defaults, the message of every violation, and properties of narrowing and intersection."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.errors import PolicyError
from retinue.core.policy import (
    DEFAULT_AUTO_APPROVE,
    NO_TOOLS,
    Autonomy,
    Policy,
    PolicyDecision,
    Risk,
    Verdict,
    inherit,
    intersect,
    narrow,
    verdict,
)

# ---- what a policy is ----------------------------------------------------------------------------------------------


@pytest.mark.promise("ZC-POLICY-DEFAULTS")
def test_an_empty_policy_has_the_published_defaults() -> None:
    commands = (
        "git npm cargo ls cat grep find echo pwd wc head tail date df du uname uptime hostname python python3 pip node"
    )

    assert msgspec.structs.asdict(Policy()) == {
        "autonomy": Autonomy.SUPERVISED,
        "workspace_only": True,
        "allowed_roots": (),
        "allowed_roots_read_only": (),
        "allowed_roots_write_only": (),
        "forbidden_paths": (),
        "allowed_commands": (*commands.split(), *(["free"] if sys.platform == "linux" else [])),
        "shell_env_passthrough": (),
        "shell_timeout_secs": 60,
        "max_actions_per_hour": 20,
        "max_cost_per_day_cents": 500,
        "block_high_risk_commands": True,
        "require_approval_for_medium_risk": True,
        "allowed_tools": None,
        "excluded_tools": (),
        "auto_approve": (),
        "always_ask": (),
    }


def test_the_default_auto_approve_list_is_the_published_one() -> None:
    published = (
        "file_read memory_recall web_search_tool web_fetch calculator glob_search "
        "content_search image_info weather browser browser_open"
    )

    assert tuple(published.split()) == DEFAULT_AUTO_APPROVE


def test_autonomy_levels_are_ordered() -> None:
    levels = [Autonomy.FULL, Autonomy.READONLY, Autonomy.SUPERVISED]

    assert sorted(levels) == [Autonomy.READONLY, Autonomy.SUPERVISED, Autonomy.FULL]
    assert sorted(levels, reverse=True) == [Autonomy.FULL, Autonomy.SUPERVISED, Autonomy.READONLY]
    assert Autonomy.FULL >= Autonomy.FULL > Autonomy.SUPERVISED
    assert Autonomy.READONLY <= Autonomy.READONLY < Autonomy.SUPERVISED
    assert not Autonomy.FULL <= Autonomy.READONLY
    assert not Autonomy.READONLY >= Autonomy.FULL


def test_equivalent_policies_are_equal() -> None:
    as_in_settings: dict[str, Any] = {
        "autonomy": "full",
        "allowed_roots": ["/jobs/", "//jobs", "/srv/./app/../data"],
        "forbidden_paths": ["/etc/", "~/.ssh"],
        "allowed_commands": ["ls", "git", "ls"],
        "allowed_tools": [],
    }
    plain = Policy(
        autonomy=Autonomy.FULL,
        allowed_roots=("/jobs", "/srv/data"),
        forbidden_paths=("/etc", "~/.ssh"),
        allowed_commands=("ls", "git"),
        allowed_tools=None,
    )

    assert Policy(**as_in_settings) == plain
    assert len({Policy(**as_in_settings), plain}) == 1
    assert Policy(allowed_tools=(*NO_TOOLS, "shell")) == Policy(allowed_tools=("shell",))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "autonomy",
            "boss",
            "policy autonomy: Invalid enum value 'boss'; expected one of: readonly, supervised, full",
        ),
        ("workspace_only", 1, "policy workspace_only: Expected `bool`, got `int`"),
        ("allowed_commands", "ls", "policy allowed_commands: Expected `array`, got `str`"),
        ("allowed_roots", ["/jobs", 7], "policy allowed_roots: Expected `str`, got `int` - at `$[1]`"),
        ("always_ask", [""], "policy always_ask: Expected `str` of length >= 1 - at `$[0]`"),
        ("max_actions_per_hour", -1, "policy max_actions_per_hour: Expected `int` >= 0"),
        ("max_cost_per_day_cents", 1.5, "policy max_cost_per_day_cents: Expected `int`, got `float`"),
        ("shell_timeout_secs", True, "policy shell_timeout_secs: Expected `int`, got `bool`"),
    ],
)
def test_an_invalid_value_raises_policy_error_with_the_field(field: str, value: object, message: str) -> None:
    fields: dict[str, Any] = {field: value}

    with pytest.raises(PolicyError) as refused:
        Policy(**fields)

    assert (str(refused.value), refused.value.field, refused.value.asked) == (message, field, value)


# ---- narrowing, rule by rule --------------------------------------------------------------------------------------

Rule = tuple[str, dict[str, Any], dict[str, Any], str, object, object]
"""The field, the parent's settings, the child's settings, and then the message with `asked` and `allowed`."""

RULES: list[Rule] = [
    (
        "autonomy",
        {"autonomy": "supervised"},
        {"autonomy": "full"},
        "subagent autonomy=Full exceeds parent's Supervised",
        Autonomy.FULL,
        Autonomy.SUPERVISED,
    ),
    (
        "allowed_roots",
        {"allowed_roots": ["/jobs"], "allowed_roots_read_only": ["/secrets"], "allowed_roots_write_only": ["/secrets"]},
        {"allowed_roots": ["/jobs/a", "/secrets"]},
        'subagent allowed_roots entry "/secrets" is not contained within any of the parent\'s allowed_roots entries',
        "/secrets",
        ("/jobs",),
    ),
    (
        "allowed_roots_read_only",
        {"allowed_roots": ["/jobs"], "allowed_roots_read_only": ["/usr"], "allowed_roots_write_only": ["/etc"]},
        {"allowed_roots_read_only": ["/jobs/a", "/usr/share", "/etc"]},
        'subagent allowed_roots_read_only entry "/etc" is not contained within '
        "the parent's allowed_roots or allowed_roots_read_only",
        "/etc",
        ("/jobs", "/usr"),
    ),
    (
        "allowed_roots_write_only",
        {"allowed_roots": ["/jobs"], "allowed_roots_read_only": ["/etc"], "allowed_roots_write_only": ["/out"]},
        {"allowed_roots_write_only": ["/jobs/a", "/out/today", "/etc"]},
        'subagent allowed_roots_write_only entry "/etc" is not contained within '
        "the parent's allowed_roots or allowed_roots_write_only",
        "/etc",
        ("/jobs", "/out"),
    ),
    (
        "allowed_commands",
        {"allowed_commands": ["ls", "cat"]},
        {"allowed_commands": ["cat", "rm"]},
        'subagent allowed_commands entry "rm" is not present on the parent\'s allowed_commands',
        "rm",
        ("ls", "cat"),
    ),
    (
        "workspace_only",
        {"workspace_only": True},
        {"workspace_only": False},
        "subagent attempts to disable workspace_only but the parent enforces it",
        False,
        True,
    ),
    (
        "forbidden_paths",
        {"forbidden_paths": ["/boot", "/etc/secrets"]},
        {"forbidden_paths": ["/boot", "/dev"]},
        'subagent drops forbidden_paths entry "/etc/secrets" that the parent enforces',
        "/etc/secrets",
        ("/boot", "/etc/secrets"),
    ),
    (
        "shell_env_passthrough",
        {"shell_env_passthrough": ["LANG"]},
        {"shell_env_passthrough": ["LANG", "AWS_SECRET_ACCESS_KEY"]},
        'subagent shell_env_passthrough entry "AWS_SECRET_ACCESS_KEY" is not present on the parent\'s list',
        "AWS_SECRET_ACCESS_KEY",
        ("LANG",),
    ),
    (
        "max_actions_per_hour",
        {"max_actions_per_hour": 100},
        {"max_actions_per_hour": 200},
        "subagent max_actions_per_hour=200 exceeds parent's 100",
        200,
        100,
    ),
    (
        "max_cost_per_day_cents",
        {"max_cost_per_day_cents": 500},
        {"max_cost_per_day_cents": 1000},
        "subagent max_cost_per_day_cents=1000 exceeds parent's 500",
        1000,
        500,
    ),
    (
        "shell_timeout_secs",
        {"shell_timeout_secs": 30},
        {"shell_timeout_secs": 600},
        "subagent shell_timeout_secs=600 exceeds parent's 30",
        600,
        30,
    ),
    (
        "block_high_risk_commands",
        {"block_high_risk_commands": True},
        {"block_high_risk_commands": False},
        "subagent attempts to set block_high_risk_commands=false but the parent enforces it",
        False,
        True,
    ),
    (
        "require_approval_for_medium_risk",
        {"require_approval_for_medium_risk": True},
        {"require_approval_for_medium_risk": False},
        "subagent attempts to set require_approval_for_medium_risk=false but the parent enforces it",
        False,
        True,
    ),
    (
        "allowed_tools",
        {"allowed_tools": ["file_read", "shell"]},
        {"allowed_tools": ["shell", "web_fetch"]},
        'subagent allowed_tools entry "web_fetch" is not present on the parent\'s allowed_tools',
        "web_fetch",
        ("file_read", "shell"),
    ),
    (
        "excluded_tools",
        {"excluded_tools": ["shell"]},
        {"excluded_tools": ["web_fetch"]},
        'subagent drops excluded_tools entry "shell" that the parent enforces',
        "shell",
        ("shell",),
    ),
    (
        "always_ask",
        {"always_ask": ["shell"]},
        {"always_ask": []},
        'subagent drops always_ask entry "shell" that the parent enforces',
        "shell",
        ("shell",),
    ),
    (
        "auto_approve",
        {"auto_approve": ["file_read"]},
        {"auto_approve": ["shell"]},
        'subagent auto_approve entry "shell" is not present on the parent\'s auto_approve',
        "shell",
        ("file_read",),
    ),
]


def refusal(attempt: Callable[[], Policy]) -> PolicyError:
    """The error of an attempt that must fail."""
    with pytest.raises(PolicyError) as refused:
        attempt()
    return refused.value


@pytest.mark.promise("ZC-ESCALATION")
@pytest.mark.parametrize(
    ("field", "has", "asks", "message", "asked", "allowed"), [pytest.param(*rule, id=rule[0]) for rule in RULES]
)
def test_a_wider_child_policy_raises_policy_error_for_the_field(
    field: str, has: dict[str, Any], asks: dict[str, Any], message: str, asked: object, allowed: object
) -> None:
    error = refusal(lambda: narrow(Policy(**has), Policy(**{**has, **asks})))

    assert (str(error), error.field, error.asked, error.allowed) == (message, field, asked, allowed)


@pytest.mark.promise("ZC-ESCALATION")
@pytest.mark.parametrize("first", range(len(RULES)), ids=[rule[0] for rule in RULES])
def test_the_first_violation_in_published_order_is_reported(first: int) -> None:
    """The child breaks this rule and every later one; the parent settings of later rules never hide an earlier one."""
    has: dict[str, Any] = {}
    asks: dict[str, Any] = {}
    for _, parents, childs, *_ in reversed(RULES[first:]):
        has |= parents
        asks |= childs

    error = refusal(lambda: narrow(Policy(**has), Policy(**asks)))

    assert (error.field, str(error)) == (RULES[first][0], RULES[first][3])


def test_the_thirteen_published_rules_and_the_tool_rules_cover_every_field() -> None:
    assert sorted(rule[0] for rule in RULES) == sorted(Policy.__struct_fields__)


def test_a_read_only_parent_is_called_readonly_in_the_message() -> None:
    error = refusal(lambda: narrow(Policy(autonomy=Autonomy.READONLY), Policy()))

    assert str(error) == "subagent autonomy=Supervised exceeds parent's ReadOnly"


def test_quotes_in_an_entry_are_escaped_in_the_message() -> None:
    error = refusal(lambda: narrow(Policy(), Policy(shell_env_passthrough=('A" is fine, really',))))

    assert (
        str(error)
        == r'subagent shell_env_passthrough entry "A\" is fine, really" is not present on the parent' + "'s list"
    )


def test_a_child_may_ask_for_less_on_every_axis_at_once() -> None:
    parent = Policy(
        autonomy=Autonomy.FULL,
        workspace_only=False,
        allowed_roots=("/jobs",),
        allowed_roots_read_only=("/usr",),
        allowed_roots_write_only=("/out",),
        forbidden_paths=("/etc",),
        allowed_commands=("ls", "git"),
        shell_env_passthrough=("LANG",),
        block_high_risk_commands=False,
        require_approval_for_medium_risk=False,
        allowed_tools=("file_read", "shell"),
        excluded_tools=("web_fetch",),
        auto_approve=("file_read",),
        always_ask=("shell",),
    )
    asked = Policy(
        autonomy=Autonomy.READONLY,
        workspace_only=True,
        allowed_roots=(),
        allowed_roots_read_only=("/jobs/a", "/usr/share"),
        allowed_roots_write_only=("/jobs/b",),
        forbidden_paths=("/dev", "/etc"),
        allowed_commands=(),
        shell_env_passthrough=(),
        shell_timeout_secs=0,
        max_actions_per_hour=0,
        max_cost_per_day_cents=0,
        block_high_risk_commands=True,
        require_approval_for_medium_risk=True,
        allowed_tools=("file_read",),
        excluded_tools=("shell", "web_fetch"),
        auto_approve=(),
        always_ask=("file_read", "shell"),
    )

    assert narrow(parent, asked) == asked


def test_a_child_that_does_not_restrict_its_tools_gets_its_parents_restriction() -> None:
    parent = Policy(allowed_tools=("shell", "file_read"))

    assert narrow(parent, Policy()) == parent
    assert narrow(Policy(allowed_tools=NO_TOOLS), Policy()).tool_ceiling == ()


def test_a_child_without_tools_cannot_grant_tools_to_its_child() -> None:
    without_tools = narrow(Policy(allowed_tools=("shell",)), Policy(allowed_tools=NO_TOOLS))

    assert without_tools.tool_ceiling == ()
    error = refusal(lambda: narrow(without_tools, Policy(allowed_tools=("shell",))))
    assert str(error) == 'subagent allowed_tools entry "shell" is not present on the parent\'s allowed_tools'


def test_a_child_inherits_its_parents_policy_unless_granted_another() -> None:
    parent = Policy(max_actions_per_hour=10)

    assert inherit(parent, None) is parent
    assert inherit(parent, Policy(max_actions_per_hour=5)) == Policy(max_actions_per_hour=5)
    assert refusal(lambda: inherit(parent, Policy())).field == "max_actions_per_hour"


# ---- roots --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "parents"),
    [
        ("/jobs", "/jobs"),
        ("/jobs/", "/jobs"),
        ("/jobs", "/jobs/"),
        ("/jobs/a/b", "/jobs"),
        ("/jobs//a/./b/", "/jobs"),
        ("/jobs/a/../b", "/jobs"),
        ("/srv/../jobs/a", "/jobs"),
        ("/jobs/a", "/srv/../jobs"),
        ("//jobs/a", "/jobs"),
        ("/jobs/..a", "/jobs"),
        ("/anything", "/"),
        ("/../jobs", "/jobs"),
    ],
)
def test_a_root_at_or_below_a_root_of_the_parent_is_granted(root: str, parents: str) -> None:
    granted = narrow(Policy(allowed_roots=(parents,)), Policy(allowed_roots=(root,)))

    # A granted root contains no `..`, so that no symbolic link can change its meaning.
    assert granted.allowed_roots == ("/" + posixpath.normpath(root).lstrip("/"),)


@pytest.mark.parametrize(
    ("root", "parents"),
    [
        ("/jobs2", "/jobs"),
        ("/jobs", "/jobs2"),
        ("/jobs", "/jobs/a"),
        ("/", "/jobs"),
        ("/jobs/..", "/jobs"),
        ("/jobs/../etc", "/jobs"),
        ("/jobs/a/../../etc", "/jobs"),
        ("/jobs/../../../etc", "/jobs"),
        ("work", "/jobs"),
        ("work", "/"),
        ("./jobs", "/"),
        ("../jobs", "/"),
        ("~/jobs", "/"),
        ("work", "work"),
        ("/jobs", "work"),
    ],
)
def test_a_root_beside_above_or_relative_to_the_parents_is_refused(root: str, parents: str) -> None:
    error = refusal(lambda: narrow(Policy(allowed_roots=(parents,)), Policy(allowed_roots=(root,))))

    assert error.field == "allowed_roots"


def test_a_root_read_write_on_one_side_is_shared_as_the_restricted_kind() -> None:
    ours = Policy(
        allowed_roots=("/jobs", "/both"), allowed_roots_read_only=("/usr",), allowed_roots_write_only=("/out",)
    )
    theirs = Policy(
        allowed_roots=("/usr/local", "/out/today", "/both/a"),
        allowed_roots_read_only=("/jobs/docs", "/"),
        allowed_roots_write_only=("/jobs/logs",),
    )

    assert intersect(ours, theirs) == Policy(
        allowed_roots=("/both/a",),
        allowed_roots_read_only=("/usr", "/jobs", "/both", "/jobs/docs", "/usr/local"),
        allowed_roots_write_only=("/jobs/logs", "/out/today"),
    )


@pytest.mark.parametrize(
    ("pattern", "entry", "tool"),
    [
        ("mcp__*s", "mcp__docs", "mcp__docs__delete"),  # the pattern matches the name of the server, not its tools
        ("mcp__*_read", "mcp__docs_read", "mcp__docs_read__delete"),
        ("mcp__*__get", "mcp__docs__get", "mcp__docs__get__all"),  # a tool is not all tools that begin like it
    ],
)
def test_an_mcp_entry_gives_a_child_no_tool_that_the_pattern_of_its_parent_does_not_match(
    pattern: str, entry: str, tool: str
) -> None:
    def may(policy: Policy) -> Verdict:
        return verdict(policy, tool=tool, risk=Risk.MEDIUM).verdict

    assert may(Policy(allowed_tools=(pattern,))) == Verdict.REFUSE
    shared = intersect(Policy(allowed_tools=(pattern,)), Policy(allowed_tools=(entry,)))
    assert may(shared) == Verdict.REFUSE
    approved = intersect(Policy(auto_approve=(pattern,)), Policy(auto_approve=(entry,)))
    assert may(approved) == Verdict.ASK


def test_a_server_is_within_a_pattern_for_all_its_tools() -> None:
    parent = Policy(allowed_tools=("mcp__docs__*",))
    child = narrow(parent, Policy(allowed_tools=("mcp__docs",)))
    assert verdict(child, tool="mcp__docs__get", risk=Risk.LOW).verdict == Verdict.ALLOW


def test_an_empty_intersection_of_tools_allows_no_tool() -> None:
    shared = intersect(Policy(allowed_tools=("shell",)), Policy(allowed_tools=("file_read",)))

    assert shared == Policy(allowed_tools=NO_TOOLS)
    assert shared.tool_ceiling == ()
    assert intersect(shared, Policy()) == shared


# ---- verdicts -----------------------------------------------------------------------------------------------------

ALLOW, ASK, REFUSE = Verdict.ALLOW, Verdict.ASK, Verdict.REFUSE


@pytest.mark.parametrize(
    ("autonomy", "block_high", "approve_medium", "low", "medium", "high"),
    [
        ("readonly", True, True, ALLOW, REFUSE, REFUSE),
        ("readonly", False, False, ALLOW, REFUSE, REFUSE),
        ("supervised", True, True, ALLOW, ASK, REFUSE),
        ("supervised", True, False, ALLOW, ALLOW, REFUSE),
        ("supervised", False, True, ALLOW, ASK, ASK),
        ("supervised", False, False, ALLOW, ALLOW, ASK),
        ("full", True, True, ALLOW, ALLOW, REFUSE),
        ("full", True, False, ALLOW, ALLOW, REFUSE),
        ("full", False, True, ALLOW, ALLOW, ALLOW),
        ("full", False, False, ALLOW, ALLOW, ALLOW),
    ],
)
def test_risk_and_autonomy_decide_for_unlisted_tools(
    autonomy: str, block_high: bool, approve_medium: bool, low: Verdict, medium: Verdict, high: Verdict
) -> None:
    policy = Policy(
        autonomy=Autonomy(autonomy),
        block_high_risk_commands=block_high,
        require_approval_for_medium_risk=approve_medium,
    )

    assert [verdict(policy, tool="shell", risk=risk).verdict for risk in Risk] == [low, medium, high]


@pytest.mark.parametrize(
    ("fields", "risk", "decision"),
    [
        (
            {"excluded_tools": ["shell"], "allowed_tools": ["shell"], "auto_approve": ["shell"]},
            Risk.LOW,
            PolicyDecision(REFUSE, "Security policy: 'shell' is excluded (excluded_tools); do without it"),
        ),
        (
            {
                "allowed_tools": ["file_read", "web_fetch", "glob"],
                "excluded_tools": ["glob"],
                "auto_approve": ["shell"],
            },
            Risk.LOW,
            PolicyDecision(
                REFUSE,
                "Security policy: 'shell' is not among the allowed tools (allowed_tools); "
                "use one of: file_read, web_fetch",
            ),
        ),
        (
            {"allowed_tools": NO_TOOLS},
            Risk.LOW,
            PolicyDecision(
                REFUSE,
                "Security policy: 'shell' is not among the allowed tools (allowed_tools); use one of: (none)",
            ),
        ),
        (
            {"autonomy": "readonly", "auto_approve": ["shell"], "always_ask": ["shell"]},
            Risk.MEDIUM,
            PolicyDecision(REFUSE, "Security policy: read-only mode, cannot perform 'shell'"),
        ),
        (
            {"autonomy": "full", "auto_approve": ["shell"], "always_ask": ["shell"]},
            Risk.HIGH,
            PolicyDecision(
                REFUSE,
                "Security policy: 'shell': high-risk calls are blocked (block_high_risk_commands); find a safer way",
            ),
        ),
        (
            {"autonomy": "full", "always_ask": ["shell"], "auto_approve": ["shell"]},
            Risk.LOW,
            PolicyDecision(ASK, "Security policy: 'shell' needs approval every time (always_ask)"),
        ),
        (
            {"auto_approve": ["shell"], "block_high_risk_commands": False},
            Risk.HIGH,
            PolicyDecision(ALLOW, "'shell' is approved ahead (auto_approve)"),
        ),
        ({"allowed_tools": ["shell"]}, Risk.LOW, PolicyDecision(ALLOW, "'shell' is low risk")),
        (
            {},
            Risk.MEDIUM,
            PolicyDecision(
                ASK,
                "Security policy: 'shell': this medium-risk call needs approval (require_approval_for_medium_risk)",
            ),
        ),
        (
            {"require_approval_for_medium_risk": False},
            Risk.MEDIUM,
            PolicyDecision(ALLOW, "'shell' may be called at medium risk without approval"),
        ),
        (
            {"block_high_risk_commands": False},
            Risk.HIGH,
            PolicyDecision(ASK, "Security policy: 'shell': this high-risk call needs approval (autonomy = supervised)"),
        ),
        (
            {"block_high_risk_commands": False, "autonomy": "full"},
            Risk.HIGH,
            PolicyDecision(ALLOW, "'shell' may be called at high risk (autonomy = full)"),
        ),
    ],
)
def test_a_decision_names_the_deciding_setting(fields: dict[str, Any], risk: Risk, decision: PolicyDecision) -> None:
    assert verdict(Policy(**fields), tool="shell", risk=risk) == decision


# ---- for all policies ---------------------------------------------------------------------------------------------

seeded = settings(max_examples=120, derandomize=True, deadline=None, database=None)


def some(*entries: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(entries), max_size=3).map(tuple)


roots = some("/", "/a", "/a/", "/a/b", "/a/b/c", "/a/../b", "/a2", "/a/./b2", "/b", "//b/c")
tools = some("read", "write", "shell")
numbers = st.integers(min_value=0, max_value=3)

policies = st.builds(
    Policy,
    autonomy=st.sampled_from(Autonomy),
    workspace_only=st.booleans(),
    allowed_roots=roots,
    allowed_roots_read_only=roots,
    allowed_roots_write_only=roots,
    forbidden_paths=some("/etc", "/etc/", "~/.ssh"),
    allowed_commands=some("ls", "git", "rm"),
    shell_env_passthrough=some("LANG", "HOME"),
    shell_timeout_secs=numbers,
    max_actions_per_hour=numbers,
    max_cost_per_day_cents=numbers,
    block_high_risk_commands=st.booleans(),
    require_approval_for_medium_risk=st.booleans(),
    allowed_tools=st.none() | st.just(NO_TOOLS) | tools,
    excluded_tools=tools,
    auto_approve=tools,
    always_ask=tools,
)


@st.composite
def variations(draw: st.DrawFn, base: Policy) -> Policy:
    """`base` with a few fields of another policy: of two unrelated policies, one is hardly ever within the other."""
    other = draw(policies)
    changed = draw(st.lists(st.sampled_from(Policy.__struct_fields__), max_size=3))
    return msgspec.structs.replace(base, **{field: getattr(other, field) for field in changed})


def covers(roots: tuple[str, ...], path: str) -> bool:
    return any(PurePosixPath(posixpath.normpath(path)).is_relative_to(posixpath.normpath(root)) for root in roots)


def tools_of(policy: Policy) -> set[str]:
    """What the list allows, of three known tools and an unknown one."""
    return set(policy.allowed_tools or ("read", "write", "shell", "a tool of tomorrow")) - set(NO_TOOLS)


def is_within(child: Policy, parent: Policy) -> bool:
    """Whether `child` allows nothing that `parent` does not; an independent definition."""
    levels = ["readonly", "supervised", "full"]
    readable = parent.allowed_roots + parent.allowed_roots_read_only
    writable = parent.allowed_roots + parent.allowed_roots_write_only
    return (
        levels.index(child.autonomy.value) <= levels.index(parent.autonomy.value)
        and all(covers(parent.allowed_roots, root) for root in child.allowed_roots)
        and all(covers(readable, root) for root in child.allowed_roots_read_only)
        and all(covers(writable, root) for root in child.allowed_roots_write_only)
        and set(child.allowed_commands) <= set(parent.allowed_commands)
        and set(child.shell_env_passthrough) <= set(parent.shell_env_passthrough)
        and set(child.forbidden_paths) >= set(parent.forbidden_paths)
        and child.workspace_only >= parent.workspace_only
        and child.block_high_risk_commands >= parent.block_high_risk_commands
        and child.require_approval_for_medium_risk >= parent.require_approval_for_medium_risk
        and child.shell_timeout_secs <= parent.shell_timeout_secs
        and child.max_actions_per_hour <= parent.max_actions_per_hour
        and child.max_cost_per_day_cents <= parent.max_cost_per_day_cents
        and tools_of(child) <= tools_of(parent)
        and set(child.excluded_tools) >= set(parent.excluded_tools)
        and set(child.always_ask) >= set(parent.always_ask)
        and set(child.auto_approve) <= set(parent.auto_approve)
    )


def narrowed(parent: Policy, asked: Policy) -> Policy | None:
    try:
        return narrow(parent, asked)
    except PolicyError:
        return None


def in_any_order(policy: Policy) -> list[object]:
    """The policy with its lists as sets."""
    values: tuple[object, ...] = msgspec.structs.astuple(policy)
    return [frozenset(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value for value in values]


@seeded
@given(st.data(), policies)
def test_a_narrowed_policy_is_within_its_parent_and_as_requested(data: st.DataObject, parent: Policy) -> None:
    asked = data.draw(variations(parent))
    child = narrowed(parent, asked)

    if child is None:
        assert not is_within(asked, parent)
    else:
        assert is_within(child, parent)
        assert child == msgspec.structs.replace(asked, allowed_tools=asked.allowed_tools or parent.allowed_tools)


@seeded
@given(policies)
def test_a_child_may_ask_for_exactly_its_parents_policy(policy: Policy) -> None:
    assert narrow(policy, policy) == policy


@seeded
@given(st.data(), policies)
def test_a_grandchilds_policy_is_within_the_first_policy(data: st.DataObject, first: Policy) -> None:
    child = narrowed(first, data.draw(variations(first)))
    grandchild = narrowed(child, data.draw(variations(child))) if child is not None else None

    if grandchild is not None:
        assert is_within(grandchild, first)
        assert narrow(first, grandchild) == grandchild


@seeded
@given(st.data(), policies)
def test_an_intersection_is_the_largest_policy_within_both(data: st.DataObject, a: Policy) -> None:
    b = data.draw(variations(a) | policies)
    shared = intersect(a, b)

    assert is_within(shared, a)
    assert is_within(shared, b)
    assert narrow(a, shared) == shared
    assert narrow(b, shared) == shared
    for candidate in (a, b, data.draw(variations(a)), data.draw(variations(shared))):
        if is_within(candidate, a) and is_within(candidate, b):
            assert is_within(candidate, shared)


@seeded
@given(policies, policies)
def test_an_intersection_is_commutative(a: Policy, b: Policy) -> None:
    assert in_any_order(intersect(a, b)) == in_any_order(intersect(b, a))


@seeded
@given(policies)
def test_an_intersection_is_idempotent(policy: Policy) -> None:
    assert intersect(policy, policy) == policy


@seeded
@given(st.data(), policies, st.sampled_from(["read", "write", "shell"]), st.sampled_from(Risk), st.booleans())
def test_a_narrowed_policy_never_has_a_milder_verdict(
    data: st.DataObject, parent: Policy, tool: str, risk: Risk, acts: bool
) -> None:
    child = narrowed(parent, data.draw(variations(parent))) or intersect(parent, data.draw(policies))
    severity = [ALLOW, ASK, REFUSE]

    above = verdict(parent, tool=tool, risk=risk, acts=acts).verdict
    below = verdict(child, tool=tool, risk=risk, acts=acts).verdict

    assert severity.index(below) >= severity.index(above)


@seeded
@given(policies)
def test_a_policy_round_trips_through_json(policy: Policy) -> None:
    written = msgspec.json.encode(policy)

    assert msgspec.json.decode(written, type=Policy) == policy
    assert hash(msgspec.json.decode(written, type=Policy)) == hash(policy)
