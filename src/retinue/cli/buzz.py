"""`retinue buzz`: one question to a model at a whole address.

Arguments, colours, events and last line follow the document of `retinue call`; see docs/reference/call.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import ANSWERS, OUTPUT, option
from retinue.cli.output.terminal import INTERRUPTED, printable, say, stdout_for_answers_alone, write_styled
from retinue.cli.run import prompt_text

if TYPE_CHECKING:
    from retinue.cli.output.sse import SseKind
    from retinue.dispatch.one_call import OneCall

DONE = "=== [ DONE ] ==="
COLOURS = {"tool_call": "\x1b[96m", "tool_result": "\x1b[92m", "reasoning_content": "\x1b[93m"}
RESET = "\x1b[0m"


def buzz(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The whole address of requests, such as https://HOST/v1/messages.")
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The question; - reads it from stdin.")],
    provider: Annotated[
        str,
        option(
            "--provider",
            metavar="W",
            help="openai-chat, openai-responses, anthropic or vertexai-anthropic.",
            panel=ANSWERS,
        ),
    ],
    api_key_name: Annotated[
        str,
        option(
            "--api-key-name",
            metavar="ENV",
            help='The environment variable that holds the key; "" sends none.',
            panel=ANSWERS,
        ),
    ],
    system_prompt: Annotated[
        str,
        option(
            "--system-prompt",
            metavar="TEXT_OR_NAME",
            help="The system prompt: a text, or a prompt's name such as codesearch, which brings its tools.",
        ),
    ] = "",
    max_tokens: Annotated[
        int, option("--max-tokens", metavar="N", min=1, help="Tokens of one reply.", panel=ANSWERS)
    ] = 8192,
    temperature: Annotated[
        float, option("--temperature", metavar="T", min=0, max=2, help="From 0 to 2.", panel=ANSWERS)
    ] = 0.8,
    think: options.ThinkFlag = False,
    sse: Annotated[bool, option("--sse", "-S", help="Print server-sent events.", panel=OUTPUT)] = False,
    brief: Annotated[bool, option("--brief", "-b", help="No tool calls and no results.", panel=OUTPUT)] = False,
    output_schema: options.OutputSchemaFlag = None,
    output_json: options.OutputJsonFlag = False,
) -> int:
    """Ask a model at this address one question, and print each reply when it is complete.

    A blank line and "=== [ DONE ] ===" follow the answer. Nothing is stored. Exit status: 0 answered, 1 failed, 2 bad
    usage, 130 interrupted.
    """
    from retinue.dialects.child_process import CallRequest
    from retinue.dispatch.one_call import command_call

    request = CallRequest(
        model=_required(model, "MODEL"),
        provider=provider,
        url=_required(url, "URL"),
        api_key_name=options.utf8(api_key_name, "--api-key-name"),
        prompt=prompt_text(prompt),
        system_prompt=options.utf8(system_prompt, "--system-prompt"),
        think=think,
        temperature=options.countable("--temperature", temperature),
        max_tokens=max_tokens,
    )
    work = command_call(request, output=options.required_output(output_schema, output_json))
    work.check_key("--api-key-name")
    return perform(_answer(work, sse=sse, brief=brief))


def _required(given: str, name: str) -> str:
    if not options.utf8(given, name).strip():
        raise typer.BadParameter(f"{name} is empty")
    return given


async def _answer(work: OneCall, *, sse: bool, brief: bool) -> int:
    from retinue.cli.output.progress import print_notes
    from retinue.cli.output.sse import HeldStream
    from retinue.cli.output.sse import sse as as_event

    render = as_event if sse else PlainText(coloured=not os.environ.get("NO_COLOR"))
    structured, wire = work.request.output is not None, work.request.provider

    def open_output() -> HeldStream:
        return HeldStream(structured=structured, brief=brief, wire=wire, render=render, write=write_styled)

    with interrupts() as stop, stdout_for_answers_alone():
        outcome = await work.answer(work.open(), open_output, stop)
    if outcome is None:
        if not stop.is_set():
            return 1  # stdout was closed
        say("interrupted")
        return INTERRUPTED
    if outcome.result != "completed":
        say(f"error: {outcome.error or outcome.reason}")
        return 1
    print_notes(outcome)
    return 0


class PlainText:
    r"""Makes text of events: calls, results and reasoning in colours, and a line at the end of an answer.

    On a terminal, control characters of the model are replaced by visible ones.

    >>> text = PlainText(coloured=True)
    >>> "".join((text("reasoning_content", "hm"), text("output_text", "42"), text("block_end"), text("response_end")))
    '\x1b[93mhm\x1b[0m42\n\n=== [ DONE ] ===\n'
    """

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._at_line_start = True
        self._failed = False

    def __call__(self, kind: SseKind, delta: str = "", id: str = "") -> str:
        text = self._text(kind, delta)
        if text:
            self._at_line_start = text.removesuffix(RESET).endswith("\n")
        return text

    def _text(self, kind: SseKind, delta: str) -> str:
        line_end = "" if self._at_line_start else "\n"
        match kind:
            case "response_start" | "restarted":
                return ""
            case "block_end":
                self._failed = bool(delta)  # the error is printed on stderr
                return line_end
            case "response_end":
                return line_end if self._failed else f"{line_end}\n{DONE}\n"
            case "output_text" | "output_structured":
                return printable(delta)
            case "reasoning_content" | "tool_call" | "tool_result":
                colour, reset = (COLOURS[kind], RESET) if self._coloured else ("", "")
                return f"{colour}{printable(delta)}{reset}"
