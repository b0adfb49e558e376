"""An agent program for tests: speaks the Agent Client Protocol on stdin and stdout, and plays the parts of a script.

The script is the JSON file that the variable `SCRIPT` names: a list of turns, one for each prompt; a turn is a list of
steps, each a list of a word and its values. What the client sends is appended to the file `LOG`, one line of JSON for
each message. A program that loads a session plays the turns in `RESUMED`, if there are any.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

SESSION = "s-1"


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def log(message: object) -> None:
    with suppress(OSError), open(os.environ["LOG"], "a") as file:
        file.write(json.dumps(message) + "\n")


def receive() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message = json.loads(line)
    log(message)
    return message


def update(**fields: Any) -> None:
    send({"method": "session/update", "params": {"sessionId": SESSION, "update": fields}})


def say(text: str) -> None:
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


class Turn:
    """One prompt, answered step by step."""

    def __init__(self, id: object, prompt: str) -> None:
        self.id = id
        self.prompt = prompt
        self.is_open = True
        self.cancelled = False
        self.asked = 100

    def end(self, reason: str = "end_turn", **more: Any) -> None:
        self.is_open = False
        send({"id": self.id, "result": {"stopReason": "cancelled" if self.cancelled else reason, **more}})

    def wait_for(self, id: int) -> dict[str, Any]:
        while True:
            message = receive()
            if message.get("method") == "session/cancel":
                self.cancelled = True
            elif message.get("id") == id:
                return message

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        send({"id": self.asked, "method": method, "params": {"sessionId": SESSION, **params}})
        return self.wait_for(self.asked)

    def step(self, word: str, *values: Any) -> None:
        match word:
            case "say":
                say(values[0])
            case "echo":
                say(self.prompt)
            case "think":
                update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": values[0]})
            case "do":  # a call without asking
                fields = {"toolCallId": values[0], "title": values[1], "kind": values[2], "rawInput": {"x": 1}}
                update(sessionUpdate="tool_call", status="in_progress", **fields)
                content = [{"type": "content", "content": {"type": "text", "text": values[3]}}]
                update(sessionUpdate="tool_call_update", toolCallId=values[0], status="completed", content=content)
            case "ask":  # a call with a permission; the rest are the steps if it is given
                fields = {"toolCallId": values[0], "title": values[1], "kind": values[2], "status": "pending"}
                diff = {"type": "diff", "path": values[1], "oldText": "a", "newText": "b"}
                options = [
                    {"optionId": "always", "name": "Always", "kind": "allow_always"},
                    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                    {"optionId": "no", "name": "No", "kind": "reject_once"},
                ]
                call = {**fields, "content": [diff]}
                answer = self.request("session/request_permission", {"toolCall": call, "options": options})
                outcome = answer["result"]["outcome"]
                if outcome.get("optionId") == "yes":
                    content = [{"type": "content", "content": {"type": "text", "text": f"done {values[1]}"}}]
                    update(sessionUpdate="tool_call_update", toolCallId=values[0], status="completed", content=content)
                else:
                    say(f"({outcome.get('optionId') or outcome['outcome']}) ")
                    self.cancelled = self.cancelled or outcome["outcome"] == "cancelled"
            case "read":  # a request that is not offered
                answer = self.request("fs/read_text_file", {"path": values[0]})
                say(json.dumps(answer.get("error", answer.get("result"))))
            case "cost":
                update(sessionUpdate="usage_update", used=10, size=100, cost={"amount": values[0], "currency": "USD"})
            case "usage":
                self.end(usage={"totalTokens": 30, "inputTokens": 20, "outputTokens": 10})
            case "raw":
                sys.stdout.write(values[0] + "\n")
                sys.stdout.flush()
            case "sleep":
                time.sleep(values[0])
            case "flood":
                for _ in range(values[0]):
                    say(values[1])
            case "calls":
                for number in range(values[0]):
                    update(sessionUpdate="tool_call", toolCallId=f"c{number}", title="many", status="pending")
            case "die":
                print("the disk is gone", file=sys.stderr)
                sys.stderr.flush()
                os._exit(3)
            case "die_once":
                if not os.path.exists(values[0]):
                    open(values[0], "w").close()
                    os._exit(3)
            case "hang":  # ignores everything, and has a child that does so, too
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(60)"])
                log({"pids": [os.getpid(), child.pid]})
                say("working")
                while True:
                    time.sleep(60)
            case "wait":  # for a cancel
                log({"pids": [os.getpid()]})
                while receive().get("method") != "session/cancel":
                    pass
                self.cancelled = True
            case "write":
                try:
                    with open(values[0], "w") as file:
                        file.write("x")
                    say("written ")
                except OSError as error:
                    say(f"{error.strerror} ")
            case "stop":
                self.end(values[0])
            case "error":
                self.is_open = False
                send({"id": self.id, "error": {"code": values[0], "message": values[1]}})
            case _:
                raise ValueError(word)


def main() -> None:
    with open(os.environ["SCRIPT"]) as file:
        turns = json.load(file)
    abilities = json.loads(os.environ.get("ABILITIES", '{"loadSession": true}'))
    while True:
        message = receive()
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        match method:
            case "initialize":
                send({"id": id, "result": {"protocolVersion": 1, "agentCapabilities": abilities}})
            case "session/new":
                models = {"currentModelId": "m1", "availableModels": [{"modelId": "m1", "name": "One"}]}
                send({"id": id, "result": {"sessionId": SESSION, "models": models}})
            case "session/load" if abilities.get("_meta", {}).get("forgets"):
                send({"id": id, "error": {"code": -32603, "message": "Internal error: no such session"}})
            case "session/load":
                say("an old text that is repeated")
                turns = json.loads(os.environ.get("RESUMED", "[]")) or turns
                send({"id": id, "result": {}})
            case "session/set_model":
                send({"id": id, "result": {}})
            case "session/prompt":
                prompt = "|".join(block.get("text", block["type"]) for block in params["prompt"])
                turn = Turn(id, prompt)
                for step in turns.pop(0):
                    turn.step(*step)
                    if turn.cancelled:
                        break
                if turn.is_open:
                    turn.end()
            case _:
                pass


if __name__ == "__main__":
    main()
