"""Providers that answer from a child process: `retinue call`, with its tools, is one model reply here.

So the whole conversation of the child is one turn of its run, and what holds for every model call holds for it: limits,
deadline, cancellation, and being asked again after a crash of this process. The child may do what its run may do; its
grant arrives by a descriptor and not with the prompt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.ids import RunId
from retinue.core.messages import AssistantMessage, Reply, StartDelta, TextDelta, UserMessage
from retinue.core.ports import Provider, Publish, Request, price_of
from retinue.core.run import Limits
from retinue.core.text import cut
from retinue.dialects.buzzllm import PROCESS
from retinue.dialects.buzzllm.process_pool import ChildProcess, ProcessPool
from retinue.dialects.buzzllm.process_stream import CallStream
from retinue.dialects.buzzllm.settings import DEFAULTS, BuzzllmSettings
from retinue.dialects.child_process import DEFAULT_TEMPERATURE, CallRequest, Grant, Reaching, Tally
from retinue.dialects.context import ProviderFamilies, ProviderHost
from retinue.engine import LiveView, Supervisor
from retinue.providers.catalog import WIRES, ProviderConfig, request_url
from retinue.tools.dependencies import ToolOptions

MARGIN = 5.0
"""Seconds that a child has to report by itself that its time is over."""

LINGER = 1.0
"""Seconds in which the output of a child that has exited is still read."""

MAX_REASON_CHARACTERS = 2000


def process_provider_name(families: ProviderFamilies, provider: str) -> str | None:
    """The name of the provider that uses the same models from a child process; None where no process can."""
    return f"{PROCESS}:{provider}" if _in_process(families.config(provider)) is not None else None


def _in_process(config: ProviderConfig | None) -> ProviderConfig | None:
    """The same provider, if another process can reach it: it has a config, and a wire that `retinue call` speaks."""
    if config is None or sys.platform == "win32":
        return None
    return config if WIRES[config.wire].call_name else None


class ProcessProviders:
    """Makes providers that use the models of others from child processes; all share one pool of processes."""

    def __init__(self, host: ProviderHost, settings: BuzzllmSettings | None = None) -> None:
        self._host = host
        self._settings = settings or DEFAULTS
        self._pool = ProcessPool(ready=self._settings.warm_processes)

    def __call__(self, name: str) -> Provider | None:
        """A provider that uses the models of the provider `name`; None where no process can reach it."""
        config = _in_process(self._host.families.config(name))
        if config is None:
            return None
        original = self._host.find(name)
        return ProcessProvider(
            self._pool,
            self._host.supervisor,
            ProcessSettings(
                home=str(self._host.home.absolute()) if self._host.home is not None else "",
                tool_options=self._host.tool_options,
                seconds=self._settings.timeout_secs,
            ),
            reaching=lambda model: _reaching(config, model),
            price=lambda model: None if original is None else price_of(original, model),
        )


def _reaching(config: ProviderConfig, model: str) -> Reaching:
    return Reaching(
        wire=WIRES[config.wire].call_name,
        url=request_url(config, model),
        api_key_env=config.api_key_env,
        settled=config.wire,
        headers=config.headers,
        prices=config.prices,
        responses_wire=config.responses_wire,
    )


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """What all children of a process share: the state folder, how tools work, and the time limit of a call."""

    home: str = ""
    tool_options: ToolOptions = ToolOptions()
    seconds: float = 900.0


class ProcessProvider:
    """Uses the models of another provider, each time from a new process.

    `reaching` gives how a model is reached from there, and `price` what it costs.
    """

    def __init__(
        self,
        pool: ProcessPool,
        supervisor: Supervisor,
        settings: ProcessSettings,
        *,
        reaching: Callable[[str], Reaching],
        price: Callable[[str], tuple[int, int] | None],
    ) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self._settings = settings
        self._reaching = reaching
        self.price = price

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """All text of the child as one reply; raises `ProviderError` with the reason that a failed child gave."""
        reaching = self._reaching(request.model)
        live = self._supervisor.live(request.run_id)
        if live is None:
            raise ProviderError(f"run {request.run_id or 'without a name'} is not driven here", fault="internal")
        grant, offered = self._grant(live, reaching), live.run.run_spec.offered
        try:
            child = self._pool.take()
        except OSError as error:
            reason = f"Subagent process could not be started: {error.strerror or error}"
            raise ProviderError(reason, fault="internal") from None
        stream, timeout = CallStream(), asyncio.timeout(self._settings.seconds + MARGIN)
        try:
            async with timeout:
                code, stderr = await self._exchange(
                    child, grant, _call_request(request, reaching, offered), stream, publish
                )
        except TimeoutError:
            if not timeout.expired():
                raise
            reason = f"Subagent did not finish within {self._settings.seconds:g} s and was killed"
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
        """End all children."""
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
            # Processes that the child started and left may still hold its pipes; they are not waited for.
            await asyncio.wait((output, stderr), timeout=LINGER)
            if output.done():
                output.result()
            return code, stderr.result() if stderr.done() else ""
        finally:
            for task in (output, stderr, actions, end):
                task.cancel()
            await asyncio.gather(output, stderr, actions, end, return_exceptions=True)

    async def _count_actions(self, child: ChildProcess, run_id: RunId) -> None:
        """Let the child act as often as its run may, which shares its windows with the runs above it."""
        async for _ in child.action_requests():
            is_live = self._supervisor.live(run_id) is not None
            await child.answer(allow=is_live and await self._supervisor.take_action(run_id))

    async def _read(self, child: ChildProcess, stream: CallStream, publish: Publish) -> None:
        async for piece in child.stdout():
            # While this child waits for its model there is time to start the next one.
            self._pool.refill()
            for text in stream.feed(piece):
                publish(TextDelta(text))
        for text in stream.end():
            publish(TextDelta(text))

    def _grant(self, live: LiveView, reaching: Reaching) -> Grant:
        run_id, run_spec = live.run_id, live.run.run_spec
        return Grant(
            run_id=run_id,
            policy=live.run.policy,
            limits=self._limits(run_id),
            workspace=run_spec.workspace,
            identity=run_spec.identity or live.run.accepted.agent,
            memory_from=run_spec.memory_from,
            home=self._settings.home,
            tool_options=self._settings.tool_options,
            reaching=reaching,
            counts=self._supervisor.counts_actions(run_id),
        )

    def _limits(self, run_id: RunId) -> Limits:
        """What the run was given and has not spent; the hold of the current call is not deducted."""
        unspent = self._supervisor.unspent(run_id)
        return Limits(
            max_input_tokens=unspent.input,
            max_output_tokens=unspent.output,
            max_tokens=unspent.tokens,
            max_cost=unspent.cost,
            seconds=self._settings.seconds,
        )


def _call_request(request: Request, reaching: Reaching, tools: tuple[str, ...]) -> CallRequest:
    return CallRequest(
        model=request.model,
        provider=reaching.wire,
        url=reaching.url,
        api_key_name=reaching.api_key_env or None,
        prompt="\n\n".join(message.text for message in request.messages if isinstance(message, UserMessage)),
        system_prompt=request.system,
        tool_subset=tools,
        think=request.think,
        temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        max_tokens=request.max_output,
    )


def _failure(reason: str, stream: CallStream, tally: Tally) -> ProviderError:
    # `internal`: the child has made every attempt that was worth making, so this process makes none.
    short = cut(reason, MAX_REASON_CHARACTERS, "...").text
    return ProviderError(short, fault="internal", partial=stream.text, usage=tally.usage, cost=tally.cost)


def _last_error(stderr: str) -> str:
    """The last error that a child printed.

    >>> _last_error("noise\\nerror: unknown provider: 'x'\\n"), _last_error("Segmentation fault\\n")
    ("unknown provider: 'x'", '')
    """
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else ""
