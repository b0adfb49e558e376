"""One session of an editor: a conversation of its own, whose answers stream to the editor as they arrive."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from retinue.acp_server.updates import RunUpdates, Update, question_fields, replayed, text_chunk
from retinue.app.chat.conversation import Conversation, earlier_chat
from retinue.app.engine_types import Unanswered
from retinue.app.launch.start import Launch
from retinue.app.retinue import Retinue
from retinue.core.attachments import IMAGE_TYPES, Attachment, File, Image, checked
from retinue.core.events import CallReturned, Event, ReplyReceived
from retinue.core.messages import Delta
from retinue.core.model_options import EFFORTS
from retinue.core.run import Approval, Outcome
from retinue.core.text import clean_line
from retinue.core.usage import NO_USAGE, Usage
from retinue.net.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, ConnectionGone, JsonRpcPeer, RpcError
from retinue.tools.todo import plan_of

ASK, ALLOW, DENY = "ask", "allow", "deny"

MODES: Mapping[str, tuple[str, str]] = {
    ASK: ("Ask", "Asks you before calls that need approval."),
    ALLOW: ("Allow", "Approves every call that only needs approval."),
    DENY: ("Deny", "Refuses every call that needs approval."),
}

DEFAULT_EFFORT = "default"

ANNOUNCE_SECONDS = 2.0
"""How long a question waits for the message about its call."""

CLOSE_SECONDS = 5.0
"""Time for a prompt to end when its session is closed."""

STOPS: Mapping[str, str] = {
    "max_turns": "max_turn_requests",
    "max_calls": "max_turn_requests",
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "refusal": "refusal",
}
"""The protocol's reasons to stop, by those of runs."""


class OpenedSession(Struct, frozen=True):
    """What a session works with: a retinue of its own, and how its runs are started."""

    launch: Launch
    retinue: AbstractAsyncContextManager[Retinue]


class AcpSession:
    """A session. Prompts are answered one at a time."""

    def __init__(self, name: str, peer: JsonRpcPeer) -> None:
        self.name = name
        self._peer = peer
        self._resources = AsyncExitStack()
        self._opened: OpenedSession
        self._conversation: Conversation
        self._mode = ASK
        self._effort = DEFAULT_EFFORT
        self._stop: asyncio.Event | None = None
        """Ends the prompt in progress."""
        self._is_interrupted = False
        """Whether a prompt was broken off by the end of the process."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._announced: set[object] = set()
        """The ids of the calls that the editor was shown in the prompt in progress."""
        self._announcing = asyncio.Event()
        self._plans: set[asyncio.Task[None]] = set()
        self._plan: list[dict[str, str]] = []

    async def open(self, opened: OpenedSession) -> None:
        """Open the retinue of the session, with the conversation of an earlier time if there is one."""
        self._opened = opened
        self._retinue = await self._resources.enter_async_context(opened.retinue)
        self._earlier = await earlier_chat(self._retinue)
        self._conversation = Conversation(self._retinue, opened.launch, self._earlier)

    async def close(self) -> None:
        """End the session. A prompt that was interrupted by the end of the process can go on when it is loaded."""
        self.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.idle()
        for task in self._plans:
            task.cancel()
        await asyncio.gather(*self._plans, return_exceptions=True)
        if not self._is_interrupted:
            await self._conversation.close()
        await self._resources.aclose()

    async def idle(self) -> None:
        """Return when no prompt is in progress."""
        await self._is_idle.wait()

    def state(self) -> Update:
        """Modes and options of the session."""
        modes = [{"id": id, "name": name, "description": about} for id, (name, about) in MODES.items()]
        return {
            "modes": {"currentModeId": self._mode, "availableModes": modes},
            "configOptions": self._options(),
        }

    def _options(self) -> list[Update]:
        models = dict.fromkeys((self._conversation.launch.model_choice.full_name, *self._models()))
        efforts = (DEFAULT_EFFORT, *EFFORTS)
        return [
            _select("model", "Model", "model", self._conversation.launch.model_choice.full_name, models),
            _select("effort", "Effort", "thought_level", self._effort, efforts),
        ]

    def _models(self) -> list[str]:
        """The models that the settings name."""
        settings = self._opened.launch.settings
        own = [f"{name}:{provider.model}" for name, provider in settings.providers.items() if provider.model]
        return [self._opened.launch.model_choice.full_name, *own]

    async def set_mode(self, mode: str) -> Update:
        """Change the approver of further questions."""
        if mode not in MODES:
            raise RpcError(INVALID_PARAMS, f"there is no mode {clean_line(mode)[:100]!r}; valid: {', '.join(MODES)}")
        self._mode = mode
        self._update({"sessionUpdate": "current_mode_update", "currentModeId": mode})
        return {}

    async def set_option(self, option: str, value: object) -> Update:
        """Change the model or the effort; raises `BadInput` for one that cannot be used."""
        if not isinstance(value, str) or option not in ("model", "effort"):
            raise RpcError(INVALID_PARAMS, f"there is no option {clean_line(option)[:100]!r} with such a value")
        launch = self._conversation.launch
        if option == "model":
            self._conversation.use(launch.with_model(value))
        elif value != DEFAULT_EFFORT:
            self._conversation.use(launch.with_effort(value))
            self._effort = value
        return {"configOptions": self._options()}

    # Prompts

    async def prompt(self, blocks: Sequence[Mapping[str, Any]]) -> Update:
        """Answer a prompt; raises `RpcError` if there is no answer, and one is in progress already."""
        if self._stop is not None:
            raise RpcError(INVALID_REQUEST, "a prompt is in progress: cancel it, or wait for its end")
        text, attachments = content_of(blocks)
        self._stop = stop = asyncio.Event()
        self._is_idle.clear()
        self._announced.clear()
        try:
            dialects = self._conversation.launch.options.dialects
            run_id, key = await self._conversation.begin(text, dialects, attachments)
            shown = RunUpdates(run_id)
            usage: list[Usage] = []
            outcome = await self._conversation.answer(key, lambda event: self._show(shown, event, usage), stop)
            await asyncio.gather(*self._plans, return_exceptions=True)
            return self._answer(outcome, usage)
        except asyncio.CancelledError:
            self._is_interrupted = True
            raise
        finally:
            self._stop = None
            self._is_idle.set()

    def cancel(self) -> None:
        """Stop the answer in progress."""
        if self._stop is not None:
            self._stop.set()

    def _show(self, shown: RunUpdates, event: Event | Delta, usage: list[Usage]) -> None:
        for update in shown.of(event):
            self._update(update)
            if update["sessionUpdate"] == "tool_call":
                self._announced.add(update["toolCallId"])
                self._announcing.set()
        if isinstance(event, ReplyReceived):
            usage.append(event.reply.usage or NO_USAGE)
        if isinstance(event, CallReturned) and event.tool in ("task_create", "task_update"):
            task = asyncio.get_running_loop().create_task(self._send_plan(), name="retinue-acp-plan")
            self._plans.add(task)
            task.add_done_callback(self._plans.discard)

    async def _send_plan(self) -> None:
        """Send the to-do list of the session as the plan, if it has changed."""
        plan = await plan_of(self._retinue.supervisor.key_value, self._retinue.session_id)
        if plan != self._plan:
            self._plan = plan
            self._update({"sessionUpdate": "plan", "entries": plan})

    def _answer(self, outcome: Outcome, usage: Sequence[Usage]) -> Update:
        total = sum(usage, NO_USAGE)
        counted = {"inputTokens": total.input, "outputTokens": total.output, "totalTokens": total.total}
        if outcome.result == "cancelled":
            return {"stopReason": "cancelled", "usage": counted}
        stop = STOPS.get(outcome.reason)
        if outcome.result == "completed":
            return {"stopReason": stop or "end_turn", "usage": counted}
        if stop is None:
            raise RpcError(INTERNAL_ERROR, clean_line(outcome.error)[:2000] or f"the run ended: {outcome.reason}")
        self._update(text_chunk(f"\n\n[{clean_line(outcome.error)[:500]}]" if outcome.error else ""))
        return {"stopReason": stop, "usage": counted}

    async def decide(self, question: Approval) -> bool:
        """Ask the person at the editor; raises `Unanswered` if the editor is gone or dismisses the question."""
        if self._mode != ASK:
            return self._mode == ALLOW
        if question.path == "root":
            await self._until_announced(question.id)
        params = {
            "sessionId": self.name,
            "toolCall": question_fields(question),
            "options": [
                {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
                {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
            ],
        }
        try:
            answer = await self._peer.request("session/request_permission", params)
        except (ConnectionGone, RpcError) as error:
            raise Unanswered from error
        outcome = cast("dict[str, Any]", answer).get("outcome") if isinstance(answer, dict) else None
        chosen = cast("dict[str, Any]", outcome) if isinstance(outcome, dict) else {}
        if chosen.get("outcome") != "selected":
            raise Unanswered
        return chosen.get("optionId") == "allow"

    async def _until_announced(self, id: str) -> None:
        """Wait until the editor was shown the call that a question is about; it reads events in their order."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCE_SECONDS):
                while id not in self._announced:
                    self._announcing.clear()
                    await self._announcing.wait()

    # An earlier conversation

    async def replay(self) -> bool:
        """Send the messages of the earlier conversation; False if there is none."""
        if self._earlier is None:
            return False
        last = self._earlier.last.run_id
        run = await self._retinue.supervisor.replay(last)
        for update in replayed(last, run.history):
            self._update(update)
        await self._send_plan()
        return True

    def _update(self, update: Update) -> None:
        self._peer.notify("session/update", {"sessionId": self.name, "update": update})


def content_of(blocks: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Attachment, ...]]:
    """The text of a prompt with the names of its resources, and its images and embedded files.

    Raises `RpcError` for content that cannot be used, `BadInput` for too large attachments.
    """
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text", "")))
            case "image":
                media_type = str(block.get("mimeType", ""))
                if media_type not in IMAGE_TYPES:
                    raise RpcError(INVALID_PARAMS, f"prompt: expected an image of {', '.join(IMAGE_TYPES)}")
                attachments.append(Image(_decoded(block.get("data")), media_type))
            case "resource_link":
                texts.append(f"[{_name_of(str(block.get('uri', '')))}]")
            case "resource":
                inner = block.get("resource")
                resource = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
                name = _name_of(str(resource.get("uri", "")))
                if isinstance(text := resource.get("text"), str):
                    attachments.append(File(text.encode("utf-8", "replace"), "text/plain", name))
                else:
                    data = _decoded(resource.get("blob"))
                    attachments.append(File(data, str(resource.get("mimeType") or ""), name))
                texts.append(f"[{name}]")
            case _:
                raise RpcError(
                    INVALID_PARAMS, "prompt: expected content of type text, image, resource or resource_link"
                )
    text = " ".join(filter(None, (each.strip("\n") for each in texts))) if len(texts) > 1 else "".join(texts)
    if not text.strip() and not attachments:
        raise RpcError(INVALID_PARAMS, "prompt: it has no text")
    return text or "See the attachments.", checked(attachments)


def _decoded(data: object) -> bytes:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "prompt: the data is not base64") from error


def _name_of(uri: str) -> str:
    """A resource as a model is told of it: the path of a file, or the address.

    >>> _name_of("file:///srv/a%20b.py"), _name_of("https://host/x")
    ('/srv/a b.py', 'https://host/x')
    """
    parts = urlsplit(uri)
    return clean_line(unquote(parts.path) if parts.scheme == "file" else uri)[:1000]


def _select(id: str, name: str, category: str, current: str, values: Sequence[str] | Mapping[str, None]) -> Update:
    options = [{"value": value, "name": value} for value in values]
    return {
        "id": id,
        "name": name,
        "category": category,
        "type": "select",
        "currentValue": current,
        "options": options,
    }
