"""What a model reads of a program that the sandbox killed, and why it did."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import Ended, Program
from retinue.store.memory.store import MemoryStore
from retinue.tools import python
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.shell import shell_tool
from tests.tools.calling import DirectShelf, FixedClock, context, refused, told

WHY = "Killed: all its processes used 700 MB of memory together, and may use 512 MB"
POLICY = Policy(autonomy=Autonomy.FULL, require_approval_for_medium_risk=False)


class Kills:
    """A sandbox in which every program wants too much."""

    async def run(self, program: Program) -> Ended:
        return Ended(code=-signal.SIGKILL, stdout=b"begun\n", killed_for=WHY)


async def test_a_program_that_was_killed_for_a_reason_is_shown_with_it(tmp_path: Path) -> None:
    dependencies = ToolDependencies(sandbox=Kills(), key_value=DirectShelf(MemoryStore()), clock=FixedClock())
    tools = {tool.spec.name: tool for tool in (*shell_tool.tools(dependencies), *python.tools(dependencies))}
    where = context(policy=POLICY, workspace=str(tmp_path))

    command = await refused(tools["shell"], where, command="echo begun")
    code = msgspec.json.decode(await told(tools["python_execute"], where, code="print('begun')"))

    assert command == f"begun\n{WHY}"
    assert code == {"stdout": "begun\n", "stderr": WHY, "result": None}
