"""An MCP server for tests, in the standard library alone; what it does is written in the JSON file that it is given.

`tools` are listed as they are. A call of `echo` returns its arguments, `crash` ends the process, `hang` never answers,
`flood` sends progress without end, `ping` 20,000 requests, `huge` sends a line of 20 MB, `many` five million empty
lists, `env` the names of its variables, `path` its PATH, `roots` asks the client for its roots, `image` returns what
claims to be an image, `chart` a text and an image, `charts` 30 images, `poster` one image of so many MiB, or two below
5, `read` and `write` open the file `path`, `leave` starts a process that leaves the group.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

IMAGE = {"type": "image", "data": "iVBORw0KGgpkb3Rz", "mimeType": "image/png"}

behaviour: dict[str, Any] = {}
folder = Path()


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def count(what: str) -> None:
    with suppress(OSError), (folder / what).open("a") as counted:  # the folder may be read-only
        counted.write("x")


def reached(path: str, mode: str) -> str:
    """What happens when a file is opened."""
    try:
        with open(path, mode) as file:
            return file.read() if mode == "r" else f"written {file.write('x')}"
    except OSError as error:
        return str(error.strerror)


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    count("calls")
    match name:
        case "echo":
            return text(json.dumps(arguments))
        case "crash":
            os._exit(3)
        case "crash_once":
            if not (folder / "crashed").exists():
                (folder / "crashed").touch()
                os._exit(3)
            return text("came back")
        case "hang":
            return None
        case "flood":
            while True:
                send({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})
        case "ping":
            for number in range(20_000):
                send({"id": f"p{number}", "method": "ping"})
                sys.stdin.readline()
            return text("never read")
        case "huge":
            return text("x" * 20_000_000)
        case "many":
            sys.stdout.write('{"jsonrpc":"2.0","method":"x","params":{"x":[' + "[]," * 5_000_000 + "1]}}\n")
            return text("never read")
        case "long":
            return text("y" * 200_000)
        case "env":
            return text(" ".join(sorted(os.environ)))
        case "cwd":
            return text(str(Path.cwd()))
        case "path":
            return text(os.environ["PATH"])
        case "roots":
            send({"id": "r", "method": "roots/list"})
            answer = json.loads(sys.stdin.readline())
            return text(json.dumps(answer["result"]["roots"]))
        case "image":
            return {"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}]}
        case "chart":
            return {"content": [{"type": "text", "text": "The chart:"}, IMAGE]}
        case "charts":
            return {"content": [IMAGE] * 30}
        case "poster":
            size = arguments["megabytes"]
            data = base64.b64encode(b"\x89PNG".ljust(size << 20, b".")).decode()
            image = {"type": "image", "data": data, "mimeType": "image/png"}
            return {"content": [{"type": "text", "text": f"{size} MiB"}, *[image] * (1 if size > 4 else 2)]}
        case "matched":
            return {"content": [], "structuredContent": {"text": "a" * 40 + "!"}}
        case "structured":
            return {"content": [], "structuredContent": {"size": 10}}
        case "escape":
            return text("red \x1b[31malert\x1b]0;title\x07")
        case "read":
            return text(reached(arguments["path"], "r"))
        case "write":
            return text(reached(arguments["path"], "w"))
        case "leave":
            child = [sys.executable, "-c", "import time; time.sleep(600)", str(folder)]
            subprocess.Popen(child, start_new_session=True)
            return text("left")
        case "fail":
            return text("no such page") | {"isError": True}
        case _:
            return text(f"{name} was called")


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    params: dict[str, Any] = message.get("params") or {}
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "serverInfo": {"name": "test", "version": "1"},
            }
        case "tools/list":
            count("listed")
            if "silent" in behaviour:
                return None
            if "pages" in behaviour:  # a list without an end
                return {"tools": behaviour["tools"], "nextCursor": "again"}
            return {"tools": behaviour["tools"]}
        case "tools/call":
            if params["name"] == "meta":  # the `_meta` of its request
                return text(json.dumps(params.get("_meta") or {}))
            return call(params["name"], params.get("arguments") or {})
        case "resources/list":
            return {"resources": [{"uri": "file:///notes.txt", "name": "notes"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": "Ten connections."}]}
        case "prompts/list":
            return {"prompts": [{"name": "review", "arguments": [{"name": "file"}]}]}
        case "prompts/get":
            said = f"Review {params['arguments']['file']}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
        case _:
            send({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
            return None


def main(file: Path) -> None:
    global folder
    folder = file.parent
    behaviour.update(json.loads(file.read_text()))
    count("started")
    if behaviour.get("dies"):
        sys.exit("no license")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message and (result := answer(message)) is not None:
            send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
