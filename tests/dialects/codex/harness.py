"""A harness for the `codex` dialect."""

from retinue.providers.scripted import ScriptedReply, calls
from tests.dialects.native.harness import NativeHarness

DIG = "find it"


class CodexHarness(NativeHarness):
    """A harness with the dialect; `lines` are the root's, `tasks` the lines of general agents by their tasks."""

    dialect = "codex"
    general = "default"

    def texts(self, path: str = "root") -> list[str]:
        """The results of a run's calls."""
        return [event.text for event in self.returned(path)]


def spawn(task_name: str = "dig", message: str = DIG, fork_turns: str | None = "none", **more: object) -> ScriptedReply:
    """A call of `spawn_agent`, without the caller's conversation."""
    given = more if fork_turns is None else {"fork_turns": fork_turns, **more}
    return calls("spawn_agent", task_name=task_name, message=message, **given)


def wait(timeout_ms: int = 600_000) -> ScriptedReply:
    """A call of `wait_agent`."""
    return calls("wait_agent", timeout_ms=timeout_ms)
