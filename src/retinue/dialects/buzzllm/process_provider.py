"""Providers that answer from a child process: a whole conversation of `retinue call` is one model reply.

So the rules of every model call apply to it: limits, deadline, cancellation, and a new attempt after a crash of this
process. The child has the rights of its run; its grant arrives by a descriptor and not with the prompt.

A child leads a process group of its own. It may work as long as its parent holds the other end of its grant pipe; when
that end is closed, also because the parent was killed, the child stops and exits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from retinue.core.agent import RunSpec
from retinue.core.errors import ProviderError
from retinue.core.ids import RunId
from retinue.core.log_context import logger, logs_payloads
from retinue.core.messages import AssistantMessage, Reply, StartDelta, TextDelta, UserMessage
from retinue.core.ports import Provider, Publish, Request, cached_price_of, price_of
from retinue.core.run import Limits
from retinue.core.text import cut
from retinue.dialects import child_process
from retinue.dialects.buzzllm import PROCESS
from retinue.dialects.buzzllm.settings import DEFAULTS, BuzzllmSettings
from retinue.dialects.child_process import CallRequest, Grant, Reaching, Tally
from retinue.dialects.context import ProviderFamilies, ProviderHost
from retinue.engine import LiveView
from retinue.providers.catalog import WIRES, ProviderConfig, recognises_text_calls, request_url
from retinue.sandbox.subprocess import end_group, wait_for_exit

log = logger("retinue.payloads")

MARGIN = 5.0
"""Seconds that a child has to report by itself that its time is up."""

LINGER = 1.0
"""Seconds in which the output of a child that has exited is still read."""

MAX_REASON_CHARACTERS = 2000
MAX_LINE_BYTES = 64 * 1024 * 1024
FAILED = "Error: "

COMMAND = (sys.executable, "-P", "-m", "retinue", "call")
"""`-P`: a child must not find its modules in the current folder."""

CHUNK = 64 * 1024
GRACE = 1.0
"""Seconds that a child has to stop its own processes before it is killed."""

MAX_STDERR_BYTES = 8 * 1024


def process_provider_name(families: ProviderFamilies, provider: str) -> str | None:
    """The name of the provider that uses the same models from a child process; None where no process can."""
    return f"{PROCESS}:{provider}" if _in_process(families.config(provider)) is not None else None


def _in_process(config: ProviderConfig | None) -> ProviderConfig | None:
    """The config, if another process can use it: its wire is one that `retinue call` speaks."""
    if config is None or sys.platform == "win32":
        return None
    return config if WIRES[config.wire].call_name else None


class ProcessProviders:
    """Makes providers that use the models of other providers from child processes, which share one pool."""

    def __init__(self, host: ProviderHost, settings: BuzzllmSettings | None = None) -> None:
        self._host = host
        self._settings = settings or DEFAULTS
        self._pool = ProcessPool(ready=self._settings.warm_processes)

    def __call__(self, name: str) -> Provider | None:
        """A provider that uses the models of the provider `name`; None where no process can reach it."""
        config = _in_process(self._host.families.config(name))
        if config is None:
            return None
        return ProcessProvider(self._pool, self._host, self._settings, config, self._host.find(name))


def _reaching(config: ProviderConfig, model: str) -> Reaching:
    return Reaching(
        wire=WIRES[config.wire].call_name,
        url=request_url(config, model),
        api_key_env=config.api_key_env,
        configured_wire=config.wire,
        headers=config.headers,
        prices=config.prices,
        responses_wire=config.responses_wire,
        calls_in_text=recognises_text_calls(config),
    )


class ProcessProvider:
    """Uses the models of the provider `original` with this config, each call from a new process."""

    def __init__(
        self,
        pool: ProcessPool,
        host: ProviderHost,
        settings: BuzzllmSettings,
        config: ProviderConfig,
        original: Provider | None,
    ) -> None:
        self._pool = pool
        self._tool_options = host.tool_options
        self._home = str(host.home.absolute()) if host.home is not None else ""
        self._supervisor = host.supervisor
        self._workspaces = host.workspaces
        self._seconds = settings.timeout_secs
        self._config = config
        self._original = original

    def price(self, model: str) -> tuple[int, int] | None:
        return None if self._original is None else price_of(self._original, model)

    def cached_price(self, model: str) -> int | None:
        return None if self._original is None else cached_price_of(self._original, model)

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The child's text as one reply; raises `ProviderError` with the reason that a failed child reported."""
        reaching = _reaching(self._config, request.model)
        live = self._supervisor.live(request.run_id)
        if live is None:
            raise ProviderError(f"run {request.run_id or '(none)'} is not live in this process", fault="internal")
        grant = self._grant(live, reaching, request.trace)
        try:
            child = self._pool.take()
        except OSError as error:
            reason = f"Subagent process could not be started: {error.strerror or error}"
            raise ProviderError(reason, fault="internal") from None
        stream, timeout = CallStream(), asyncio.timeout(self._seconds + MARGIN)
        try:
            async with timeout:
                code, stderr = await self._exchange(
                    child, grant, _call_request(request, reaching, live.run.run_spec), stream, publish
                )
        except TimeoutError:
            if not timeout.expired():
                raise
            reason = f"Subagent did not finish within {self._seconds:g} s and was killed"
            raise _failure(reason, stream, child.tally()) from None
        except ProviderError as error:
            raise _failure(str(error), stream, child.tally()) from None
        finally:
            self._pool.give_back(child)
        tally = child.tally()
        if code != 0:
            reason = stream.reason or _last_error(stderr) or f"Subagent exited with code {code}"
            raise _failure(reason, stream, tally)
        if not stream.complete:
            raise _failure("Subagent ended without a complete answer", stream, tally)
        message = AssistantMessage(text=stream.text)
        return Reply(message, usage=tally.usage, cost=tally.cost, stop=tally.stop, model=request.model)

    async def close(self) -> None:
        await self._pool.close()

    async def _exchange(
        self, child: ChildProcess, grant: Grant, request: CallRequest, stream: CallStream, publish: Publish
    ) -> tuple[int, str]:
        """Send the request and read the answer to its end; the exit code and the end of stderr."""
        publish(StartDelta())
        output = asyncio.ensure_future(self._read(child, stream, publish))
        stderr = asyncio.ensure_future(child.stderr())
        actions = asyncio.ensure_future(self._count_actions(child, grant.run_id))
        end = asyncio.ensure_future(child.code())
        try:
            await child.send(grant.line(), msgspec.json.encode(request))
            await asyncio.wait((output, end), return_when=asyncio.FIRST_COMPLETED)
            if output.done():
                output.result()  # raises for output that cannot be read
            code = await end
            # Processes that the child started and left behind may hold its pipes; they are not waited for.
            await asyncio.wait((output, stderr), timeout=LINGER)
            if output.done():
                output.result()
            return code, stderr.result() if stderr.done() else ""
        finally:
            for task in (output, stderr, actions, end):
                task.cancel()
            await asyncio.gather(output, stderr, actions, end, return_exceptions=True)

    async def _count_actions(self, child: ChildProcess, run_id: RunId) -> None:
        """Answer the child's requests to act: each takes an action from the windows of its run."""
        async for _ in child.action_requests():
            is_live = self._supervisor.live(run_id) is not None
            await child.answer(allow=is_live and await self._supervisor.take_action(run_id))

    async def _read(self, child: ChildProcess, stream: CallStream, publish: Publish) -> None:
        async for piece in child.stdout():
            # While this child waits for its model there is time to start the next one.
            self._pool.refill()
            for text in stream.feed(piece):
                publish(TextDelta(text))
        for text in stream.feed(b"\n"):  # a last line may have no newline
            publish(TextDelta(text))

    def _grant(self, live: LiveView, reaching: Reaching, trace: str) -> Grant:
        run_id, run_spec = live.run_id, live.run.run_spec
        return Grant(
            run_id=run_id,
            policy=self._workspaces.with_closed_targets(live.run.policy, run_spec.workspace),
            limits=self._limits(run_id),
            workspace=run_spec.workspace,
            workspace_id=self._workspaces.expected(run_spec.workspace),
            writable_folders=tuple(sorted(self._workspaces.writable)),
            identity=run_spec.identity or live.run.accepted.agent,
            memory_from=run_spec.memory_from,
            home=self._home,
            tool_options=self._tool_options,
            reaching=reaching,
            counts=self._supervisor.counts_actions(run_id),
            trace=trace,
        )

    def _limits(self, run_id: RunId) -> Limits:
        """The unspent part of the run's limits; the hold of the current call is not deducted."""
        unspent = self._supervisor.unspent(run_id)
        return Limits(
            max_input_tokens=unspent.input,
            max_output_tokens=unspent.output,
            max_tokens=unspent.tokens,
            max_nanodollars=unspent.cost,
            timeout=self._seconds,
        )


def _call_request(request: Request, reaching: Reaching, run_spec: RunSpec) -> CallRequest:
    # With a limit on tokens or cost, the request has what is left for the whole process.
    max_tokens = run_spec.max_output or child_process.DEFAULT_MAX_TOKENS
    return CallRequest(
        model=request.model,
        provider=reaching.wire,
        url=reaching.url,
        api_key_name=reaching.api_key_env or None,
        prompt="\n\n".join(message.text for message in request.messages if isinstance(message, UserMessage)),
        system_prompt=request.system,
        tool_subset=run_spec.offered,
        think=request.think,
        temperature=child_process.DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        max_tokens=max_tokens if request.max_output is None else min(max_tokens, request.max_output),
    )


def _failure(reason: str, stream: CallStream, tally: Tally) -> ProviderError:
    # `internal`, so that this process does not retry: the child has made every attempt already.
    short = cut(reason, MAX_REASON_CHARACTERS, "...").text
    return ProviderError(short, fault="internal", partial=stream.text, usage=tally.usage, cost=tally.cost)


def _last_error(stderr: str) -> str:
    """The last error that a child printed on stderr.

    >>> _last_error("noise\\nerror: unknown provider: 'x'\\n"), _last_error("Segmentation fault\\n")
    ("unknown provider: 'x'", '')
    """
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else ""


_PAYLOAD_LINE = re.compile(r"\S+ INFO retinue\.payloads (.*)")


def _log_payloads(lines: Sequence[bytes]) -> None:
    """Log what a child has logged about the contents of its run; its other lines are not shown."""
    for line in lines:
        if found := _PAYLOAD_LINE.fullmatch(line.decode("utf-8", "replace")):
            log.info("child %s", found[1])


class ChildProcess:
    """One child process, from its start until it is reaped."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        """The variables that it was started with; a child is not used if those of this process have changed."""
        grant, self._grant = os.pipe()
        self._usage, usage = os.pipe()
        os.set_blocking(self._usage, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment | {child_process.GRANT_FD: str(grant), child_process.USAGE_FD: str(usage)},
                pass_fds=(grant, usage),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._grant)
            os.close(self._usage)
            raise
        finally:
            os.close(grant)
            os.close(usage)
        self._written = b""
        self._exit_fd = _pid_descriptor(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_number(pipe), False)
        os.set_blocking(self._grant, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def send(self, grant: bytes, request: bytes) -> None:
        """Write the grant and the request; if the child does not read them, its exit reports why."""
        await asyncio.gather(_write_all(self._grant, grant), _write_all(_number(self._process.stdin), request))
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stdout(self) -> AsyncIterator[bytes]:
        return _pieces(_number(self._process.stdout))

    async def stderr(self) -> str:
        """The last part of its stderr, after it was closed; contents that it logs are logged here."""
        kept = unfinished = b""
        async for piece in _pieces(_number(self._process.stderr)):
            kept = (kept + piece)[-MAX_STDERR_BYTES:]
            if log.isEnabledFor(logging.INFO) and logs_payloads():
                *lines, unfinished = (unfinished + piece).split(b"\n")
                _log_payloads(lines)
        return kept.decode("utf-8", "replace")

    def tally(self) -> Tally:
        with suppress(BlockingIOError):
            while piece := os.read(self._usage, CHUNK):
                self._written += piece
        return child_process.last_tally(self._written)

    async def action_requests(self) -> AsyncIterator[None]:
        """One item for each of the child's requests to act; the child waits for the answer."""
        half = b""
        async for piece in _pieces(self._usage):
            self._written += piece
            *lines, half = (half + piece).split(b"\n")
            for line in lines:
                if line + b"\n" == child_process.MAY_I_ACT:
                    yield

    async def answer(self, *, allow: bool) -> None:
        await _write_all(self._grant, child_process.YES if allow else child_process.NO)

    async def code(self) -> int:
        """Wait for the exit and return its code; the rest of the process group is killed."""
        await self._exit()
        # Before the process is reaped, as another group could have its id afterwards.
        end_group(self._process)
        return self._process.wait()

    async def end(self, *, grace: float = GRACE) -> None:
        """Let the child exit by itself within `grace`, else kill its group; close everything."""
        self.close_input()
        try:
            async with asyncio.timeout(grace):
                await self._exit()
        except TimeoutError:
            pass
        finally:
            end_group(self._process)
        await self._exit()
        self._process.wait()
        self._close()

    async def _exit(self) -> None:
        if self._process.returncode is not None:
            return
        if self._exit_fd is not None:
            await wait_for_exit(self._exit_fd)
        else:
            await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def close_input(self) -> None:
        """Close the child's inputs, upon which it exits."""
        if self._grant >= 0:
            os.close(self._grant)
            self._grant = -1
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None
        if self._usage >= 0:
            os.close(self._usage)
            self._usage = -1


class ProcessPool:
    """The child processes of this process, ready, running or exiting; none outlives `close`.

    A ready child has been started and waits for its grant and its request. It serves one call.
    """

    def __init__(self, *, ready: int = 1) -> None:
        self._ready_count = ready
        self._ready: list[ChildProcess] = []
        self._endings: set[asyncio.Task[None]] = set()

    def take(self) -> ChildProcess:
        """A child for one call: a ready one, else a new one. Raises OSError if none can be started."""
        environment = dict(os.environ)
        while self._ready:
            child = self._ready.pop(0)
            if child.is_alive and child.environment == environment:
                return child
            self._end(child, grace=0.0)
        return ChildProcess(COMMAND, environment)

    def refill(self) -> None:
        """Start children until the pool has its number of ready ones."""
        with suppress(OSError):  # the next call reports it
            while len(self._ready) < self._ready_count:
                self._ready.append(ChildProcess(COMMAND, os.environ))

    def give_back(self, child: ChildProcess) -> None:
        self._end(child, grace=GRACE)

    async def close(self) -> None:
        self._ready_count = 0
        while self._ready:
            self._end(self._ready.pop(), grace=0.0)
        while self._endings:
            await asyncio.wait(tuple(self._endings))

    def _end(self, child: ChildProcess, *, grace: float) -> None:
        child.close_input()  # not in the task, so that the child exits even if the loop never runs the task
        task = asyncio.get_running_loop().create_task(child.end(grace=grace), name=f"end of process {child.pid}")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


def _pid_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when a process exits; None where the system has none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _number(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


async def _write_all(descriptor: int, data: bytes) -> None:
    """Write the data, unless the reader has closed the pipe."""
    left = memoryview(data)
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while left:
            try:
                left = left[os.write(descriptor, left[:CHUNK]) :]
            except BlockingIOError:
                await _ready(lambda ready: loop.add_writer(descriptor, ready), lambda: loop.remove_writer(descriptor))


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        try:
            piece = os.read(descriptor, CHUNK)
        except BlockingIOError:
            await _ready(lambda ready: loop.add_reader(descriptor, ready), lambda: loop.remove_reader(descriptor))
            continue
        if not piece:
            return
        yield piece


async def _ready(watch: Callable[[Callable[[], None]], object], leave: Callable[[], object]) -> None:
    """Wait until a descriptor that `watch` registers is ready."""
    ready = asyncio.get_running_loop().create_future()
    watch(lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        leave()


class CallStream:
    r"""An incremental parser of a child's stdout: the text of its `output_text` events.

    Any spacing is accepted, and lines that are no server-sent event are ignored. A block that ended with an error gives
    the reason if the process fails; the event `response_end` shows that nothing is missing.

    >>> stream = CallStream()
    >>> stream.feed(b'noise\nevent: output_text\ndata: {"delta":"Hel'), stream.feed(b'lo"}\n\nevent: response_end\n')
    ([], ['Hello'])
    >>> stream.text, stream.complete, stream.reason
    ('Hello', True, '')
    """

    def __init__(self) -> None:
        self.reason = ""
        """The error that the process reported."""
        self.complete = False
        self._pieces: list[str] = []
        self._event = ""
        self._line_so_far: list[bytes] = []
        self._length = 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, data: bytes) -> list[str]:
        """The texts that these bytes complete; raises `ProviderError` for an event that cannot be decoded."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._line_so_far, lines[0]))
            self._line_so_far, self._length = [], 0
        self._line_so_far.append(rest)
        self._length += len(rest)
        if self._length > MAX_LINE_BYTES:
            raise ProviderError(f"Subagent wrote a line of more than {MAX_LINE_BYTES} bytes", fault="internal")
        texts = [text for line in lines if (text := self._line(line.strip()))]
        self._pieces += texts
        return texts

    def _line(self, line: bytes) -> str:
        name, colon, value = line.partition(b":")
        if colon and name == b"event":
            self._event = value.strip().decode("utf-8", "replace")
            self.complete = self.complete or self._event == "response_end"
        elif colon and name == b"data" and self._event in ("output_text", "block_end"):
            return self._data(value.strip())
        return ""

    def _data(self, value: bytes) -> str:
        try:
            delta = msgspec.json.decode(value, type=dict[str, Any]).get("delta", "")
        except (msgspec.DecodeError, UnicodeError):
            delta = None
        if self._event == "block_end":
            if isinstance(delta, str) and delta.startswith(FAILED):
                self.reason = delta.removeprefix(FAILED)
            return ""
        if not isinstance(delta, str):
            raise ProviderError("Subagent wrote an output_text event that cannot be read", fault="internal")
        return delta
