"""Kind, timeout and risk of every built-in tool."""

from __future__ import annotations

import sys
from subprocess import run

import pytest

from retinue.app.open import builtin_tools, tool_dependencies
from retinue.core.policy import Policy
from retinue.core.ports import Tool
from retinue.tools.builtin import BUILTIN, DESCRIBED, Builtin, DescribedTool
from retinue.tools.dependencies import NoKeyValue, ToolOptions


def test_each_tool_has_its_kind_its_deadline_and_its_risk() -> None:
    assert {tool.spec.name: (tool.kind, tool.timeout, str(tool.risk)) for tool in builtin_tools()} == {
        "search_web": ("idempotent", 60.0, "low"),
        "scrape_webpage": ("idempotent", 60.0, "low"),
        "fetch": ("idempotent", 60.0, "low"),
        "bash_find": ("pure", 40.0, "low"),
        "bash_ripgrep": ("pure", 40.0, "low"),
        "grep": ("pure", 40.0, "low"),
        "bash_read": ("pure", 60.0, "low"),
        "file_read": ("pure", 60.0, "low"),
        "file_write": ("idempotent", 60.0, "medium"),
        "file_edit": ("once", 60.0, "medium"),
        "file_ops": ("once", 60.0, "medium"),
        "python_execute": ("idempotent", 330.0, "low"),
        "shell": ("once", 86_400.0, "medium"),
        "terminal": ("once", 86_400.0, "medium"),
        "task_create": ("keyed", 60.0, "low"),
        "task_get": ("pure", 60.0, "low"),
        "task_list": ("pure", 60.0, "low"),
        "task_update": ("keyed", 60.0, "low"),
        "memory_store": ("keyed", 60.0, "low"),
        "memory_recall": ("pure", 60.0, "low"),
        "memory_forget": ("keyed", 60.0, "low"),
        "artifact_read": ("pure", 60.0, "low"),
    }


def test_every_name_is_that_of_a_tool() -> None:
    assert [tool.spec.name for tool in builtin_tools()] == list(BUILTIN)


def builtin(options: ToolOptions) -> Builtin:
    return Builtin(lambda: tool_dependencies(options, key_value=NoKeyValue(), home=None), options)


def found(tools: Builtin, name: str) -> Tool:
    tool = tools.find(name)
    assert tool is not None
    return tool


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_described_tool_is_offered_as_the_tool_itself_is(name: str) -> None:
    tools = builtin(ToolOptions())
    policy = Policy(allowed_commands=("git", "ls"))
    described, made = found(tools, name), tools.made(name)

    assert isinstance(described, DescribedTool)
    assert described.spec_for_agent("", (name,), policy) == made.spec_for_agent("", (name,), policy)
    for attribute in ("spec", "kind", "risk", "acts", "timeout", "waits", "stoppable", "ordered", "polls", "server"):
        assert getattr(described, attribute) == getattr(made, attribute), attribute
    assert described.prepare("{}").risk == made.prepare("{}").risk


@pytest.mark.parametrize(
    ("options", "name"), [(ToolOptions(preset="coding"), "grep"), (ToolOptions(sandbox="off"), "python_execute")]
)
def test_a_tool_that_settings_change_is_offered_as_changed(options: ToolOptions, name: str) -> None:
    tools = builtin(options)

    assert found(tools, name) is tools.made(name)
    usual = found(builtin(ToolOptions()), name)
    assert (tools.made(name).spec, tools.made(name).risk) != (usual.spec, usual.risk)


def test_a_described_tool_loads_no_module_of_its_tool() -> None:
    program = (
        "import sys; from tests.tools.test_builtin import *; tools = builtin(ToolOptions()); "
        "[tools.truncating(found(tools, name)) for name in DESCRIBED]; "
        "print(*{BUILTIN[name] for name in DESCRIBED} & sys.modules.keys())"
    )
    done = run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "\n"
