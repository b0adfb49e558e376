"""Programs that are talked to while they run, in the sandbox: with the folders of a policy and of the settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing

import msgspec

from retinue.core.errors import ToolError
from retinue.core.policy import Autonomy, WorkspaceRights
from retinue.core.ports import Ended, InteractiveSandbox, Program, Talk
from retinue.mcp_client import McpServer
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.path_walk import locate
from retinue.tools.program_access import mounts_of
from retinue.tools.settings_guard import watch_settings
from retinue.tools.threads import in_thread

GIB = 1024 * 1024 * 1024
MEMORY = 4 * GIB
"""Bytes of memory of a program with the programs that it starts, in the sandbox."""
RESERVED = 1024 * GIB
"""Bytes of address space: node reserves much more than it uses."""
PROCESSES = 512
MAX_FILE = 4 * GIB
SCRATCH = GIB
CPU_SECONDS = 7 * 24 * 3600
MAX_STDERR = 64 * 1024

EMPTY_HOME = "/tmp"
"""The home folder in the sandbox of a program that is given nothing of the user's own."""


def interactive_program(
    argv: tuple[str, ...], folder: str, environment: Mapping[str, str], *, network: bool = True
) -> Program:
    """A program with the limits of one that runs for long and starts others."""
    return Program(
        argv=argv,
        folder=folder,
        environment=environment,
        network=network,
        cpu_seconds=CPU_SECONDS,
        memory=MEMORY,
        reserved=RESERVED,
        processes=PROCESSES,
        file_size=MAX_FILE,
        scratch=SCRATCH,
        max_output=MAX_STDERR,
    )


async def converse(
    program: Program,
    talk: Talk,
    rights: WorkspaceRights,
    dependencies: ToolDependencies,
    *,
    readable: tuple[str, ...],
    writable: tuple[str, ...],
    folder: str = "",
) -> Ended:
    """Run a program in the sandbox until it or the talk ends; raises `ToolError` if it cannot be started.

    It has the workspace and the roots of the policy, read-only under `readonly`, and `readable` and `writable` of the
    settings. It works in the workspace, or in a `folder`, which has to be inside one of these.
    """
    sandbox = dependencies.sandbox
    if not isinstance(sandbox, InteractiveSandbox):
        raise ToolError("this sandbox cannot run a program that is talked to")
    writes = rights.policy.autonomy is not Autonomy.READONLY
    with ExitStack() as resources:

        async def mounted() -> Program:
            mounts = resources.enter_context(closing(await in_thread(mounts_of, rights, dependencies, writes=writes)))
            read, written = _located(readable, resources), _located(writable, resources)
            readable_paths = (*mounts.readable, *(path for path in read if path not in mounts.writable))
            writable_paths = tuple(dict.fromkeys((*mounts.writable, *written)))
            return msgspec.structs.replace(
                program,
                folder=folder or mounts.folder,
                readable=readable_paths,
                writable=writable_paths,
                hidden=mounts.hidden,
                descriptors={**read, **written, **mounts.descriptors},
                environment={**program.environment, "HOME": _home((*read, *written)), "TMPDIR": "/tmp"},
            )

        fenced = await mounted()
        async with watch_settings(fenced.writable, dependencies.settings, dependencies.home) as watch:
            if watch.needs_new_mounts(fenced.readable):
                fenced = await mounted()
            return await sandbox.converse(fenced, talk)


async def converse_with_server(
    server: McpServer, rights: WorkspaceRights, talk: Talk, dependencies: ToolDependencies
) -> Ended:
    """Run the program of an MCP server in the sandbox; its command is a path."""
    workspace = _absolute(rights.workspace)
    program = interactive_program(
        (server.command, *server.args), workspace, server.environment(), network=server.network
    )
    try:
        return await converse(
            program,
            talk,
            rights,
            dependencies,
            readable=server.readable,
            writable=server.writable,
            folder=server.cwd and _absolute(server.cwd, workspace),
        )
    except OSError as error:
        raise ToolError(f"it could not be run: {error.strerror or type(error).__name__}") from error


def _absolute(path: str, folder: str = "") -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path)))


def _home(given: Iterable[str]) -> str:
    """The home folder of a program in the sandbox: the user's, if it is given something there, to find it."""
    own = os.path.expanduser("~")
    return own if any(path == own or path.startswith(f"{own}/") for path in given) else EMPTY_HOME


def _located(paths: tuple[str, ...], resources: ExitStack) -> dict[str, int]:
    """The files and folders that the settings give to a program, as far as they exist, each with an open descriptor."""
    found: dict[str, int] = {}
    for path in paths:
        place = locate(_absolute(path), keep=True)
        if place.descriptor is not None:
            resources.enter_context(closing(place.descriptor))
            found[place.path] = place.descriptor.number
    return found
