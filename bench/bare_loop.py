"""The floor: the workload in a hand-written loop, with nothing that the work does not need.

aiohttp and typed msgspec, one session, no checks, no limits, no journal.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
from msgspec import Struct

from bench.work import DELEGATE, ECHO, LEAD, TASK, WORKER, Cost, Job, Work, job_from_arguments, measure, run_side

Messages = list[dict[str, object]]

_HEADERS = {"Content-Type": "application/json"}


class FunctionPiece(Struct):
    name: str | None = None
    arguments: str = ""


class CallPiece(Struct):
    index: int
    function: FunctionPiece
    id: str | None = None


class Delta(Struct):
    content: str | None = None
    tool_calls: list[CallPiece] = []


class Choice(Struct):
    delta: Delta
    finish_reason: str | None = None


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class Chunk(Struct):
    choices: list[Choice]
    usage: Usage | None = None


class Call(Struct):
    id: str
    name: str
    arguments: str


class Delegation(Struct):
    task: str


class Echo(Struct):
    text: str


encode = msgspec.json.Encoder().encode
read_chunk = msgspec.json.Decoder(Chunk).decode
read_delegation = msgspec.json.Decoder(Delegation).decode
read_echo = msgspec.json.Decoder(Echo).decode


def tool(name: str, description: str, parameter: str, about: str) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string", "description": about}},
        "required": [parameter],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


DELEGATION_TOOLS = [tool(*DELEGATE)]
ECHO_TOOLS = [tool(*ECHO)]


class Loop:
    """The session, URL and model of the requests."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.session = session
        self.url = url
        self.model = model

    async def ask(self, messages: Messages, tools: list[dict[str, object]]) -> tuple[str, list[Call]]:
        body = encode(
            {
                "model": self.model,
                "messages": messages,
                "tools": tools,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        words: list[str] = []
        calls: list[Call] = []
        rest = b""
        async with self.session.post(self.url, data=body, headers=_HEADERS) as response:
            async for piece in response.content.iter_any():
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    if block == b"data: [DONE]":
                        continue
                    for choice in read_chunk(block[6:]).choices:
                        delta = choice.delta
                        if delta.content:
                            words.append(delta.content)
                        for part in delta.tool_calls:
                            if part.function.name:
                                calls.append(Call(part.id or "", part.function.name, ""))
                            calls[part.index].arguments += part.function.arguments
        return "".join(words), calls

    async def work(self, task: str) -> str:
        messages: Messages = [{"role": "system", "content": WORKER}, {"role": "user", "content": task}]
        while True:
            text, calls = await self.ask(messages, ECHO_TOOLS)
            if not calls:
                return text
            messages.append(as_message(text, calls))
            for call in calls:
                messages.append(as_result(call, read_echo(call.arguments).text))

    async def lead(self) -> list[str]:
        messages: Messages = [{"role": "system", "content": LEAD}, {"role": "user", "content": TASK}]
        text, calls = await self.ask(messages, DELEGATION_TOOLS)
        messages.append(as_message(text, calls))
        async with asyncio.TaskGroup() as workers:
            tasks = [workers.create_task(self.work(read_delegation(call.arguments).task)) for call in calls]
        answers = [task.result() for task in tasks]
        messages.extend(map(as_result, calls, answers))
        text, _ = await self.ask(messages, DELEGATION_TOOLS)
        return [*answers, text]


def as_message(text: str, calls: list[Call]) -> dict[str, object]:
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    made = [
        {"id": call.id, "type": "function", "function": function}
        for call, function in zip(calls, functions, strict=True)
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def as_result(call: Call, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


async def side(job: Job) -> Cost:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def do(work: Work) -> list[str]:
            return await Loop(session, f"{job.url}/chat/completions", work.model).lead()

        return await measure(job, do)


if __name__ == "__main__":
    job = job_from_arguments()
    run_side(job, lambda: side(job))
