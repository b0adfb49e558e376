"""Kind, timeout and risk of every built-in tool."""

from __future__ import annotations

from retinue.app.open import builtin_tools
from retinue.tools.builtin import BUILTIN


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
