"""Policies: what an agent may do, and how a child's policy is kept within its parent's.

A policy is complete: a field that is left out has the default defined here, not the parent's value. This module does no
I/O. Paths are compared by their components, as text; tools resolve symbolic links and check again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias, assert_never, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.budget import Caps, Window
from retinue.core.errors import PolicyError

Entry = Annotated[str, msgspec.Meta(min_length=1)]
"""An entry of a policy's list: a path, a command, a variable or a tool name."""

Ceiling = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An upper bound; zero means none at all."""

_MCP = "mcp__"
"""Begin of the names of tools of MCP servers, for which lists of tools may have patterns."""

NO_TOOLS: tuple[str, ...] = ("<no tools>",)
"""The `allowed_tools` of a policy that allows no tool; an empty list means unrestricted."""

NO_ACTIONS_LEFT = "Rate limit exceeded: action budget exhausted"
"""The result of a call that acts when a window of its run has no actions left."""

DEFAULT_COMMANDS: tuple[str, ...] = (
    *("git", "npm", "cargo", "ls", "cat", "grep", "find", "echo", "pwd", "wc", "head", "tail", "date"),
    *("df", "du", "uname", "uptime", "hostname", "python", "python3", "pip", "node"),
    *(("free",) if sys.platform.startswith("linux") else ()),
)
"""Default of `Policy.allowed_commands`."""

DEFAULT_AUTO_APPROVE: tuple[str, ...] = (
    *("file_read", "memory_recall", "web_search_tool", "web_fetch", "calculator", "glob_search"),
    *("content_search", "image_info", "weather", "browser", "browser_open"),
)
"""Default of `auto_approve` in a risk profile of the settings; a bare `Policy()` auto-approves nothing."""


class Autonomy(StrEnum):
    """How far an agent acts without approval, in ascending order: readonly, supervised, full.

    >>> Autonomy.READONLY < Autonomy.SUPERVISED < Autonomy.FULL
    True
    """

    READONLY = "readonly"
    SUPERVISED = "supervised"
    FULL = "full"

    # Strings compare alphabetically, which would make "full" the lowest level.
    def __lt__(self, other: str) -> bool:
        return _rank(self) < _rank(other)

    def __le__(self, other: str) -> bool:
        return _rank(self) <= _rank(other)

    def __gt__(self, other: str) -> bool:
        return _rank(self) > _rank(other)

    def __ge__(self, other: str) -> bool:
        return _rank(self) >= _rank(other)


def _rank(level: str) -> int:
    return tuple(Autonomy).index(Autonomy(level))


def _autonomy_label(level: Autonomy) -> str:
    return "ReadOnly" if level == Autonomy.READONLY else level.capitalize()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent may do; an invalid value raises `PolicyError` with the name of the field.

    Values are normalised, so that equivalent policies are equal: lists become tuples, repeated entries are removed, and
    absolute paths lose `.`, `..` and extra slashes.

    >>> Policy(allowed_roots=["/data/", "/data/../srv"]).allowed_roots
    ('/data', '/srv')
    """

    autonomy: Autonomy = Autonomy.SUPERVISED
    workspace_only: bool = True
    """Whether file tools are confined to the workspace and the allowed roots."""
    allowed_roots: tuple[Entry, ...] = ()
    """Readable and writable folders besides the workspace; a relative root neither contains nor is inside another."""
    allowed_roots_read_only: tuple[Entry, ...] = ()
    """Additional readable folders. An entry inside `allowed_roots` does not make that part read-only."""
    allowed_roots_write_only: tuple[Entry, ...] = ()
    forbidden_paths: tuple[Entry, ...] = ()
    """Paths that are never accessible, even inside allowed roots. A relative one is closed in the workspace of the run,
    and in those of the runs above it.
    """
    allowed_commands: tuple[Entry, ...] = DEFAULT_COMMANDS
    shell_env_passthrough: tuple[Entry, ...] = ()
    """Environment variables passed to shell commands."""
    shell_timeout_secs: Ceiling = 60
    max_actions_per_hour: Ceiling = 20
    max_cost_per_day_cents: Ceiling = 500
    block_high_risk_commands: bool = True
    require_approval_for_medium_risk: bool = True
    allowed_tools: tuple[Entry, ...] | None = None
    """The only tools that may be used. None is unrestricted; an empty list becomes None."""
    excluded_tools: tuple[Entry, ...] = ()
    """Tools that may not be used, even if listed in `allowed_tools`."""
    auto_approve: tuple[Entry, ...] = ()
    """Tools that run without approval, unless `always_ask` lists them too."""
    always_ask: tuple[Entry, ...] = ()
    """Tools that need an approval for every call."""

    def __post_init__(self) -> None:
        for field in _FIELD_TYPES:
            given = getattr(self, field)
            try:
                normalised = _known_form(field, given)
            except TypeError:  # a list has no hash
                normalised = _normalised(field, given)
            msgspec.structs.force_setattr(self, field, normalised)

    @property
    def tool_ceiling(self) -> tuple[str, ...] | None:
        """The only tools that may be used, before `excluded_tools` are removed; None if unrestricted.

        >>> Policy(allowed_tools=[]).tool_ceiling is None, Policy(allowed_tools=NO_TOOLS).tool_ceiling
        (True, ())
        """
        return () if self.allowed_tools == NO_TOOLS else self.allowed_tools


class WorkspaceRights(msgspec.Struct, frozen=True):
    """The workspace of a run and its policy, which decide what a program may access; an empty workspace is the current
    folder.
    """

    workspace: str
    policy: Policy


_FIELD_TYPES = {field.name: field.type for field in msgspec.structs.fields(Policy)}
_PATH_FIELDS = frozenset({"allowed_roots", "allowed_roots_read_only", "allowed_roots_write_only", "forbidden_paths"})


def _normalised(field: str, given: object) -> object:
    """The canonical form of a field's value, so that equivalent policies compare equal."""
    try:
        value: object = msgspec.convert(given, _FIELD_TYPES[field])
    except msgspec.ValidationError as error:
        choices = tuple(map(str, Autonomy)) if field == "autonomy" else None
        expected = f"; expected one of: {', '.join(choices)}" if choices else ""
        raise PolicyError(f"policy {field}: {error}{expected}", field=field, asked=given, allowed=choices) from error
    if not isinstance(value, tuple):
        return value
    entries = dict.fromkeys(cast("tuple[str, ...]", value))
    if field in _PATH_FIELDS:
        return tuple(dict.fromkeys(map(_normalised_path, entries)))
    if field == "allowed_tools":
        return tuple(tool for tool in entries if tool not in NO_TOOLS) or tuple(entries) or None
    return tuple(entries)


@lru_cache(maxsize=1024, typed=True)
def _known_form(field: str, given: object) -> object:
    """The same, remembered: the policies of thousands of runs have the same few values, and share them then."""
    return _normalised(field, given)


def _normalised_path(path: str) -> str:
    """An absolute path without `.`, `..` and extra slashes, by its text alone; a relative path unchanged."""
    if not path.startswith("/"):
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


class Risk(StrEnum):
    """Harm that a call can do: low (none worth mentioning), medium (reversible) or high (irreversible)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Verdict(StrEnum):
    """Whether a call is made, needs an approval, or is refused."""

    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class PolicyDecision(msgspec.Struct, frozen=True):
    """A verdict and its reason, which names the deciding setting and is worded for the model."""

    verdict: Verdict
    reason: str


def narrow(parent: Policy, asked: Policy) -> Policy:
    """The policy of a child that requests `asked` under `parent`.

    Requesting more than the parent has raises `PolicyError` for the first violation in the published order, with its
    `field`, the offending value or entry as `asked`, and the parent's value as `allowed`. A child that does not
    restrict its tools gets the parent's restriction.

    >>> parent = Policy(allowed_roots=("/srv",), max_actions_per_hour=100, allowed_tools=("shell", "file_read"))
    >>> child = narrow(parent, Policy(allowed_roots=("/srv/app",)))
    >>> child.allowed_roots, child.max_actions_per_hour, child.allowed_tools
    (('/srv/app',), 20, ('shell', 'file_read'))
    >>> narrow(parent, Policy(max_actions_per_hour=200))
    Traceback (most recent call last):
    retinue.core.errors.PolicyError: subagent max_actions_per_hour=200 exceeds parent's 100
    """
    for violation in _violations(parent, asked):
        raise violation
    if asked.tool_ceiling is None:
        return msgspec.structs.replace(asked, allowed_tools=parent.allowed_tools)
    return asked


def anchored(policy: Policy, workspace: str) -> Policy:
    """The policy with each relative forbidden path closed in `workspace`, too, for all runs that inherit the policy.

    A relative path stays in the list: in the workspace of each run it means a path there.

    >>> anchored(Policy(forbidden_paths=(".env", "~/.ssh", "/etc")), "/srv").forbidden_paths
    ('.env', '~/.ssh', '/etc', '/srv/.env')
    """
    relative = [path for path in policy.forbidden_paths if _is_relative(path)]
    if not relative or not workspace.startswith("/"):
        return policy
    paths = tuple(dict.fromkeys((*policy.forbidden_paths, *(_anchor(path, workspace) for path in relative))))
    return policy if paths == policy.forbidden_paths else replace(policy, forbidden_paths=paths)


def with_anchors(grant: Policy, parent: Policy) -> Policy:
    """The grant with what the parent's relative forbidden paths close in other workspaces.

    A grant that repeats such a path keeps what it means for the parent; it could not name the parent's workspace.

    >>> parent = anchored(Policy(forbidden_paths=(".env",)), "/srv")
    >>> with_anchors(Policy(forbidden_paths=(".env",)), parent).forbidden_paths
    ('.env', '/srv/.env')
    """
    ends = tuple(_anchor(path, "/") for path in grant.forbidden_paths if _is_relative(path))
    kept = [path for path in parent.forbidden_paths if path.startswith("/") and path.endswith(ends)] if ends else []
    paths = tuple(dict.fromkeys((*grant.forbidden_paths, *kept)))
    return grant if paths == grant.forbidden_paths else replace(grant, forbidden_paths=paths)


def _is_relative(path: str) -> bool:
    return not path.startswith(("/", "~"))


def _anchor(path: str, workspace: str) -> str:
    return _normalised_path(f"{workspace}/{path}")


def inherit(parent: Policy, grant: Policy | None) -> Policy:
    """The policy of a child: its `grant` narrowed by `parent`, or the parent's policy without a grant."""
    return parent if grant is None else narrow(parent, grant)


@lru_cache(maxsize=256)  # thousands of runs of a tree have the same two policies
def intersect(a: Policy, b: Policy) -> Policy:
    """The largest policy within both `a` and `b`; never raises.

    >>> intersect(Policy(allowed_roots=("/srv", "/home")), Policy(allowed_roots=("/srv/app",))).allowed_roots
    ('/srv/app',)
    """
    return Policy(
        autonomy=min(a.autonomy, b.autonomy),
        workspace_only=a.workspace_only or b.workspace_only,
        allowed_roots=_shared_roots(a.allowed_roots, b.allowed_roots),
        allowed_roots_read_only=_shared_restricted_roots(
            a.allowed_roots, a.allowed_roots_read_only, b.allowed_roots, b.allowed_roots_read_only
        ),
        allowed_roots_write_only=_shared_restricted_roots(
            a.allowed_roots, a.allowed_roots_write_only, b.allowed_roots, b.allowed_roots_write_only
        ),
        forbidden_paths=a.forbidden_paths + b.forbidden_paths,
        allowed_commands=_shared(a.allowed_commands, b.allowed_commands),
        shell_env_passthrough=_shared(a.shell_env_passthrough, b.shell_env_passthrough),
        shell_timeout_secs=min(a.shell_timeout_secs, b.shell_timeout_secs),
        max_actions_per_hour=min(a.max_actions_per_hour, b.max_actions_per_hour),
        max_cost_per_day_cents=min(a.max_cost_per_day_cents, b.max_cost_per_day_cents),
        block_high_risk_commands=a.block_high_risk_commands or b.block_high_risk_commands,
        require_approval_for_medium_risk=a.require_approval_for_medium_risk or b.require_approval_for_medium_risk,
        allowed_tools=_shared_tools(a.tool_ceiling, b.tool_ceiling),
        excluded_tools=a.excluded_tools + b.excluded_tools,
        auto_approve=_shared_names(a.auto_approve, b.auto_approve),
        always_ask=a.always_ask + b.always_ask,
    )


def within_tools(policy: Policy, ceiling: tuple[str, ...] | None) -> Policy:
    """The policy without the tools that are not in `ceiling`; unchanged if that is None.

    >>> within_tools(Policy(allowed_tools=("grep", "shell")), ("grep", "fetch")).allowed_tools
    ('grep',)
    >>> within_tools(Policy(), ()).tool_ceiling
    ()
    """
    if ceiling is None:
        return policy
    allowed = _shared_tools(policy.tool_ceiling, ceiling)
    return policy if allowed == policy.allowed_tools else replace(policy, allowed_tools=allowed)


def verdict(policy: Policy, *, tool: str, risk: Risk, acts: bool = False) -> PolicyDecision:
    """The decision of `policy` about a call of `tool` with this risk; `acts` means that the call changes something.

    Refusals come first: neither an approval nor `auto_approve` overrides them. (If asking came first, a child could
    turn its parent's refusal into an approval request by adding an `always_ask` entry.)

    >>> verdict(Policy(), tool="file_write", risk=Risk.MEDIUM).verdict
    <Verdict.ASK: 'ask'>
    >>> verdict(Policy(autonomy="readonly"), tool="file_write", risk=Risk.MEDIUM).reason
    "Security policy: read-only mode, cannot perform 'file_write'"
    >>> verdict(Policy(autonomy="readonly"), tool="memory_store", risk=Risk.LOW, acts=True).verdict
    <Verdict.REFUSE: 'refuse'>
    """
    refusal = _refusal(policy, tool, risk, acts)
    if refusal is not None:
        return PolicyDecision(Verdict.REFUSE, refusal)
    if asks_every_time(policy, tool):
        return PolicyDecision(Verdict.ASK, f"Security policy: '{tool}' needs approval every time (always_ask)")
    if _lists(policy.auto_approve, tool):
        return PolicyDecision(Verdict.ALLOW, f"'{tool}' is approved ahead (auto_approve)")
    match risk:
        case Risk.LOW:
            return PolicyDecision(Verdict.ALLOW, f"'{tool}' is low risk")
        case Risk.MEDIUM if policy.autonomy < Autonomy.FULL and policy.require_approval_for_medium_risk:
            needed = "this medium-risk call needs approval (require_approval_for_medium_risk)"
            return PolicyDecision(Verdict.ASK, f"Security policy: '{tool}': {needed}")
        case Risk.MEDIUM:
            return PolicyDecision(Verdict.ALLOW, f"'{tool}' may be called at medium risk without approval")
        case Risk.HIGH if policy.autonomy < Autonomy.FULL:
            needed = f"this high-risk call needs approval (autonomy = {policy.autonomy})"
            return PolicyDecision(Verdict.ASK, f"Security policy: '{tool}': {needed}")
        case Risk.HIGH:
            return PolicyDecision(Verdict.ALLOW, f"'{tool}' may be called at high risk (autonomy = full)")
        case _:
            assert_never(risk)


def allows(policy: Policy, tool: str) -> bool:
    """Whether the lists of `policy` let a run have a tool; a single call may still be refused.

    >>> allows(Policy(allowed_tools=("grep",)), "grep"), allows(Policy(excluded_tools=("grep",)), "grep")
    (True, False)
    """
    return verdict(policy, tool=tool, risk=Risk.LOW).verdict is not Verdict.REFUSE


def asks_every_time(policy: Policy, tool: str) -> bool:
    """Whether the policy requires an approval of its own for every single call of a tool.

    >>> asks_every_time(Policy(always_ask=("mcp__github",)), "mcp__github__push")
    True
    """
    return _lists(policy.always_ask, tool)


def needs_no_approval(policy: Policy, tool: str, risk: Risk, *, acts: bool) -> bool:
    """Whether every call of a tool may be made without an approval, as of one that the vendor calls itself.

    >>> needs_no_approval(Policy(always_ask=("server:web_search",)), "server:web_search", Risk.LOW, acts=False)
    False
    """
    return verdict(policy, tool=tool, risk=risk, acts=acts).verdict is Verdict.ALLOW


def _lists(entries: tuple[str, ...], tool: str) -> bool:
    """Whether a list of tools has a tool.

    An entry for tools of MCP servers may be a pattern, or a server, which is all its tools.

    >>> _lists(("mcp__docs__get_*", "mcp__github"), "mcp__docs__get_page"), _lists(("mcp__github",), "mcp__github__x")
    (True, True)
    """
    if tool in entries:
        return True
    return tool.startswith(_MCP) and any(_matches(tool, entry) for entry in entries if entry.startswith(_MCP))


def _matches(tool: str, entry: str) -> bool:
    return fnmatchcase(tool, entry) or (_is_server(entry) and tool.startswith(f"{entry}__"))


def _covers(entries: tuple[str, ...], entry: str) -> bool:
    """Whether a list of tools has all tools of an entry, which may be a pattern itself.

    >>> _covers(("mcp__docs__*",), "mcp__docs__get_*"), _covers(("mcp__docs__?",), "mcp__docs__*")
    (True, False)
    """
    if not any(sign in entry for sign in "*?["):
        return _covers_server(entries, entry) if _is_server(entry) else _lists(entries, entry)
    begins = [each.removesuffix("*") for each in entries if each.startswith(_MCP) and each.endswith("*")]
    return entry in entries or any(entry.startswith(begin) for begin in begins if not any(s in begin for s in "*?["))


def _is_server(entry: str) -> bool:
    """Whether an entry without a pattern names an MCP server, which is all its tools, and not a single tool."""
    return entry.startswith(_MCP) and "__" not in entry.removeprefix(_MCP)


def _covers_server(entries: tuple[str, ...], server: str) -> bool:
    """Whether a list of tools has all tools of a server: a pattern has to match whatever follows the name.

    >>> _covers_server(("mcp__docs__*",), "mcp__docs"), _covers_server(("mcp__*s",), "mcp__docs")
    (True, False)
    """
    patterns = (each for each in entries if each.startswith(_MCP) and each.endswith("*"))
    return server in entries or any(fnmatchcase(f"{server}__", each) for each in patterns)


def _refusal(policy: Policy, tool: str, risk: Risk, acts: bool) -> str | None:
    if _lists(policy.excluded_tools, tool):
        return f"Security policy: '{tool}' is excluded (excluded_tools); do without it"
    ceiling = policy.tool_ceiling
    if ceiling is not None and not _lists(ceiling, tool):
        usable = ", ".join(name for name in ceiling if name not in policy.excluded_tools) or "(none)"
        return f"Security policy: '{tool}' is not among the allowed tools (allowed_tools); use one of: {usable}"
    if policy.autonomy == Autonomy.READONLY and (acts or risk != Risk.LOW):
        return f"Security policy: read-only mode, cannot perform '{tool}'"
    if policy.block_high_risk_commands and risk == Risk.HIGH:
        return f"Security policy: '{tool}': high-risk calls are blocked (block_high_risk_commands); find a safer way"
    return None


def _violations(parent: Policy, asked: Policy) -> Iterator[PolicyError]:
    """All violations of `parent` by `asked`; the order and texts of the first thirteen rules are published."""
    if asked.autonomy > parent.autonomy:
        levels = f"{_autonomy_label(asked.autonomy)} exceeds parent's {_autonomy_label(parent.autonomy)}"
        message = f"subagent autonomy={levels}"
        yield PolicyError(message, field="autonomy", asked=asked.autonomy, allowed=parent.autonomy)

    yield from _outside(
        "allowed_roots", asked.allowed_roots, parent.allowed_roots, "any of the parent's allowed_roots entries"
    )
    for field in ("allowed_roots_read_only", "allowed_roots_write_only"):
        allowed = parent.allowed_roots + getattr(parent, field)
        yield from _outside(field, getattr(asked, field), allowed, f"the parent's allowed_roots or {field}")
    yield from _added("allowed_commands", asked.allowed_commands, parent.allowed_commands, "allowed_commands")
    if parent.workspace_only and not asked.workspace_only:
        yield _switched_off("workspace_only", "disable workspace_only")
    yield from _dropped("forbidden_paths", asked.forbidden_paths, parent.forbidden_paths)
    yield from _added("shell_env_passthrough", asked.shell_env_passthrough, parent.shell_env_passthrough, "list")

    yield from _above("max_actions_per_hour", asked.max_actions_per_hour, parent.max_actions_per_hour)
    yield from _above("max_cost_per_day_cents", asked.max_cost_per_day_cents, parent.max_cost_per_day_cents)
    yield from _above("shell_timeout_secs", asked.shell_timeout_secs, parent.shell_timeout_secs)
    if parent.block_high_risk_commands and not asked.block_high_risk_commands:
        yield _switched_off("block_high_risk_commands", "set block_high_risk_commands=false")
    if parent.require_approval_for_medium_risk and not asked.require_approval_for_medium_risk:
        yield _switched_off("require_approval_for_medium_risk", "set require_approval_for_medium_risk=false")

    if parent.tool_ceiling is not None:
        asked_tools = [tool for tool in asked.tool_ceiling or () if not _covers(parent.tool_ceiling, tool)]
        yield from _added("allowed_tools", tuple(asked_tools), parent.tool_ceiling, "allowed_tools")
    yield from _dropped("excluded_tools", asked.excluded_tools, parent.excluded_tools)
    yield from _dropped("always_ask", asked.always_ask, parent.always_ask)
    approved = [tool for tool in asked.auto_approve if not _covers(parent.auto_approve, tool)]
    yield from _added("auto_approve", tuple(approved), parent.auto_approve, "auto_approve")


def _outside(field: str, asked: tuple[str, ...], allowed: tuple[str, ...], whose: str) -> Iterator[PolicyError]:
    for root in asked:
        if not _inside_any(root, allowed):
            message = f"subagent {field} entry {_quoted(root)} is not contained within {whose}"
            yield PolicyError(message, field=field, asked=root, allowed=allowed)


def _added(field: str, asked: tuple[str, ...], allowed: tuple[str, ...], whose: str) -> Iterator[PolicyError]:
    for entry in asked:
        if entry not in allowed:
            message = f"subagent {field} entry {_quoted(entry)} is not present on the parent's {whose}"
            yield PolicyError(message, field=field, asked=entry, allowed=allowed)


def _dropped(field: str, asked: tuple[str, ...], enforced: tuple[str, ...]) -> Iterator[PolicyError]:
    for entry in enforced:
        if entry not in asked:
            message = f"subagent drops {field} entry {_quoted(entry)} that the parent enforces"
            yield PolicyError(message, field=field, asked=entry, allowed=enforced)


def _above(field: str, asked: int, allowed: int) -> Iterator[PolicyError]:
    if asked > allowed:
        message = f"subagent {field}={asked} exceeds parent's {allowed}"
        yield PolicyError(message, field=field, asked=asked, allowed=allowed)


def _switched_off(field: str, attempt: str) -> PolicyError:
    message = f"subagent attempts to {attempt} but the parent enforces it"
    return PolicyError(message, field=field, asked=False, allowed=True)


def _quoted(entry: str) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _shared(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(entry for entry in a if entry in b)


def _shared_names(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The tools that both lists have; of a pattern and a name that it matches, the name."""
    shared = (*(entry for entry in a if _covers(b, entry)), *(entry for entry in b if _covers(a, entry)))
    return tuple(dict.fromkeys(shared))


def _shared_tools(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if a is None and b is None:
        return None
    shared = _shared_names(a, b) if a is not None and b is not None else a or b
    return shared or NO_TOOLS


def _shared_roots(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The roots of either side that are inside a root of the other: the inner one of two nested roots."""
    return tuple(root for root in a if _inside_any(root, b)) + tuple(root for root in b if _inside_any(root, a))


def _shared_restricted_roots(
    full_a: tuple[str, ...], restricted_a: tuple[str, ...], full_b: tuple[str, ...], restricted_b: tuple[str, ...]
) -> tuple[str, ...]:
    """The read-only (or write-only) roots that both sides share, given each side's read-write roots as well.

    A read-write root of one side becomes restricted where the other side has no more than that.
    """
    shared_in_full = _shared_roots(full_a, full_b)
    return tuple(
        root
        for root in _shared_roots(restricted_a + full_a, restricted_b + full_b)
        if root in restricted_a or root in restricted_b or not _inside_any(root, shared_in_full)
    )


def _inside_any(path: str, roots: tuple[str, ...]) -> bool:
    return any(_inside(path, root) for root in roots)


def _inside(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it; both are normalised, so components can be compared as text.

    A relative path is inside nothing, because its meaning depends on the current folder.
    """
    if not (path.startswith("/") and root.startswith("/")):
        return False
    return path == root or path.startswith(root.rstrip("/") + "/")


HOUR = 3600.0
DAY = 86400.0
NANODOLLARS_IN_A_CENT = 10_000_000
MAX_STORED = 2**63 - 1
"""The largest integer that a store can hold."""

ACTIONS = "actions/"
COST = "cost/"


DelegationCeiling: TypeAlias = Literal["target", "caller"] | None


class RuntimeProfile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Runtime options of an agent that are not permissions.

    `agentic` gives it tools and several turns; otherwise it answers once. The two timeouts apply to tasks delegated to
    it. `delegation_ceiling` says which policy binds agents to which it delegates: its own as well as theirs
    (`caller`), or theirs alone (`target`). None is `caller`, unless the document of a dialect gives such an agent the
    rights of its own policy.

    >>> RuntimeProfile(delegation_ceiling="caller").agentic
    True
    """

    agentic: bool = True
    max_tool_iterations: int = 10
    max_delegation_depth: int = 3
    delegation_timeout_secs: float | None = None
    agentic_timeout_secs: float | None = None
    delegation_ceiling: DelegationCeiling = None
    sandbox_enabled: bool = True


class Restriction(Struct, frozen=True):
    """What an agent may not do, whatever its policy and its caller allow."""

    read_only: bool = False
    excluded_tools: tuple[str, ...] = ()

    def on(self, policy: Policy) -> Policy:
        """The policy without what is restricted.

        >>> restricted = Restriction(read_only=True, excluded_tools=("shell",)).on(Policy(excluded_tools=("fetch",)))
        >>> restricted.autonomy, restricted.excluded_tools
        (<Autonomy.READONLY: 'readonly'>, ('fetch', 'shell'))
        """
        return replace(
            policy,
            autonomy=Autonomy.READONLY if self.read_only else policy.autonomy,
            excluded_tools=policy.excluded_tools + self.excluded_tools,
        )


class Rules(Struct, frozen=True, kw_only=True):
    """Configured policies: for all agents (`session`) and by agent name.

    `restrictions` take rights from agents, also from those without a policy of their own, which have that of their
    caller. `memories` lists for each configured agent the agents whose memory it may read besides its own, `tags` the
    tags that a worker must have for its runs. The runs of agents in `anywhere` need not be driven with their tree. On a
    store that several machines reach, `machine` is the tag of this one, for runs with a tool of `folder_tools`, which
    work in one of its folders.
    """

    session: Policy | None = None
    agents: Mapping[str, Policy] = {}
    restrictions: Mapping[str, Restriction] = {}
    memories: Mapping[str, tuple[str, ...]] = {}
    tags: Mapping[str, tuple[str, ...]] = {}
    anywhere: frozenset[str] = frozenset()
    machine: str = ""
    folder_tools: frozenset[str] = frozenset()

    def policy_for(self, agent: str) -> Policy | None:
        """The configured policy of an agent, or None.

        >>> rules = Rules(agents={"reader": Policy(autonomy="readonly")})
        >>> rules.policy_for("reader").autonomy, rules.policy_for("main")
        (<Autonomy.READONLY: 'readonly'>, None)
        """
        own = self.agents.get(agent)
        if own is None or self.session is None:
            return self.session if own is None else own
        return intersect(self.session, own)

    def ceiling_of(self, agent: str) -> Policy:
        """The policy of a root run of the agent: the configured one, or the default."""
        return self.restricted(self.policy_for(agent) or DEFAULT_POLICY, agent)

    def restricted(self, policy: Policy, agent: str) -> Policy:
        """The policy without what is restricted for the agent."""
        restriction = self.restrictions.get(agent)
        return policy if restriction is None else restriction.on(policy)

    def readable_memories(self, agent: str, memory_from: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `memory_from` that the agent may read; all, if none are configured for it.

        >>> Rules(memories={"reader": ("b", "c")}).readable_memories("reader", ("a", "b"))
        ('b',)
        """
        allowed = self.memories.get(agent)
        return memory_from if allowed is None else tuple(name for name in memory_from if name in allowed)


DEFAULT_POLICY = Policy()


def windows_of(identity: str, policy: Policy) -> tuple[Window, Window]:
    """The windows that enforce a policy's hourly and daily limits, shared by all runs with this identity.

    >>> [(window.name, window.caps) for window in windows_of("reader", Policy(max_actions_per_hour=3))]
    [('actions/reader', Caps(calls=3)), ('cost/reader', Caps(cost=5000000000))]
    """
    return (
        Window(f"{ACTIONS}{identity}", HOUR, Caps(calls=policy.max_actions_per_hour)),
        Window(f"{COST}{identity}", DAY, Caps(cost=_nanodollars(policy.max_cost_per_day_cents))),
    )


def narrowed_windows(windows: tuple[Window, ...], policy: Policy) -> tuple[Window, ...]:
    """The windows with caps lowered to `policy`, which may be narrower than when they were created."""
    return tuple(_narrowed_window(window, policy) for window in windows)


def _narrowed_window(window: Window, policy: Policy) -> Window:
    caps = window.caps
    if window.name.startswith(ACTIONS) and caps.calls is not None:
        return replace(window, caps=replace(caps, calls=min(caps.calls, policy.max_actions_per_hour)))
    if window.name.startswith(COST) and caps.cost is not None:
        return replace(window, caps=replace(caps, cost=min(caps.cost, _nanodollars(policy.max_cost_per_day_cents))))
    return window


def _nanodollars(cents: int) -> int:
    return min(cents * NANODOLLARS_IN_A_CENT, MAX_STORED)
