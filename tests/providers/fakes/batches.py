"""Fake batch servers of Anthropic, OpenAI and Gemini, as strict as the real ones.

A batch ends after a number of looks at it. `answer` returns the text of a reply for the last text of a request, or a
fault: a status for an error, `expired` or `canceled`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from retinue.testing.fake_chat import JSON
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest

Body: TypeAlias = dict[str, Any]
Answer: TypeAlias = "str | int | Body"
"""A text, a status, `expired` or `canceled`, or a whole answer of the vendor."""


@dataclass(slots=True)
class FakeBatch:
    """A batch at the vendor: its requests by their ids, and how far it is."""

    id: str
    requests: dict[str, Body]
    created: float
    named: str = ""
    looks: int = 0
    is_over: bool = False
    was_cancelled: bool = False


@dataclass(slots=True, eq=False)
class FakeBatches:
    """The batches of one vendor; `wire` says which. `now` is the vendor's clock."""

    wire: str
    answer: Callable[[str], Answer]
    looks: int = 2
    now: Callable[[], float] = lambda: 1_800_000_000.0
    before: Callable[[ReceivedRequest], FakeResponse | None] = lambda heard: None
    """Returns a response in place of the vendor's, such as an error."""
    after_submission: Callable[[], FakeResponse | None] = lambda: None
    """Returns a response in place of the answer to a submission, which was taken all the same."""
    batches: dict[str, FakeBatch] = field(default_factory=dict[str, FakeBatch])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def server(self) -> FakeServer:
        return FakeServer(self.respond)

    def respond(self, heard: ReceivedRequest) -> FakeResponse:
        if (instead := self.before(heard)) is not None:
            return instead
        routes = {"anthropic": self._anthropic, "responses": self._openai, "chat": self._openai, "gemini": self._gemini}
        return routes[self.wire](heard)

    # ---- what all have in common -------------------------------------------------------------------------------------

    def add(self, requests: dict[str, Body], named: str = "") -> FakeBatch:
        batch = FakeBatch(f"batch_{len(self.batches) + 1}", requests, self.now(), named)
        self.batches[batch.id] = batch
        return batch

    def _look(self, batch: FakeBatch) -> FakeBatch:
        batch.looks += 1
        batch.is_over = batch.is_over or batch.looks >= self.looks
        return batch

    def _cancel(self, batch: FakeBatch) -> FakeBatch:
        batch.was_cancelled = batch.is_over = True
        return batch

    def _answers(self, batch: FakeBatch, last_text: Callable[[Body], str]) -> dict[str, Answer]:
        """The answers in another order than the requests."""
        found = {
            custom_id: "canceled" if batch.was_cancelled else self.answer(last_text(body))
            for custom_id, body in batch.requests.items()
        }
        return dict(reversed(found.items()))

    # ---- Anthropic ---------------------------------------------------------------------------------------------------

    def _anthropic(self, heard: ReceivedRequest) -> FakeResponse:
        if "anthropic-version" not in heard.headers:
            return _anthropic_error(400, "anthropic-version: header is required")
        path = heard.path.removeprefix("/v1/messages/batches")
        if path == heard.path:
            return _anthropic_error(404, "Not found")
        if not path and heard.method == "POST":
            requests: dict[str, Body] = {}
            for number, each in enumerate(heard.body.get("requests", [])):
                custom_id = each.get("custom_id", "")
                if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", custom_id) or custom_id in requests:
                    return _anthropic_error(400, f"requests.{number}.custom_id: String should match pattern")
                if each["params"].get("stream") or "max_tokens" not in each["params"]:
                    return _anthropic_error(400, f"requests.{number}.params: not a message")
                requests[custom_id] = each["params"]
            if not requests:
                return _anthropic_error(400, "requests: List should have at least 1 item")
            batch = self.add(requests)
            return self.after_submission() or _json(_message_batch(batch))
        if not path:
            data = [_message_batch(each) for each in reversed(self.batches.values())]
            return _json({"data": data, "has_more": False, "first_id": None, "last_id": None})
        batch_id, _, action = path.removeprefix("/").partition("/")
        batch = self.batches.get(batch_id)
        if batch is None:
            return _anthropic_error(404, f"Batch {batch_id} not found")
        if action == "cancel" and heard.method == "POST":
            return _json(_message_batch(self._cancel(batch)))
        if action == "results":
            if not batch.is_over:
                return _anthropic_error(400, "The batch has not ended")
            return _lines(_anthropic_line(*each) for each in self._answers(batch, _last_of_messages).items())
        return _json(_message_batch(self._look(batch)))

    # ---- OpenAI ------------------------------------------------------------------------------------------------------

    def _openai(self, heard: ReceivedRequest) -> FakeResponse:
        path = heard.path.removeprefix("/v1")
        if path == "/files" and heard.method == "POST":
            return self._upload(heard)
        if path.startswith("/files/") and path.endswith("/content"):
            content = self.files.get(path.removeprefix("/files/").removesuffix("/content"))
            return _openai_error(404, "No such file") if content is None else FakeResponse(pieces=(content,))
        if path == "/batches" and heard.method == "POST":
            return self._create(heard.body)
        if path == "/batches":
            data = [self._openai_batch(each) for each in reversed(self.batches.values())]
            return _json({"object": "list", "data": data, "has_more": False})
        batch_id, _, action = path.removeprefix("/batches/").partition("/")
        batch = self.batches.get(batch_id)
        if batch is None:
            return _openai_error(404, f"No batch found with id '{batch_id}'")
        return _json(self._openai_batch(self._cancel(batch) if action == "cancel" else self._look(batch)))

    def _upload(self, heard: ReceivedRequest) -> FakeResponse:
        boundary = re.fullmatch(r"multipart/form-data; boundary=(\w+)", heard.headers["content-type"])
        parts = heard.raw.split(b"--" + boundary[1].encode()) if boundary is not None else []
        fields = {
            name[1].decode(): part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            for part in parts
            if (name := re.search(rb' name="(\w+)"', part)) is not None
        }
        if fields.get("purpose") != b"batch" or "file" not in fields:
            return _openai_error(400, "'purpose' and 'file' are required")
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = fields["file"]
        return _json({"id": file_id, "object": "file", "purpose": "batch", "bytes": len(fields["file"])})

    def _create(self, body: Body) -> FakeResponse:
        endpoint = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}[self.wire]
        if body.get("completion_window") != "24h" or body.get("endpoint") != endpoint:
            return _openai_error(400, "Invalid 'endpoint' or 'completion_window'")
        if not all(isinstance(value, str) for value in body.get("metadata", {}).values()):
            return _openai_error(400, "metadata: expected strings")
        requests: dict[str, Body] = {}
        for line in self.files[body["input_file_id"]].splitlines():
            each = msgspec.json.decode(line)
            if each["url"] != endpoint or each["method"] != "POST" or each["body"].get("stream"):
                return _openai_error(400, "a line of the file is not a request")
            requests[each["custom_id"]] = each["body"]
        if len({request["model"] for request in requests.values()}) != 1:
            return _openai_error(400, "all requests must be for the same model")
        batch = self.add(requests, msgspec.json.encode(body.get("metadata")).decode())
        return self.after_submission() or _json(self._openai_batch(batch))

    def _openai_batch(self, batch: FakeBatch) -> Body:
        row: Body = {"id": batch.id, "object": "batch", "created_at": int(batch.created), "status": "in_progress"}
        row["metadata"] = msgspec.json.decode(batch.named) if batch.named else None
        if batch.is_over:
            lines = [_openai_line(self.wire, *each) for each in self._answers(batch, _last_of_openai).items()]
            good = [line for line in lines if line["error"] is None and line["response"]["status_code"] == 200]
            for name, of_file in (("output_file_id", good), ("error_file_id", [x for x in lines if x not in good])):
                if of_file:
                    row[name] = f"{name}_{batch.id}"
                    self.files[row[name]] = b"\n".join(map(msgspec.json.encode, of_file)) + b"\n"
            row["status"] = "cancelled" if batch.was_cancelled else "completed"
        return row

    # ---- Gemini ------------------------------------------------------------------------------------------------------

    def _gemini(self, heard: ReceivedRequest) -> FakeResponse:
        path = heard.path.removeprefix("/v1beta/")
        if path.endswith(":batchGenerateContent") and heard.method == "POST":
            batch = heard.body.get("batch", {})
            inline = batch.get("inputConfig", {}).get("requests", {}).get("requests", [])
            if not batch.get("displayName") or not inline:
                return _google_error(400, "batch.displayName and batch.inputConfig are required")
            made = self.add({each["metadata"]["key"]: each["request"] for each in inline}, batch["displayName"])
            return self.after_submission() or _json(self._operation(made))
        if path == "batches":
            return _json({"operations": [self._operation(each) for each in reversed(self.batches.values())]})
        name, _, action = path.removeprefix("batches/").partition(":")
        found = self.batches.get(name)
        if found is None:
            return _google_error(404, f"batches/{name} is not found")
        if action == "cancel":
            self._cancel(found)
            return _json({})
        return _json(self._operation(self._look(found)))

    def _operation(self, batch: FakeBatch) -> Body:
        state = "CANCELLED" if batch.was_cancelled else "SUCCEEDED" if batch.is_over else "RUNNING"
        metadata = {"displayName": batch.named, "state": f"BATCH_STATE_{state}", "createTime": "2026-11-18T00:00:00Z"}
        operation: Body = {"name": f"batches/{batch.id}", "metadata": metadata}
        if batch.is_over:
            answers = [_google_response(*each) for each in self._answers(batch, _last_of_contents).items()]
            operation |= {"done": True, "response": {"inlinedResponses": {"inlinedResponses": answers}}}
        return operation


def _json(body: Body, status: int = 200) -> FakeResponse:
    return FakeResponse(status=status, headers=JSON, pieces=(msgspec.json.encode(body),))


def _lines(lines: Any) -> FakeResponse:
    return FakeResponse(pieces=tuple(msgspec.json.encode(line) + b"\n" for line in lines), chunk=50)


def _message_batch(batch: FakeBatch) -> Body:
    count, ended = len(batch.requests), batch.is_over
    counts = {"processing": 0 if ended else count, "succeeded": count if ended else 0, "errored": 0, "canceled": 0}
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": counts | {"expired": 0},
        "created_at": msgspec.to_builtins(_rfc(batch.created)),
        "results_url": "https://evil.example/results" if ended else None,
    }


def _rfc(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat()


def _anthropic_error(status: int, message: str) -> FakeResponse:
    return _json({"type": "error", "error": {"type": "invalid_request_error", "message": message}}, status)


def _anthropic_line(custom_id: str, answer: Answer) -> Body:
    match answer:
        case int():
            kind = {400: "invalid_request_error", 529: "overloaded_error"}[answer]
            error = {"type": "error", "error": {"type": kind, "message": f"told {answer}"}}
            return {"custom_id": custom_id, "result": {"type": "errored", "error": error}}
        case "expired" | "canceled":
            return {"custom_id": custom_id, "result": {"type": answer}}
        case dict():
            return {"custom_id": custom_id, "result": {"type": "succeeded", "message": answer}}
        case _:
            message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
            message |= {"content": [{"type": "text", "text": answer}]}
            usage = {"usage": {"input_tokens": 100, "output_tokens": 10}}
            return {"custom_id": custom_id, "result": {"type": "succeeded", "message": message | usage}}


def _last_of_messages(body: Body) -> str:
    return str(body["messages"][-1]["content"][-1].get("text", body["messages"][-1]["content"][-1].get("content")))


def _last_of_openai(body: Body) -> str:
    last = (body.get("input") or body["messages"])[-1]
    content = last.get("content", last.get("output"))
    return content if isinstance(content, str) else content[0]["text"]


def _last_of_contents(body: Body) -> str:
    part = body["contents"][-1]["parts"][-1]
    return part.get("text") or part["functionResponse"]["response"]["result"]


def _openai_error(status: int, message: str) -> FakeResponse:
    return _json({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


def _openai_line(wire: str, custom_id: str, answer: Answer) -> Body:
    line: Body = {"id": "batch_req_1", "custom_id": custom_id, "response": None, "error": None}
    match answer:
        case int():
            body = {"error": {"message": f"told {answer}", "type": "x"}}
            return line | {"response": {"status_code": answer, "request_id": "r", "body": body}}
        case "expired":
            return line | {"error": {"code": "batch_expired", "message": "not in time"}}
        case "canceled":
            return line | {"error": {"code": "batch_cancelled", "message": "cancelled"}}
        case dict():
            return line | {"response": {"status_code": 200, "body": answer}}
        case _ if wire == "chat":
            message = {"role": "assistant", "content": answer}
            body = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}}
            return line | {"response": {"status_code": 200, "body": body | usage}}
        case _:
            content = [{"type": "output_text", "text": answer, "annotations": ()}]
            output = [{"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content}]
            body = {"id": "r", "model": "m", "status": "completed", "output": output}
            usage = {"usage": {"input_tokens": 100, "output_tokens": 10}}
            return line | {"response": {"status_code": 200, "body": body | usage}}


def _google_error(status: int, message: str) -> FakeResponse:
    return _json({"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}, status)


def _google_response(key: str, answer: Answer) -> Body:
    made: Body = {"metadata": {"key": key}}
    match answer:
        case int():
            return made | {"error": {"code": {400: 3, 529: 14}[answer], "message": f"told {answer}"}}
        case "expired":
            return made | {"error": {"code": 4, "message": "expired"}}
        case "canceled":
            return made | {"error": {"code": 1, "message": "cancelled"}}
        case dict():
            return made | {"response": answer}
        case _:
            content = {"role": "model", "parts": [{"text": answer}]}
            usage = {"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10}}
            return made | {"response": {"candidates": [{"content": content, "finishReason": "STOP"}], **usage}}
