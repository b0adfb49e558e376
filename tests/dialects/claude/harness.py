"""A harness for the `claude` dialect."""

import json
from typing import Any

from retinue.core.ports import Request
from retinue.providers.scripted import Line, LineFunction, ScriptedReply, calls
from tests.dialects.native.harness import NativeHarness

DIG = "find it"


class ClaudeHarness(NativeHarness):
    """A harness with the dialect; `lines` are the root's, `tasks` those of general-purpose agents by their tasks."""

    dialect = "claude"
    general = "general-purpose"

    def decoded(self, path: str = "root") -> list[Any]:
        """The results of a run's calls, decoded, with the path of each run in place of its id; refusals as texts."""
        paths = {row.run_id: row.path for row in self.rows()}
        found: list[Any] = []
        for event in self.returned(path):
            text = event.text
            for run_id, known in paths.items():
                text = text.replace(run_id, known)
            found.append(text if event.failed else json.loads(text))
        return found


def agent(prompt: str = DIG, **more: object) -> ScriptedReply:
    """A call of `Agent`."""
    return calls("Agent", description="Dig", prompt=prompt, **more)


def background(prompt: str = DIG, **more: object) -> ScriptedReply:
    """A call of `Agent` that returns at once."""
    return agent(prompt, run_in_background=True, **more)


def by_id(tool: str, field: str, **more: object) -> LineFunction:
    """A call with the id of the agent that the caller has started last."""

    def line(request: Request) -> Line:
        texts = [message.text for message in request.messages if '"agentId"' in message.text]
        return calls(tool, **{field: json.loads(texts[-1])["agentId"]}, **more)

    return line
