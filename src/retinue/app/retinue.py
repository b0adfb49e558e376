"""`Retinue`, the main object of the Python API: start, fork, resume, wait for, message and cancel runs."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, Unpack, overload

from msgspec.structs import replace

from retinue.app.handle import RunHandle, event_stream
from retinue.app.registries import ProviderRegistry, ToolRegistry, lend_providers
from retinue.app.run_options import CheckedRunOptions, RunOptions, SpawnOptions
from retinue.app.run_spec import (
    Grants,
    LaunchConfig,
    RunSpecBuilder,
    escalation,
    limits_of,
    narrowed_memory,
    with_single_limits,
)
from retinue.app.sessions import Sessions
from retinue.app.structured_output import OutputFormat, converter, make_output
from retinue.app.validation import check_approvals
from retinue.core.agent import Agent, RunSpec, ToolSpec
from retinue.core.attachments import Attachment, checked
from retinue.core.commands import RunQuery
from retinue.core.errors import BadInput, NotAdoptable, PolicyError, RetinueError, UnknownName
from retinue.core.events import Event, TreeEvent
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.log_context import logger
from retinue.core.messages import Delta
from retinue.core.model_options import NO_OPTIONS, Effort, ModelOptions
from retinue.core.policy import Policy
from retinue.core.ports import Tool
from retinue.core.run import Approval, HistoryRef, Lifecycle, Limits, Outcome
from retinue.core.state import Run
from retinue.core.workspace import is_address
from retinue.dialects.base import Dialect
from retinue.engine import Approver, Driver, RunView, SpawnRequest, Supervisor
from retinue.local.workspaces import FetchedWorkspaces
from retinue.mcp_client import McpTools
from retinue.telemetry.exporters import Exporting
from retinue.tools.dependencies import ToolOptions
from retinue.tools.file_changes import FileChanges
from retinue.tools.path_walk import Workspaces

if TYPE_CHECKING:
    from retinue.app.approvals import Approvals

T = TypeVar("T")

WAIT_MODES: dict[str, int | None] = {"all": None, "any": 1}

Which: TypeAlias = RunHandle | RunId

Views: TypeAlias = list[RunView]
Questions: TypeAlias = list[Approval]
Outcomes: TypeAlias = list[Outcome]
"""Lists, named outside of the class: in its body `list` is a method."""


MAX_PRIORITY = 100
"""The highest priority of a run; the lowest is its negative."""


log = logger("retinue.app")


class Retinue:
    """An open retinue: an async context manager that drives runs while it is open.

    Created by `retinue.open`. A run that is unfinished when the retinue closes stays in the store and can be resumed.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("Four.")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         run = await r.spawn("What is two and two?")
    ...         ended = await r.wait(run)
    ...         print(ended[run.run_id].text, [view.state for view in await r.list()])
    >>> asyncio.run(main())
    Four. ['ended']
    """

    def __init__(
        self,
        supervisor: Supervisor,
        driver: Driver,
        tools: ToolRegistry,
        providers: ProviderRegistry,
        *,
        agents: Sequence[Agent],
        dialects: Sequence[str | Dialect],
        dialect_settings: Mapping[str, object],
        model: str,
        session: SessionId,
        tool_options: ToolOptions | None = None,
        home: Path | None = None,
        workspaces: Workspaces | None = None,
        file_changes: Callable[[], FileChanges] = FileChanges,
        folders: FetchedWorkspaces | None = None,
        mcp_tools: McpTools | None = None,
        exporting: Exporting | None = None,
    ) -> None:
        workspaces = workspaces or Workspaces()
        self._tools = tools
        self.mcp_tools = mcp_tools
        """The tools of MCP servers; None without servers."""
        self.supervisor = supervisor
        self.exporting = exporting
        """What exports traces and metrics; None if nothing does."""
        if exporting is not None:
            from retinue.app.tracing import SpansOfTheDead

            supervisor.on_adopt(SpansOfTheDead(supervisor, exporting.tracing).export)
        self._folders = folders or FetchedWorkspaces(home)
        supervisor.on_leave(self._folders.close)
        self._make_file_changes = file_changes
        self.session_id = session
        self.agents = {agent.name: agent for agent in agents}
        self.driver = driver
        self.providers = providers
        self._grants = Grants(supervisor)
        self._run_specs = RunSpecBuilder(
            supervisor,
            tools,
            providers,
            agents=self.agents,
            model=model,
            dialect_settings=dialect_settings,
            workspaces=workspaces,
            folders=self._folders,
            own_dialects=[each for each in dialects if not isinstance(each, str)],
        )
        self.launch_config: LaunchConfig | None = None
        """What a later process needs to resume the runs started here; stored with each root run if set."""
        lend_providers(
            providers,
            supervisor,
            dialect_settings=dialect_settings,
            tool_options=tool_options,
            home=home,
            workspaces=workspaces,
        )
        self._chosen = tuple(each if isinstance(each, str) else each.name for each in dialects)

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions of the store, for the program."""
        return Sessions(self.supervisor)

    @cached_property
    def file_changes(self) -> FileChanges:
        """What the file tools have changed."""
        return self._make_file_changes()

    # Opening and closing

    async def __aenter__(self) -> Retinue:
        try:
            if self.mcp_tools is not None:
                await self._load_mcp_tools(self.mcp_tools)
            exporting = self.exporting
            self._run_specs.begin(self._chosen, meter_provider=None if exporting is None else exporting.meter_provider)
            await self.supervisor.open_session(self.session_id)
            await self.driver.register()
        except BaseException:
            if self.mcp_tools is not None:
                await self.mcp_tools.close()
            await self.supervisor.close()
            if self.exporting is not None:
                self.exporting.close()
            raise
        return self

    async def _load_mcp_tools(self, mcp_tools: McpTools) -> None:
        """Read what the MCP servers have, and replace patterns in the tools of agents by the names that they match."""
        await mcp_tools.load()
        self._tools.add_servers(mcp_tools)
        for name, agent in self.agents.items():
            tools = mcp_tools.expanded(agent.tools)
            # An empty list would mean the default tools.
            self.agents[name] = replace(agent, tools=tools, no_tools=agent.no_tools or bool(agent.tools and not tools))

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.driver.leave()
        finally:
            try:
                if self.mcp_tools is not None:
                    await self.mcp_tools.close()
                await self.providers.close()
            finally:
                await self.supervisor.close()
                if self.exporting is not None:
                    await asyncio.to_thread(self.exporting.close)

    def __enter__(self) -> NoReturn:
        raise TypeError("write `async with retinue.open(...)`, or `with retinue.open_sync(...)` in a plain function")

    def __exit__(self, *error: object) -> None:
        """Never called: `__enter__` raises."""

    # Starting runs

    @overload
    async def run(self, task: str, *, output: None = None, **options: Unpack[CheckedRunOptions]) -> Outcome[str]: ...
    @overload
    async def run(
        self, task: str, *, output: type[dict[Any, Any]], **options: Unpack[CheckedRunOptions]
    ) -> Outcome[dict[str, Any]]: ...
    @overload
    async def run(self, task: str, *, output: type[T], **options: Unpack[CheckedRunOptions]) -> Outcome[T]: ...
    @overload
    async def run(self, task: str, *, output: OutputFormat | None, **options: Unpack[CheckedRunOptions]) -> Outcome: ...
    async def run(
        self,
        task: str,
        *,
        agent: str | None = None,
        key: Key | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        workspace: str | None = None,
        effort: Effort | None = None,
        options: ModelOptions = NO_OPTIONS,
        attachments: Sequence[Attachment] = (),
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | Decimal | None = None,
        timeout: float | None = None,
        output: OutputFormat | None = None,
        check: bool = False,
    ) -> Outcome:
        """Start a run, wait for its end and return the outcome. The parameters are those of `spawn`.

        With a `key` that was used before, also in an earlier process, no second run is started: the existing run is
        resumed. With `output`, the answer has to be JSON, `Outcome.structured` is its value, and `Outcome.output` is an
        object of the type that `output` names.

        If the awaiting task is cancelled, the run is cancelled with everything below it. A run that was started with
        `spawn` goes on: only the wait for it ends.

        Raises the errors of `spawn`. A run that fails, is cancelled or reaches a limit raises nothing (see
        `Outcome.result`), unless `check` is true: then it raises `RunFailed`, as `Outcome.unwrap` does.
        """
        handle: RunHandle = await self.spawn(
            task,
            agent=agent,
            key=key,
            limits=limits,
            policy=policy,
            dialects=dialects,
            tools=tools,
            model=model,
            system=system,
            workspace=workspace,
            effort=effort,
            options=options,
            attachments=attachments,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_cost=max_cost,
            timeout=timeout,
            output=output,
        )
        try:
            outcome = await handle.wait()
        except asyncio.CancelledError:
            with suppress(RetinueError):  # the retinue may be closed already
                await handle.cancel("its caller was cancelled")
            raise
        if check:
            outcome.unwrap()
        return outcome

    async def run_batch(
        self,
        tasks: Sequence[str | Mapping[str, Any]],
        *,
        hours: float = 24.0,
        **options: Unpack[RunOptions],
    ) -> Outcomes:
        """Run many tasks through the batch API of their vendor, at half the price; the outcomes in order of the tasks.

        - `tasks`: texts, or arguments of `run` with a `task` for those that differ from the others.
        - `hours`: how long each reply may take. Vendors answer most batches within an hour and give up after 24.
        - `key`: names the batch. The same call with the same key, also in a later process, waits for what the first one
          has begun: nothing is submitted twice.

        Each task is a run of its own, with tools, limits and an outcome; the requests of all runs that wait at the same
        time are submitted together, turn by turn. If the awaiting task is cancelled, so are the runs and their batches.
        """
        given, key = options.pop("options", NO_OPTIONS), options.pop("key", None)

        async def outcome(number: int, task: str | Mapping[str, Any]) -> Outcome:
            named: dict[str, Any] = {"task": task} if isinstance(task, str) else dict(task)
            own: ModelOptions = ModelOptions(batch_hours=hours).over(named.pop("options", NO_OPTIONS).over(given))
            place: dict[str, Any] = {} if key is None else {"key": f"{key}/{number}"}
            arguments: dict[str, Any] = {**options, **place, **named, "options": own}
            run: Any = self.run  # whose overloads take no arguments that are known at run time alone
            found: Outcome = await run(arguments.pop("task"), **arguments)
            return found

        try:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(outcome(number, task)) for number, task in enumerate(tasks)]
        except* RetinueError as refused:
            raise refused.exceptions[0] from None
        return [run.result() for run in runs]

    @overload
    async def spawn(self, task: str, *, output: None = None, **options: Unpack[SpawnOptions]) -> RunHandle[str]: ...
    @overload
    async def spawn(
        self, task: str, *, output: type[dict[Any, Any]], **options: Unpack[SpawnOptions]
    ) -> RunHandle[dict[str, Any]]: ...
    @overload
    async def spawn(self, task: str, *, output: type[T], **options: Unpack[SpawnOptions]) -> RunHandle[T]: ...
    @overload
    async def spawn(self, task: str, *, output: OutputFormat | None, **options: Unpack[SpawnOptions]) -> RunHandle: ...
    async def spawn(
        self,
        task: str,
        *,
        agent: str | None = None,
        key: Key | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        memory_from: Sequence[str] | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        workspace: str | None = None,
        think: bool = False,
        effort: Effort | None = None,
        options: ModelOptions = NO_OPTIONS,
        keep_alive: bool = False,
        per_input: bool = False,
        inherits: HistoryRef | None = None,
        detached: bool = False,
        attachments: Sequence[Attachment] = (),
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | Decimal | None = None,
        timeout: float | None = None,
        output: OutputFormat | None = None,
        label: str = "",
        session: SessionId | None = None,
        ceiling: bool = True,
        tags: Sequence[str] = (),
        approvals: Approver | None = None,
        priority: int = 0,
        stays: bool | None = None,
    ) -> RunHandle:
        """Start a run in the background and return its handle. The run is recorded in the store before this returns.

        - `task`: the first user message.
        - `agent`: the name of a configured agent; without one it is `main`, with all tools of the retinue and no system
          prompt.
        - `key`: an idempotency key; the same key returns the same run.
        - `limits`: limits on turns, time, tokens and cost; without them, those of the agent apply.
        - `max_turns`, `max_tokens`, `max_cost` (dollars), `timeout` (seconds): single limits, as the flags of `retinue
          run` name them; they take the place of those in `limits`.
        - `policy`, `memory_from`: narrow what the agent may do, and whose memory it may read.
        - `dialects`: the delegation tools to offer, instead of those given to `retinue.open`.
        - `tools`: the names of the tools to offer, instead of those of the agent. No run below this one can be given
          another tool, except those of its dialects: neither by the model nor by the settings of an agent.
        - `model`: `provider:name`, or a name at the default provider, instead of the model of the agent.
        - `system`: text that is appended to the agent's system prompt.
        - `workspace`: where the tools of the run and of its children work, instead of the current folder:
          `git+https://HOST/REPOSITORY@REF`, `shared:///FOLDER`, or an address of an object store such as
          `s3://BUCKET/FOLDER`. It is fetched into a folder of the process that drives the run. What the tree changed is
          handed back when the run ends, to the branch or prefix that `Outcome.artifacts` names.
        - `think`: request extended thinking where the model supports it.
        - `effort`: how much the model thinks, from `none` to `max`; instead of that of the agent.
        - `options`: temperature, the longest reply and other options of requests; see `retinue.ModelOptions`. They hold
          for this run, over those of the agent; its children have their own.
        - `keep_alive`: keep the run open after its answer, for more input by `RunHandle.ask`. `stays` is the deprecated
          name of this parameter.
        - `per_input`: with `keep_alive`, the limits apply to each input instead of to the whole run, and a limit or a
          failed model call ends the answer to an input and not the run; a time limit still ends the run.
        - `inherits`: a point in another run's history that this run continues from.
        - `detached`: only record the run: a worker on the same store drives it, or another process with `resume`.
        - `attachments`: images and files that belong to the task (`retinue.Image`, `retinue.File`).
        - `output`: require an answer in JSON: a JSON Schema (a mapping, or the path of a file), a type (a dataclass, a
          TypedDict, a msgspec Struct, a pydantic model, ...), or `dict` for any object. `Outcome.output` is then an
          object of that type.
        - `label`: a short name for lists of runs.
        - `session`: the session of the run, which is created if it is new; by default that of the retinue.
        - `ceiling`: with False, `tools` holds for this run alone, and runs below it can have what the policy allows.
        - `tags`: only a worker with all these tags, and those of the agent, drives a detached run.
        - `approvals`: how approval requests of this run's tree are answered, in place of those of the retinue.
        - `priority`: workers take waiting runs of a higher one first, from -100 to 100.

        Raises `UnknownName` for an unknown agent, tool or dialect, `PolicyError` if `policy` or `memory_from` asks for
        more than the agent has, and `BadInput` for an unusable schema.
        """
        self._check_open()
        if approvals is not None:
            check_approvals(approvals)
        spec = self._run_specs.agent(agent)
        chosen = self._chosen if dialects is None else tuple(dialects)
        run_spec = self.run_spec(
            agent=agent,
            dialects=chosen,
            tools=tools,
            model=model,
            system=system,
            think=think,
            effort=effort,
            options=options,
            policy=policy,
            ceiling=ceiling,
        )
        if workspace is not None:
            run_spec = replace(run_spec, workspace=self._workspace(workspace))
        if output is not None:
            run_spec = replace(run_spec, output=make_output(output))
        if tags:
            run_spec = replace(run_spec, tags=tuple(dict.fromkeys((*run_spec.tags, *tags))))
        if priority:
            if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
                raise BadInput(f"priority: found {priority}; expected -{MAX_PRIORITY} to {MAX_PRIORITY}")
            run_spec = replace(run_spec, priority=priority)
        if memory_from is not None:
            run_spec = replace(run_spec, memory_from=narrowed_memory(memory_from, run_spec))
        if approvals == "deny" and self.launch_config is not None:
            run_spec = replace(run_spec, launch_config=replace(self.launch_config, approvals="deny").text())
        spawn_request = SpawnRequest(
            agent=spec.name,
            run_spec=run_spec,
            task=task,
            limits=with_single_limits(
                limits_of(spec, limits, delegates=bool(chosen)),
                max_turns=max_turns,
                max_tokens=max_tokens,
                max_cost=max_cost,
                timeout=timeout,
            ),
            policy=policy,
            windows=self._grants.windows(spec.name, policy),
            lifecycle=Lifecycle(keep_alive=_keep_alive(keep_alive, stays), per_input=per_input),
            inherits=inherits,
            label=label,
            dialect=chosen[0] if chosen else "",
            attachments=checked(attachments) if attachments else (),
        )
        self._warn_of_unpriced(spawn_request)
        convert = None if output is None else converter(output)
        if session is not None:
            await self.supervisor.open_session(session)
        session_id = session or self.session_id
        try:
            if detached:
                accepted = await self.supervisor.accept(spawn_request, session_id=session_id, key=key)
                return RunHandle(self.supervisor, accepted.run_id, convert)
            started = await self.supervisor.spawn(spawn_request, session_id=session_id, key=key, approver=approvals)
        except PolicyError as refused:
            raise escalation(refused) from refused
        if started.existed:
            await self.resume(started.run_id)
        return RunHandle(self.supervisor, started.run_id, convert)

    def _workspace(self, workspace: str) -> str:
        if not is_address(workspace):
            raise BadInput(
                f"the workspace {workspace!r} of a run: expected git+https://..., shared:///... or an address such as "
                "s3://...; folders of this machine belong to agents"
            )
        self._folders.trust(workspace)
        return workspace

    async def host(
        self,
        *,
        dialects: Sequence[str],
        agent: str | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        session: SessionId | None = None,
        ceiling: bool = True,
        label: str = "",
    ) -> RunId:
        """Start a root run without a model, in whose name a program outside makes calls; see `retinue.surface`."""
        self._check_open()
        chosen = tuple(dialects)
        spec = self._run_specs.agent(agent)
        run_spec = self.run_spec(agent=agent, dialects=chosen, tools=tools, model=model, policy=policy, ceiling=ceiling)
        if session is not None:
            await self.supervisor.open_session(session)
        spawn_request = SpawnRequest(
            agent=spec.name,
            run_spec=run_spec,
            task="",
            limits=limits or Limits(),
            policy=policy,
            windows=self._grants.windows(spec.name, policy),
            lifecycle=Lifecycle(hosted=True),
            label=label,
            dialect=chosen[0] if chosen else "",
        )
        self._warn_of_unpriced(spawn_request)
        started = await self.supervisor.spawn(spawn_request, session_id=session or self.session_id)
        return started.run_id

    def _warn_of_unpriced(self, request: SpawnRequest) -> None:
        """Log that a limit on cost may not bind; the command line has a launch config, and refuses or warns itself."""
        if self.launch_config is None:
            for warning in self._run_specs.unpriced(request.run_spec, request.limits):
                log.warning("%s", warning)

    def run_spec(
        self,
        *,
        agent: str | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        model: str | None = None,
        system: str = "",
        think: bool = False,
        effort: Effort | None = None,
        options: ModelOptions = NO_OPTIONS,
        policy: Policy | None = None,
        ceiling: bool = True,
    ) -> RunSpec:
        """The run spec of a run that is started with these arguments; see `spawn`."""
        chosen = self._chosen if dialects is None else tuple(dialects)
        spec = self._run_specs.agent(agent)
        run_spec = self._run_specs.run_spec(
            spec,
            chosen,
            tools=tools,
            model=model,
            system=system,
            think=think,
            effort=effort,
            options=options,
            policy=policy,
            ceiling=ceiling,
        )
        if self.launch_config is None:
            return run_spec
        return replace(run_spec, launch_config=self.launch_config.text())

    def offers(
        self,
        *,
        agent: str | None = None,
        dialects: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        ceiling: bool = True,
    ) -> tuple[ToolSpec, ...]:
        """The tools that a run started with these arguments would offer to its model."""
        chosen = self._chosen if dialects is None else tuple(dialects)
        run_spec = self.run_spec(agent=agent, dialects=chosen, tools=tools, ceiling=ceiling)
        return self.supervisor.visible_tools(run_spec)

    def load_dialects(self, names: Sequence[str]) -> None:
        """Make the tools of these dialects available to runs that another process started."""
        self._run_specs.load_dialects(names)

    def find_tool(self, name: str, dialects: Sequence[str]) -> Tool | None:
        """The tool of that name, as a run with these dialects calls it; None if there is none."""
        return self._run_specs.tool(name, tuple(dialects))

    async def fork(
        self,
        run: Which,
        task: str,
        *,
        policy: Policy | None = None,
        last_turns: int | None = None,
        turn: int | None = None,
        keep_alive: bool = False,
        stays: bool | None = None,
    ) -> RunHandle:
        """Start a new run that continues from another run's history as it stands, with `task` as its next user message.

        - `run`: a handle or the id of the run to fork; it may be running or ended.
        - `policy`: narrows the rights of the other run; asking for more raises `PolicyError`.
        - `last_turns`: inherit only this many of the last turns.
        - `turn`: continue from the end of this turn, counted from 1, instead of from the latest.
        - `keep_alive`: as for `spawn`. `stays` is the deprecated name of this parameter.

        The fork has the other run's agent, limits and rights, and draws on the same hourly and daily windows.
        """
        self._check_open()
        origin = await self.supervisor.replay(_id(run))
        grants = await self._grants.of_fork(origin, policy)
        spawn_request = SpawnRequest(
            agent=origin.accepted.agent,
            run_spec=origin.run_spec,
            task=task,
            limits=origin.accepted.limits,
            policy=grants,
            lifecycle=Lifecycle(keep_alive=_keep_alive(keep_alive, stays)),
            inherits=HistoryRef(
                origin.run_id, origin.seq if turn is None else await self._end_of(turn, origin), last_turns
            ),
            dialect=origin.accepted.dialect,
            windows=await self._grants.windows_of_fork(origin, grants, own=policy),
        )
        started = await self.supervisor.spawn(spawn_request, session_id=self.session_id)
        return RunHandle(self.supervisor, started.run_id)

    async def _end_of(self, turn: int, origin: Run) -> int:
        """The number of the last event of a turn; raises `BadInput` if the run has no such turn."""
        last = 0
        for seq, event in await self.supervisor.stored.events(origin.run_id):
            number = getattr(event, "turn", None)
            if number is not None and number > turn:
                return last
            if number == turn:
                last = seq
        if not last:
            raise BadInput(f"run {origin.run_id} has no turn {turn}")
        return last

    async def resume(self, run: Which) -> RunHandle:
        """Continue an interrupted run in this process and return its handle.

        A run that is active in this process, or has ended, is returned as it is. Raises `UnknownName` if there is no
        such run, and `NotAdoptable` if another process drives it.
        """
        self._check_open()
        run_id = _id(run)
        view = await self.supervisor.look(run_id)
        if view is None:
            raise UnknownName("run", run_id)
        if view.state == "interrupted":
            await self.driver.adopt(view.root_id)
        elif view.state != "ended" and self.supervisor.live(run_id) is None:
            raise NotAdoptable(run_id, "another process is driving it")
        return RunHandle(self.supervisor, run_id)

    # Working with runs

    def _check_open(self) -> None:
        if self.supervisor.driver_id is None:
            raise RuntimeError("this retinue is not open: use it in an `async with` block")

    def handle(self, run_id: RunId) -> RunHandle:
        """A handle on the run with this id; the id is not checked."""
        return RunHandle(self.supervisor, run_id)

    async def wait(
        self, *runs: Which, mode: Literal["all", "any"] | int = "all", timeout: float | None = None
    ) -> dict[RunId, Outcome]:
        """Wait for runs to end and return their outcomes, in the order in which they ended.

        - `mode`: `"all"`, `"any"`, or the number of runs to wait for.
        - `timeout`: seconds; after that, the outcomes so far are returned and the runs continue.

        Raises `BadInput` for another `mode`, and `UnknownName` for an unknown run.
        """
        if (isinstance(mode, str) and mode not in WAIT_MODES) or (not isinstance(mode, str) and mode < 1):
            raise BadInput(f"mode {mode!r} is not valid: give 'all', 'any', or a number of runs from 1 on")
        count = WAIT_MODES[mode] if isinstance(mode, str) else mode
        return await self.supervisor.wait([_id(run) for run in runs], count=count, timeout=timeout, durable=True)

    async def send(
        self, run: Which, text: str, *, key: Key | None = None, attachments: Sequence[Attachment] = ()
    ) -> None:
        """Send a message to a run; see `RunHandle.send`."""
        await self.handle(_id(run)).send(text, key=key, attachments=attachments)

    async def cancel(self, run: Which, note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and all its descendants; returns the ids of the runs that were cancelled."""
        return await self.supervisor.cancel(_id(run), note=note)

    async def list(
        self, *, everyone: bool = False, session: SessionId | None = None, limit: int | None = None
    ) -> Views:
        """Views of root runs, newest first, or with `everyone` of their descendants too. No run is started by this."""
        query = RunQuery(session_id=session, roots_only=not everyone, limit=limit)
        return await self.supervisor.with_tasks(await self.supervisor.list(query))

    async def tree(self, run: Which) -> Views:
        """Views of a root run and all its descendants, newest first."""
        return await self.supervisor.with_tasks(await self.supervisor.list(RunQuery(root_id=_id(run))))

    @overload
    def events(self, run: Which, *, tree: Literal[False] = False, after: int = 0) -> AsyncIterator[Event | Delta]: ...
    @overload
    def events(
        self, run: Which, *, tree: Literal[True], after: Mapping[RunId, int] | None = None
    ) -> AsyncIterator[TreeEvent]: ...
    def events(
        self, run: Which, *, tree: bool = False, after: int | Mapping[RunId, int] | None = None
    ) -> AsyncIterator[Event | Delta] | AsyncIterator[TreeEvent]:
        """The events of a run, from its beginning until its end, and with `tree` those of all runs below it.

        - `tree`: yield a `retinue.events.TreeEvent` for each event or delta: the ids of its run and of that run's
          parent, the path of the run, and the event. The first event of each run is its `RunAccepted`. The order within
          each run is kept. The stream ends when all runs of the tree have ended.
        - `after`: the number of the last event that was read, and with `tree` these numbers (`TreeEvent.seq`) by run:
          the stream goes on from there, in any process. Deltas have no number and are not repeated.

        Runs of any process can be read. Deltas come only from runs that stream in this one. A reader that is slow loses
        deltas and never events. The stream of a run that no process drives ends with its last stored event.
        """
        return event_stream(self.supervisor, _id(run), tree=tree, after=after)

    # Approvals

    def _questions(self) -> Approvals:
        from retinue.app.approvals import Approvals  # imported late: most programs answer no questions

        return Approvals(self.supervisor)

    async def approvals(self) -> Questions:
        """The tool calls that wait for approval, in all unfinished runs of the store."""
        return await self._questions().open()

    async def approve(self, question: Approval | str, *, allow: bool = True, note: str = "") -> None:
        """Answer an approval request, given as the object or its id. The run may be driven by any process, or by none.

        With `allow=False` the call is denied; `note` is the reason that the model reads. Only the first answer counts.
        Raises `UnknownName` if there is no such request.
        """
        await self._questions().answer(question, allow=allow, note=note)

    async def deny(self, question: Approval | str, *, note: str = "") -> None:
        """Deny an approval request; see `approve`."""
        await self._questions().answer(question, allow=False, note=note)


def _keep_alive(keep_alive: bool, stays: bool | None) -> bool:
    if stays is None:
        return keep_alive
    warnings.warn("stays= is deprecated: use keep_alive=", DeprecationWarning, stacklevel=3)
    return stays


def _id(run: Which) -> RunId:
    return run if isinstance(run, str) else run.run_id
