"""Tools are loaded from the user's files, and each error is reported in one line."""

from __future__ import annotations

import os
import py_compile
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from retinue.app.tool_modules import load_tools
from retinue.core.errors import ConfigError, Problem
from tests.tools.tool_calls import context

HEAD = "import retinue\n\n"


def function(name: str) -> str:
    return f'@retinue.tool\ndef {name}(query: str) -> str:\n    """Look."""\n    return query\n\n'


@pytest.fixture(autouse=True)
def restore_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def error_of(*files: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_tools(files)
    return str(caught.value)


def test_tools_are_loaded_in_definition_order(tmp_path: Path) -> None:
    first = write(tmp_path, "tools.py", HEAD + function("search") + function("fetch") + "again = search\nnumber = 3\n")
    second = write(tmp_path, "more/tools.py", HEAD + function("ask"))

    assert [tool.spec.name for tool in load_tools([first, second])] == ["search", "fetch", "ask"]
    assert load_tools([]) == ()


def test_tool_objects_are_loaded_and_their_classes_are_not(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "tools.py",
        """\
from dataclasses import dataclass
from retinue.core.agent import ToolSpec

@dataclass
class Bell:
    spec = ToolSpec("bell")
    kind = "once"
    risk = "low"
    timeout = None
    waits = False
    stoppable = True
    volume: int = 1
    async def call(self, arguments, context): ...

class Shy:
    def __getattr__(self, name):
        raise RuntimeError("not yet")

class Half:
    spec = ToolSpec("half")

bell, shy, half = Bell(), Shy(), Half()
""",
    )

    assert [tool.spec.name for tool in load_tools([file])] == ["bell"]


def test_a_module_may_import_siblings_and_reexport_their_tools(tmp_path: Path) -> None:
    write(tmp_path, "sibling_of_tools.py", HEAD + function("search"))
    first = write(tmp_path, "a.py", "from sibling_of_tools import search\n")
    second = write(tmp_path, "b.py", HEAD + "from sibling_of_tools import search\n" + function("fetch"))

    assert [tool.spec.name for tool in load_tools([first, second])] == ["search", "fetch"]


def test_a_modules_prints_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_tools([write(tmp_path, "tools.py", HEAD + "print('loading')\n" + function("search"))])

    assert capsys.readouterr() == ("", "loading\n")


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("", ": it defines no tools; decorate a function with @retinue.tool"),
        ("import os\n\nos.environ['NOT_SET_ANYWHERE']\n", ":3: cannot be imported: KeyError: 'NOT_SET_ANYWHERE'"),
        ("def f(:\n", ":1: cannot be imported: SyntaxError: invalid syntax"),
        ("import no_such_module\n", ":1: cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "\n\nimport json\njson.loads('[')\n",
            ":4: cannot be imported: json.decoder.JSONDecodeError: Expecting value: line 1 column 2 (char 1)",
        ),
        ("import sys\nsys.exit('bye')\n", ":2: cannot be imported: SystemExit: bye"),
        ("raise ValueError\n", ":1: cannot be imported: ValueError"),
        ("raise ValueError('two\\nlines')\n", ":1: cannot be imported: lines"),
        (
            HEAD + "@retinue.tool(kind='sometimes')\ndef f() -> None: ...\n",
            ":3: cannot be imported: tool f: kind is 'sometimes'; expected one of: pure, idempotent, keyed, once",
        ),
    ],
)
def test_an_unusable_module_is_a_config_error(tmp_path: Path, text: str, rest: str) -> None:
    file = write(tmp_path, "tools.py", text)
    before = set(sys.modules)

    assert error_of(file) == f"{file}{rest}"
    assert not [name for name in set(sys.modules) - before if name.startswith("retinue_tools_") and text]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    first = write(tmp_path, "first.py", HEAD + function("search"))
    second = write(tmp_path, "second.py", HEAD + function("search"))
    notes = write(tmp_path, "notes.txt", "hello")

    with pytest.raises(ConfigError) as caught:
        load_tools([first, tmp_path / "no.py", tmp_path, notes, second])

    assert caught.value.problems == (
        Problem(file=f"{tmp_path}/no.py", complaint="there is no such file", found="nothing"),
        Problem(file=f"{tmp_path}", complaint="there is no such file", found="nothing"),
        Problem(file=f"{notes}", complaint="not a Python file (.py)"),
        Problem(
            file=f"{second}",
            complaint=f"a second tool is named search; the first is in {first}: rename one of them",
            found="search",
        ),
    )


async def test_late_imports_find_siblings_only_from_their_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "a_sibling.py", "from another_sibling import WORD\n")
    write(tmp_path, "another_sibling.py", "WORD = 'found'\n")
    write(tmp_path, "not_a_tool_module.py", "raise SystemExit('loaded')\n")
    text = "@retinue.tool\ndef late() -> str:\n    from importlib import import_module\n\n"
    file = write(tmp_path, "tools.py", f"{HEAD}{text}    return import_module('a_sibling').WORD\n")
    (late,) = load_tools([file])

    assert (await late.call("{}", context())).text == "found"
    with pytest.raises(ModuleNotFoundError):
        import_module("not_a_tool_module")
    assert str(tmp_path) not in sys.path


def test_a_planted_bytecode_file_is_not_loaded(tmp_path: Path) -> None:
    module = tmp_path / "mytools.py"
    module.write_text("import retinue\n\n@retinue.tool\ndef mine() -> str:\n    return ''\n")
    planted = tmp_path / "planted.py"
    planted.write_text(module.read_text().replace("mine", "evil"))
    os.utime(planted, ns=(module.stat().st_mtime_ns, module.stat().st_mtime_ns))
    py_compile.compile(str(planted), cfile=cache_from_source(str(module)), doraise=True)

    assert [tool.spec.name for tool in load_tools([module])] == ["mine"]
