"""Makes the reference pages of the public Python modules from their signatures and docstrings.

The source is read, not the objects: annotations and defaults appear as they are written, and the text below a constant
or an alias is its docstring.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from textwrap import dedent
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import retinue.errors
import retinue.events

MADE = "This page is made from the code by `make docs`."
LINE = 100
"""Characters of a signature in one line."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Groups: TypeAlias = Mapping[str, Iterable[str]]

SETTINGS = (
    "SpecSettings",
    "MeerkatSettings",
    "ConcurrencyLimits",
    "XzatomaSettings",
    "BuzzllmSettings",
    "NativeSettings",
    "ClaudeSettings",
    "CodexSettings",
)
FIELDS_ONLY = {*SETTINGS, "FunctionTool"}
"""Classes whose methods are not part of the interface."""

ROOT_GROUPS: Groups = {
    "Open": ("open", "open_sync", "MEMORY"),
    "Runs": ("Retinue", "RunHandle", "SyncRetinue", "SyncHandle", "RunView", "Outcome", "Exchange", "Approval"),
    "Loops of other programs": ("surface", "ToolSurface", "SurfaceResult", "ToolHints"),
    "Agents and limits": ("Agent", "Limits", "ModelOptions", "Policy", "Autonomy", "RuntimeProfile", "Usage"),
    "Hooks": ("Hooks", "Denial"),
    "Images and files": ("Image", "File"),
    "Tools and providers": (
        "tool",
        "agent_tool",
        "handoff",
        "CallContext",
        "ToolOptions",
        "McpServer",
        "ServerTool",
        "ProviderConfig",
        "AgentProgram",
    ),
    "Traces": ("Telemetry",),
    "Dialects of your own": ("Dialect",),
    "Settings of dialects": SETTINGS,
    "Version": ("__version__",),
}
PORT_GROUPS: Groups = {
    "Providers": (
        *("Provider", "Request", "RequestOptions", "Publish", "Output", "ValidatedOutput", "price_of", "window_of"),
        *("PricedProvider", "ModelPrices", "Rates", "LongContextRates", "BeforeModel"),
    ),
    "Tools": (
        "Tool",
        "ToolSpec",
        "ServerToolSpec",
        "ServerToolKind",
        "ToolKind",
        "ToolResult",
        "PreparedCall",
        "CallRisk",
        "HostedCall",
        "Risk",
        "ToolLike",
        "ToolWrapper",
        "FunctionTool",
        "BeforeTool",
        "Spawner",
        "ChildRun",
    ),
    "Web pages": ("Fetcher", "Fetched", "Bounds", "Guard"),
    "Approvals, time and ids": ("Approver", "Clock", "Ids"),
    "Stores": ("Store", "CommitAtOnce", "LogLengths", "Write", "WriteResult"),
    "Writes of a store": (
        *("Accept", "Record", "Post", "CancelTree", "Retire", "Change", "Decide", "Decision", "RegisterDriver"),
        *("Heartbeat", "DeclareDead", "Adopt", "UnregisterDriver", "OpenSession", "CloseSession", "Prune", "Forget"),
    ),
    "Results and rows of a store": (
        *("Accepted", "NotCreated", "NamespaceClosed", "Posted", "RunRow", "Progress", "Phase", "RunQuery"),
        *(
            "WindowFull",
            "Unread",
            "SessionRow",
            "DriverRow",
            "Charge",
            "CallLimit",
            "AmountLimit",
            "RunLimit",
            "RunSpec",
        ),
    ),
}
TESTING_GROUPS: Groups = {
    "Scripted models": (
        *("ScriptedProvider", "Script", "says", "calls", "calls_verbatim", "streams", "together", "fails", "hangs"),
        *("Line", "LineFunction", "ScriptedReply", "ScriptedFailure", "ScriptedHang"),
    ),
    "Harness": ("Harness", "CrashingStore", "StoreKilled", "CountedIds", "dialect_context"),
    "Record and replay": ("record", "replay", "ReplayDiffers"),
    "Trajectories": ("trajectory_of", "Trajectory", "MadeCall", "ReadMessage"),
    "Virtual time": ("run_in_virtual_time", "VirtualTimeLoop", "VirtualClock", "DeadlockError"),
    "Fake servers": ("FakeChat", "ChatScript", "FakeServer", "ReceivedRequest", "FakeResponse"),
    "Contracts": ("StoreContract", "PersistentStoreContract", "PROVIDER_PROMISES"),
}

ELSEWHERE = {"retinue.ports": ("CallContext",)}
"""Names that an earlier section has, by the module that exports them again."""

NOT_CONSTRUCTED = {"Retinue", "RunHandle", "SyncRetinue", "SyncHandle", "FunctionTool"}
"""Classes that programs do not construct, so that their constructors are not part of the interface."""

NAMES = {"RunId", "SessionId", "DriverId", "Key"}
"""Aliases of `str` that say what a text names; they stay as they are written."""


# ---- pages ----------------------------------------------------------------------------------------------------------


def python_page() -> str:
    """`retinue`, `retinue.messages`, `retinue.ports` and `retinue.testing`."""
    parts = [
        "# Python API",
        f"{MADE} It has the public names of `retinue`, `retinue.messages`, `retinue.ports` and `retinue.testing`; "
        "[events](events.md) and [errors](errors.md) have pages of their own. A name that is on none of these pages is "
        "private and may change without notice.",
        "`RunId`, `SessionId`, `DriverId` and `Key` are `str`. Costs are whole nanodollars, times are seconds.",
    ]
    for module in PYTHON_PAGE:
        parts += _module(module, _groups(module))
    return _page("python.md", parts)


def events_page() -> str:
    """`retinue.events`."""
    parts = ["# Events", f"{MADE} `from retinue.events import ...` imports each of these names."]
    return _page("events.md", [*parts, *_module("retinue.events", _groups("retinue.events"), title="")])


def errors_page() -> str:
    """`retinue.errors`: the tree of errors, and each of them."""
    parts = ["# Errors", f"{MADE} `from retinue.errors import ...` imports each of these names."]
    parts += [*_markdown(_intro("retinue.errors")), "## The tree", "\n".join(_tree(retinue.errors.RetinueError))]
    return _page("errors.md", [*parts, *_listed("retinue.errors", _groups("retinue.errors"))])


PYTHON_PAGE = ("retinue", "retinue.messages", "retinue.ports", "retinue.testing")
PAGE_OF = {
    **dict.fromkeys(PYTHON_PAGE, "python.md"),
    "retinue.events": "events.md",
    "retinue.errors": "errors.md",
}
"""The page of each public module."""


def _groups(module: str) -> Groups:
    match module:
        case "retinue":
            return ROOT_GROUPS
        case "retinue.ports":
            return PORT_GROUPS
        case "retinue.testing":
            return TESTING_GROUPS
        case "retinue.events":
            public = {getattr(retinue.events, name): name for name in retinue.events.__all__}
            events = [public[kind] for kind in get_args(retinue.events.Event)]
            items = [public[kind] for kind in get_args(retinue.events.Item)]
            shown = ("Event", *events, "Item", *items)
            values = [name for name in retinue.events.__all__ if name not in shown]
            return {"Each event": ("Event", *events), "Items of an inbox": ("Item", *items), "Values": values}
        case "retinue.errors":
            errors = [kind.__name__ for kind in _family(retinue.errors.RetinueError)]
            values = [name for name in retinue.errors.__all__ if name not in errors]
            return {"Each error": errors, "Values of errors": values}
        case _:
            return {"": _public(module)}


def _public(module: str) -> list[str]:
    return [*import_module(module).__all__]


def _page(file: str, parts: Iterable[str]) -> str:
    return "\n\n".join(_linked(part, file) for part in parts if part) + "\n"


def _module(module: str, groups: Groups, *, title: str | None = None) -> Iterator[str]:
    yield f"## {module}" if title is None else title
    yield from _markdown(_intro(module))
    yield from _listed(module, groups)


def _listed(module: str, groups: Groups) -> Iterator[str]:
    """The entries of a module, group after group."""
    level = "###" if module in PYTHON_PAGE else "##"
    for group, names in groups.items():
        if group:
            yield f"{level} {group}"
        for name in names:
            yield from _entry(module, name, f"{level}#" if group else level)
    if module == "retinue":
        errors = [name for name in retinue.errors.__all__ if name in _public(module)]
        yield f"{level} Errors"
        yield f"Also exported here, and described in [Errors](errors.md): {', '.join(f'`{name}`' for name in errors)}."


def missing(module: str) -> list[str]:
    """Public names of a module that no page describes.

    >>> missing("retinue.messages")
    []
    """
    described = {name for names in _groups(module).values() for name in names}
    elsewhere = set(retinue.errors.__all__) if module == "retinue" else set(ELSEWHERE.get(module, ()))
    return [name for name in _public(module) if name not in described | elsewhere]


def _intro(module: str) -> str:
    return inspect.getdoc(import_module(module)) or ""


# ---- where names are defined ----------------------------------------------------------------------------------------


class Home(NamedTuple):
    """Where a name is defined: the module, its name there, the statement, and the text that follows the statement."""

    module: str
    name: str
    node: ast.stmt
    text: str


def home(module: str, name: str) -> Home:
    """The definition of a name that a module defines or imports from another module of retinue."""
    body = _statements(module)
    for place, node in enumerate(body):
        match node:
            case ast.ImportFrom(module=str(source), names=names):
                for alias in names:
                    if (alias.asname or alias.name) == name and source.startswith("retinue"):
                        return home(source, alias.name)
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name and not _is_overload(node):
                return Home(module, name, node, "")
            case ast.AsyncFunctionDef(name=found) if found == name:
                return Home(module, name, node, "")
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                return Home(module, name, node, _text_of(body[place + 1 : place + 2]))
            case _:
                pass
    raise LookupError(f"{module} does not define {name}")


@cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of a module, with those for type checkers."""
    body: list[ast.stmt] = []
    for node in ast.parse(inspect.getsource(import_module(module))).body:
        body += node.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" else [node]
    return body


def _is_overload(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def _text_of(following: list[ast.stmt]) -> str:
    match following:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return inspect.cleandoc(text)
        case _:
            return ""


# ---- entries --------------------------------------------------------------------------------------------------------


def _entry(module: str, name: str, level: str) -> Iterator[str]:
    found = home(module, name)
    yield f"{level} {_title(module, name)}"
    match found.node:
        case ast.ClassDef():
            kind = cast("type", getattr(import_module(found.module), found.name))
            yield from _class(name, kind, found.node, level)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield _code(_signature(found.node, name, found.module))
            yield from _markdown(_docstring(found.node))
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield from _value(name, value, found)
        case _:
            raise TypeError(f"{module}.{name}: cannot describe {ast.unparse(found.node)}")


def _title(module: str, name: str) -> str:
    """The heading of an entry; a page with one module has the names alone."""
    return f"{module}.{name}" if module in PYTHON_PAGE else name


def _value(name: str, value: ast.expr, found: Home) -> Iterator[str]:
    if name == "__version__":
        yield "The version of retinue, as text."
        return
    if not name.isupper() or isinstance(value, ast.Constant):
        yield _code(f"{name} = {_alias(_written(value, found.module))}")
    yield from _markdown(found.text)


def _alias(text: str) -> str:
    """The types or values of an alias, one in a line where they are many."""
    if len(text) <= LINE:
        return text
    if text.startswith("Literal["):
        return "Literal[\n" + "".join(f"    {value},\n" for value in text[8:-1].split(", ")) + "]"
    return "(\n    " + "\n    | ".join(text.split(" | ")) + "\n)"


def _class(name: str, kind: type, node: ast.ClassDef, level: str) -> Iterator[str]:
    constructor = _constructor(kind)
    if name not in NOT_CONSTRUCTED and constructor is not None:
        yield _code(_signature(constructor[1], name, constructor[0], is_method=True))
    if bases := [base.__name__ for base in kind.__bases__ if _is_public(base)]:
        yield f"Subclass of {' and '.join(f'`{base}`' for base in bases)}."
    yield from _markdown(_docstring(node))
    if values := _values(kind):
        yield _table(("value",), [[f"`{value}`"] for value in values])
    elif fields := [*_fields(kind), *_bare_properties(kind)]:
        yield _fields_table(fields)
    if name in FIELDS_ONLY:
        return
    for module, method in _methods(kind):
        if _is_property(method) and not _docstring(method):
            continue
        yield f"{level}# {name}.{method.name}"
        if not _is_property(method):
            yield _code(_signature(method, method.name, module, is_method=True))
        elif method.returns is not None:
            yield _code(f"{method.name}: {_written(method.returns, module)}")
        yield from _markdown(_docstring(method))


def _values(kind: type) -> list[str]:
    return [str(member.value) for member in kind] if issubclass(kind, Enum) else []


def _is_public(kind: type) -> bool:
    return any(kind.__name__ in _public(module) for module in PAGE_OF) and kind.__module__.startswith("retinue")


def _classes(kind: type) -> Iterator[tuple[type, ast.ClassDef]]:
    """The class and those of its bases that no page describes."""
    for each in kind.__mro__:
        if each.__module__.startswith("retinue") and (each is kind or not _is_public(each)):
            node = home(each.__module__, each.__name__).node
            assert isinstance(node, ast.ClassDef)
            yield each, node


def _constructor(kind: type) -> tuple[str, ast.FunctionDef] | None:
    """The module of the constructor, and the constructor; None if the class defines none.

    A struct that cannot have one may declare it for type checkers, below an `if`.
    """
    for each, node in _classes(kind):
        declared = [inner for member in node.body if isinstance(member, ast.If) for inner in member.body]
        for member in (*node.body, *declared):
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                return each.__module__, member
    return None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a class: its name, type and default as they are written, and the text below."""

    name: str
    type: str
    default: str
    text: str


def _fields(kind: type) -> Iterator[Field]:
    for each, node in _classes(kind):
        for place, member in enumerate(node.body):
            match member:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value) if name[0] != "_":
                    described = _description(annotation)
                    text = _text_of(node.body[place + 1 : place + 2]) or described
                    yield Field(name, _written(annotation, each.__module__), _default(value, each.__module__), text)
                case _:
                    pass


def _bare_properties(kind: type) -> Iterator[Field]:
    """The properties without a docstring, which is how a protocol declares its fields."""
    for module, method in _methods(kind):
        if _is_property(method) and not _docstring(method) and method.returns is not None:
            yield Field(method.name, _written(method.returns, module), "", "")


def _description(annotation: ast.expr) -> str:
    """The description in the `Meta` of an annotation; empty if it has none."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.keyword) and node.arg == "description":
            return str(ast.literal_eval(node.value))
    return ""


def _default(value: ast.expr | None, module: str) -> str:
    match value:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            if "default_factory" in given:
                return "..." if isinstance(given["default_factory"], ast.Lambda) else "empty"
            return _default(given.get("default"), module)
        case _:
            return _written(value, module)


def _fields_table(fields: list[Field]) -> str:
    has_text = any(field.text for field in fields)
    titles = ("field", "type", "default", *(("meaning",) if has_text else ()))
    return _table(
        titles,
        (
            [
                *(f"`{field.name}`", f"`{field.type}`", f"`{field.default}`" if field.default else ""),
                *((field.text,) if has_text else ()),
            ]
            for field in fields
        ),
    )


def _methods(kind: type) -> Iterator[tuple[str, Function]]:
    """The public methods and properties, each once and with its module, without the tests of a contract."""
    seen: set[str] = set()
    for each, node in _classes(kind):
        for member in node.body:
            if not isinstance(member, Function) or member.name in seen or _is_overload(member):
                continue
            is_fixture = not isinstance(
                vars(each).get(member.name), FunctionType | property | classmethod | staticmethod
            )
            if member.name.startswith(("_", "test_")) or is_fixture or _is_foreign(kind, member.name):
                continue
            seen.add(member.name)
            yield each.__module__, member


def _is_foreign(kind: type, name: str) -> bool:
    """Whether a base class outside retinue has the method, as event loops of asyncio have `call_at`."""
    return any(name in vars(base) for base in kind.__mro__ if not base.__module__.startswith("retinue"))


def _is_property(node: Function) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)


def _docstring(node: ast.ClassDef | Function) -> str:
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def _signature(node: Function, name: str, module: str, *, is_method: bool = False) -> str:
    """The call as it is written, one parameter in a line if it is long."""
    parameters = _parameters(node.args, module)
    if is_method and not any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list):
        del parameters[0]
    prefix = f"await {name}" if isinstance(node, ast.AsyncFunctionDef) else name
    ending = "" if node.returns is None or node.name == "__init__" else f" -> {_written(node.returns, module)}"
    whole = f"{prefix}({', '.join(parameters)}){ending}"
    if len(whole) <= LINE:
        return whole
    return f"{prefix}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){ending}"


def _parameters(args: ast.arguments, module: str) -> list[str]:
    def parameter(arg: ast.arg, default: ast.expr | None = None) -> str:
        name = arg.arg if arg.annotation is None else f"{arg.arg}: {_written(arg.annotation, module)}"
        return name if default is None else f"{name} = {_written(default, module)}"

    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + [*args.defaults]
    written = [parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    if args.posonlyargs:
        written.insert(len(args.posonlyargs), "/")
    if args.vararg is not None:
        written.append(f"*{parameter(args.vararg)}")
    elif args.kwonlyargs:
        written.append("*")
    written += [parameter(each, default) for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg is not None:
        written.append(f"**{parameter(args.kwarg)}")
    return written


def _written(node: ast.expr, module: str) -> str:
    """A type or a default as it is written, with private aliases and constants in full and without metadata."""
    text = ast.unparse(_Expanded(module).visit(copy.deepcopy(node)))
    return re.sub(r"'([^'\"\\\\]*)'", r'"\1"', text)


class _Expanded(ast.NodeTransformer):
    """Puts the definitions of private aliases and constants of a module in place of their names."""

    def __init__(self, module: str) -> None:
        self._module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in NAMES or node.id in public_names():
            return node
        try:
            found = home(self._module, node.id)
        except LookupError:
            return node  # a builtin, or a name of another package
        match found.node:
            case ast.AnnAssign(annotation=ast.Name(id="TypeAlias"), value=ast.expr() as value):
                pass
            case ast.Assign(value=ast.Subscript() | ast.Constant() as value):
                pass
            case ast.Assign(value=ast.Call(func=ast.Name(id=made)) as value) if made in public_names():
                pass
            case ast.ClassDef():
                return ast.Name(_exported_as().get((found.module, found.name), node.id))
            case _:
                return ast.Constant(...)
        return _Expanded(found.module).visit(copy.deepcopy(value))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
                return self.visit(inner)
            case ast.Subscript(value=ast.Name(id="Literal")):
                return node
            case _:
                self.generic_visit(node)
                return node


@cache
def _exported_as() -> dict[tuple[str, str], str]:
    """The public name of each class that is exported under another one."""
    found = ((name, home(module, name)) for module in PAGE_OF for name in _public(module))
    return {(where.module, where.name): name for name, where in found if where.name != name}


@cache
def public_names() -> frozenset[str]:
    """All public names."""
    return frozenset(name for module in PAGE_OF for name in _public(module))


# ---- the tree of errors ---------------------------------------------------------------------------------------------


def _family(kind: type[Exception]) -> list[type[Exception]]:
    """The error and those public ones below it, each parent before its children."""
    below = [each for each in _errors() if kind in each.__bases__]
    return [kind, *(each for child in below for each in _family(child))]


@cache
def _errors() -> tuple[type[Exception], ...]:
    public = [getattr(retinue.errors, name) for name in retinue.errors.__all__]
    return tuple(each for each in public if isinstance(each, type) and issubclass(each, Exception))


def _tree(kind: type[Exception], indent: str = "") -> Iterator[str]:
    yield f"{indent}- `{kind.__name__}`: {_sentence(inspect.getdoc(kind) or '')}"
    for each in _errors():
        if kind in each.__bases__:
            yield from _tree(each, f"{indent}    ")


def _sentence(text: str) -> str:
    """The first sentence of a docstring, without its full stop.

    >>> _sentence("A page could not be read. The message says why.")
    'A page could not be read'
    """
    paragraph = " ".join(re.split(r"\n\s*\n", text)[0].split())
    return re.split(r"\.(?:\s|$)", paragraph)[0]


# ---- Markdown -------------------------------------------------------------------------------------------------------


def _markdown(docstring: str) -> Iterator[str]:
    """The parts of a docstring: paragraphs and lists in one line each, sessions and literal blocks as code."""
    literal = False
    for part in re.split(r"\n\s*\n", docstring.strip()):
        if part.startswith(">>>"):
            yield f"```pycon\n{part}\n```"
        elif literal and part.startswith((" ", "\t")):
            yield f"```text\n{dedent(part)}\n```"
            continue  # a literal block may have empty lines
        elif part.startswith("- "):
            yield "\n".join(_joined(item) for item in re.split(r"\n(?=- )", part))
        elif part:
            before, _, session = part.partition("\n>>>")
            yield _joined(before.removesuffix("::") + (":" if before.endswith("::") else ""))
            if session:
                yield f"```pycon\n>>>{session}\n```"
        literal = part.endswith("::")


def _joined(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _table(titles: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(_joined(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# ---- links ----------------------------------------------------------------------------------------------------------

_INLINE = re.compile(r"(?<![\[`])`([A-Za-z_][\w.]*)(\(\))?`(?![\]`])")


@cache
def targets() -> dict[str, tuple[str, str]]:
    """The page and the anchor of each public name and method, by the ways in which docstrings write them."""
    found: dict[str, tuple[str, str]] = {}
    for module, page in PAGE_OF.items():
        for names in _groups(module).values():
            for name in names:
                place = page, _anchor(_title(module, name))
                found[f"{module}.{name}"] = place
                if not name[0].isupper():
                    continue  # alone, it may be a parameter of that name
                found.setdefault(name, place)
                kind: Any = getattr(import_module(module), name)
                for _, method in _methods(kind) if isinstance(kind, type) else ():
                    found[f"{name}.{method.name}"] = found[f"retinue.{name}.{method.name}"] = (
                        page,
                        _anchor(f"{name}.{method.name}"),
                    )
    return found


def _anchor(text: str) -> str:
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def _linked(part: str, file: str) -> str:
    """A part of a page with links on the public names in it; headings and blocks of code stay as they are."""
    if part.startswith(("#", "```")):
        return part

    def link(match: re.Match[str]) -> str:
        place = targets().get(match[1])
        if place is None:
            return match[0]
        page, anchor = place
        return f"[{match[0]}]({'' if page == file else page}#{anchor})"

    return _INLINE.sub(link, part)
