"""A scripted provider that records the requests of runs."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from retinue.core.messages import AssistantMessage, Message, Reply
from retinue.core.ports import Publish, Request
from retinue.providers.scripted import Script, ScriptedProvider


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """One request to a model."""

    run_id: str
    path: str
    agent: str
    turn: int
    provider: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]
    max_output: int | None = None


class RecordingProvider(ScriptedProvider):
    """Plays a script and records each request in `requests`."""

    def __init__(
        self, script: Script, *, name: str = "", requests: list[RecordedRequest] | None = None, latency: float = 0.0
    ) -> None:
        super().__init__(script, latency=latency)
        self.requests: list[RecordedRequest] = [] if requests is None else requests
        self._name = name

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.requests.append(
            RecordedRequest(
                run_id=request.run_id,
                path=request.path,
                agent=request.agent,
                turn=request.turn,
                provider=self._name,
                model=request.model,
                system=request.system,
                tools=tuple(tool.name for tool in request.tools),
                messages=tuple(request.messages),
                max_output=request.max_output,
            )
        )
        if (delay := self.delay(request)) is not None:
            await asyncio.sleep(delay)
        return await super().answer(request, publish)

    def delay(self, request: Request) -> float | None:
        """Seconds between a request and the begin of its answer."""
        return None


def conversation(messages: Iterable[Message]) -> list[str]:
    """A line for each message: its role, and its text or the names of its tool calls."""
    return [
        f"assistant: {message.text or ', '.join(call.name for call in message.calls)}"
        if isinstance(message, AssistantMessage)
        else f"{type(message).__name__.removesuffix('Message').lower()}: {message.text}"
        for message in messages
    ]
