"""Loading of the settings file, and its conversion into provider configs and dialect settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from retinue.app.settings_sections import DIALECT_SECTIONS, SECTIONS
from retinue.app.state_folder import default_home, is_sqlite
from retinue.config.agent_files.translation import AGENT_FILES, AgentFileSettings
from retinue.config.mcp_servers import MCP_SERVERS
from retinue.config.model_options import model_options_of
from retinue.config.other_programs import Translate, Translated
from retinue.config.settings import MAX_BYTES, Settings, load, searched_folders, user_file
from retinue.config.store import STORE, StoreSettings
from retinue.config.telemetry import TELEMETRY, TelemetrySettings
from retinue.core.errors import BadInput, ConfigError, Problem
from retinue.core.log_context import logger
from retinue.core.policy import Risk
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.dialects import registry
from retinue.dialects.base import ProgramSettings
from retinue.mcp_client import McpServer, read_server_file
from retinue.providers.catalog import ProviderConfig, provider_config
from retinue.telemetry.exporters import Telemetry

if TYPE_CHECKING:
    from retinue.tools.server_tools import ServerTool

log = logger("retinue.config")


def _translate(programs: Sequence[ProgramSettings]) -> Translate:
    """The translation of a file whose name these programs have in common.

    The file belongs to the program of which it has the most keys; of equals, to the last one in the table of dialects.
    """

    def translate(values: Mapping[str, object]) -> Translated:
        program = max(reversed(programs), key=lambda each: each.count_own_keys(values))
        return program.translate.load()(values, os.environ)

    return translate


PROGRAMS = tuple(registry.having(lambda entry: entry.program_settings))

TRANSLATIONS: dict[str, Translate] = {
    file: _translate([program for program in PROGRAMS if program.file == file])
    for file in dict.fromkeys(program.file for program in PROGRAMS)
}
"""The settings files of other programs that are read leniently, by their names."""


def load_settings(
    path: str | Path | None = None,
    *,
    cwd: Path | None = None,
    home: Path | None = None,
    user: bool = True,
    project: bool = True,
    agent_folders: Sequence[str] = (),
) -> Settings:
    """The settings in a file, or in the `retinue.toml` or `retinue.yaml` of the current folder or of one above it.

    Folders above are searched up to the root of the repository. What is set in the user's own file holds where the
    project's file does not set it, unless `user` is false. Without `project`, the user's file alone is read.

    A file with the name of another program's settings file, `config.yaml` or `config.toml`, is translated and read
    leniently if its path is given. See `retinue.config.settings.load`. Warnings about ignored keys are logged.

    A file in a folder in which agents may write is refused unless a person has accepted it as it is. `home` is the
    state folder that has the records of that, by default the one of this process.

    The agents of the files in `agent_folders`, and in the folders of `[agent_files]`, are added.
    """
    settings = _load(path, cwd or Path.cwd(), home or default_home(), user=user, project=project)
    for warning in settings.warnings:
        log.warning("%s", warning)
    if agent_folders or settings.section(AGENT_FILES.name, AgentFileSettings).folders:
        from retinue.app.agent_folders import with_agent_files

        settings = with_agent_files(settings, agent_folders, home=home)
    return settings


def _load(path: str | Path | None, cwd: Path, home: Path, *, user: bool = True, project: bool = True) -> Settings:
    from retinue.tools.settings_trust import check_trusted, recorded_roots

    user_path = user_file() if user else None
    folders: list[Path] = []
    if path is None and project:
        folders = searched_folders(cwd, recorded_roots(home))
    elif path is None:
        if user_path is None:
            return Settings()
        path, user_path = user_path, None
    return load(
        path,
        cwd=cwd,
        sections=SECTIONS,
        translations=TRANSLATIONS,
        check=partial(check_trusted, home=home),
        user=user_path,
        folders=folders,
    )


def store_in_settings(path: str | None) -> str | None:
    """The address of the store in a settings file, or in those that are found from here; None if they name none.

    A file without such an address is not parsed, and errors in it are left to the commands that need it. A pipe is not
    read: that is possible only once.
    """
    for name in _files_to_look_at(path):
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for its writer.
            with os.fdopen(os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    continue
                text = file.read(MAX_BYTES)
        except (OSError, ValueError):
            continue
        if b"store" in text and b"url" in text:
            with suppress(ConfigError):
                return store_url(_load(path, Path.cwd(), default_home()))
    return None


def _files_to_look_at(path: str | None) -> Iterator[str | Path]:
    from retinue.tools.settings_trust import recorded_roots

    if path is not None:
        yield path
    else:
        for folder in searched_folders(Path.cwd(), recorded_roots(default_home())):
            yield from (folder / name for name in SETTINGS_FILES)
    with suppress(ConfigError):  # two files, which the commands that need it report
        if (own := user_file()) is not None:
            yield own


def store_url(settings: Settings) -> str | None:
    """The address of the store in `[store]`; a relative path is relative to the settings file."""
    url = settings.section(STORE.name, StoreSettings).url
    if url is None or not is_sqlite(url) or settings.source is None:
        return url
    path = url.removeprefix("sqlite:")
    return url if path.startswith(("/", "~")) else f"sqlite:{settings.source.parent / path}"


def provider_configs(settings: Settings) -> tuple[ProviderConfig, ...]:
    return tuple(
        provider_config(
            name,
            wire=provider.wire,
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            temperature=provider.temperature,
            headers=provider.headers,
            prices=provider.rates(),
            context_window=provider.context_window,
            responses_wire=provider.responses_wire,
            calls_in_text=provider.calls_in_text,
            options=replace(model_options_of(provider), temperature=None),  # which runs take over where they start
            bearer=provider.bearer,
            prompt_cache_key=provider.prompt_cache_key,
            program=provider.program(),
        )
        for name, provider in settings.providers.items()
    )


def default_provider(settings: Settings) -> str | None:
    """The provider that the file chooses; raises `ConfigError` if it is one that retinue does not have."""
    if settings.unusable_provider is not None:
        raise ConfigError(settings.unusable_provider)
    return settings.root.provider


def default_model(settings: Settings, provider: str) -> str | None:
    """The model that the file names for a provider."""
    configured = settings.providers.get(provider)
    return None if configured is None else configured.model


def mcp_servers(settings: Settings, files: Sequence[str] = (), *, home: Path | None = None) -> tuple[McpServer, ...]:
    """The MCP servers of the settings and of JSON files; a later one takes the place of one with the same name.

    A JSON file in a folder in which agents may write is refused unless a person has accepted it as it is, as settings
    are: it names programs that run with all rights.
    """
    from retinue.tools.settings_trust import check_trusted

    servers = {
        name: server.server(name, settings.folder_of(MCP_SERVERS.name, name))
        for name, server in settings.mcp_servers.items()
    }
    for file in files:
        found = read_server_file(Path(file), partial(check_trusted, home=home or default_home()))
        servers |= {server.name: server for server in found}
    return tuple(servers.values())


def server_tools(settings: Settings) -> tuple[ServerTool, ...]:
    """The tools of vendors that the settings configure; raises `ConfigError` for one that cannot be used."""
    if not settings.server_tools:
        return ()
    from retinue.tools.server_tools import ServerTool  # imported late: few settings have one

    found: list[ServerTool] = []
    for name, tool in settings.server_tools.items():
        try:
            made = ServerTool(
                name,
                max_uses=tool.max_uses,
                allowed_domains=tool.allowed_domains,
                blocked_domains=tool.blocked_domains,
                stores=tool.stores,
                url=tool.url or "",
                token_env=tool.token_env or "",
                allow=tool.allow,
                price=tool.price,
                risk=None if tool.risk is None else Risk(tool.risk),
            )
        except BadInput as wrong:
            raise ConfigError(Problem(file=str(settings.source or ""), complaint=str(wrong))) from None
        found.append(made)
    return tuple(found)


def telemetry_of(settings: Settings) -> Telemetry:
    """Where traces and metrics go, as `[telemetry]` says."""
    section = settings.section(TELEMETRY.name, TelemetrySettings)
    return Telemetry(
        otel=section.otel,
        endpoint=section.endpoint or "",
        headers=section.headers,
        service_name=section.service_name,
        propagate_to=section.propagate_to,
    )


def dialect_settings(settings: Settings) -> Mapping[str, object]:
    return {name: settings.section(section.name, section.type) for name, section in DIALECT_SECTIONS.items()}
