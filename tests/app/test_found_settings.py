"""Which settings files are found and obeyed: the project's, from subfolders too, and the user's below it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.app.launch.start import default_tools_for, dialects_for
from retinue.app.settings_file import load_settings, provider_configs, store_in_settings
from retinue.config.defaults import RunDefaults
from retinue.config.settings import Settings, user_folder
from retinue.core.errors import BadInput, ConfigError, UnknownName

Write = Callable[[str, str], Path]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a subfolder."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / "src" / "deep").mkdir(parents=True)
    return root


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's settings."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("RETINUE_CONFIG_HOME", str(folder))
    return folder


def found(cwd: Path) -> Settings:
    return load_settings(cwd=cwd, home=cwd / "no-state")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_found_from_subfolders_up_to_the_root_of_the_repository(repository: Path) -> None:
    file = write(repository / "retinue.toml", 'model = "local:qwen3"\n[providers.local]\nwire = "openai-chat"\n')

    assert found(repository / "src" / "deep").source == file
    assert found(repository).source == file


def test_the_nearest_file_counts(repository: Path) -> None:
    write(repository / "retinue.toml", 'model = "far"\n')
    near = write(repository / "src" / "retinue.toml", 'model = "near"\n')

    assert found(repository / "src" / "deep").source == near


def test_outside_of_a_repository_only_the_current_folder_is_searched(tmp_path: Path) -> None:
    write(tmp_path / "retinue.toml", 'model = "x"\n')
    (tmp_path / "below").mkdir()

    assert found(tmp_path / "below").source is None


def test_nothing_above_the_repository_is_read(repository: Path) -> None:
    write(repository.parent / "retinue.toml", 'model = "x"\n')

    assert found(repository / "src").source is None


def test_an_agent_cannot_hide_the_settings_with_a_repository_of_its_own(repository: Path) -> None:
    file = write(repository / "retinue.toml", 'model = "x"\n')
    (repository / "src" / ".git").mkdir()

    assert found(repository / "src").source == file


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_above_is_ignored_with_a_warning(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(repository / "retinue.toml", "[tools]\nnetwork = true\n")
    os.chown(file, 12345, 12345)

    with caplog.at_level(logging.WARNING, "retinue.config"):
        assert found(repository / "src").source is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} is ignored: it belongs to another user; --config takes it nevertheless"
    ]


def test_errors_in_a_file_above_name_its_path(repository: Path) -> None:
    file = write(repository / "retinue.toml", "modell = 1\n")

    with pytest.raises(ConfigError, match=rf"^{file}:1: modell: unknown key"):
        found(repository / "src")


# ---- the user's file -------------------------------------------------------------------------------------------------


def test_the_file_of_the_user_holds_where_the_project_has_nothing(user: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    file = write(user / "retinue.toml", '[providers.house]\nwire = "openai-chat"\nbase_url = "http://localhost:9/v1"\n')

    settings = found(tmp_path / "here")

    assert (settings.source, settings.user_source) == (None, file)
    assert [each.name for each in provider_configs(settings)] == ["house"]
    assert settings.tool_options.protected == (str(file),)


def test_tables_of_the_project_replace_those_of_the_user_as_a_whole(user: Path, tmp_path: Path) -> None:
    write(
        user / "retinue.toml",
        '[providers.house]\nwire = "openai-chat"\nbase_url = "http://localhost:9/v1"\napi_key_env = "HOUSE_KEY"\n'
        '[agents.mine]\ndescription = "of the user"\n[agents.both]\ndescription = "of the user"\nmax_turns = 3\n',
    )
    write(
        tmp_path / "retinue.toml",
        '[providers.house]\nwire = "openai-chat"\nbase_url = "http://localhost:10/v1"\n'
        '[agents.both]\ndescription = "of the project"\n',
    )

    settings = found(tmp_path)

    (house,) = provider_configs(settings)
    assert (house.base_url, house.api_key_env) == ("http://localhost:10/v1", ""), "no key goes to another address"
    assert {name: (each.description, each.max_turns) for name, each in settings.agents.items()} == {
        "mine": ("of the user", None),
        "both": ("of the project", None),
    }


def test_keys_of_sections_are_merged(user: Path, tmp_path: Path) -> None:
    write(user / "retinue.toml", '[tools]\nweb_search = "brave"\nmax_result = 2000\n[agent.subagent]\nmax_depth = 2\n')
    write(tmp_path / "retinue.toml", "[tools]\nmax_result = 3000\n")

    settings = found(tmp_path)

    assert (settings.tool_options.web_search, settings.tool_options.max_result) == ("brave", 3000)
    assert getattr(settings.sections["agent.subagent"], "max_depth", None) == 2


def test_paths_of_the_user_are_relative_to_the_file_of_the_user(user: Path, tmp_path: Path) -> None:
    (user / "desk").mkdir()
    module = write(user / "own.py", "")
    write(
        user / "retinue.toml",
        '[tools]\nmodules = ["own.py"]\n[agents.mine]\nrisk_profile = "open"\nworkspace.path = "desk"\n'
        '[risk_profiles.open]\nallowed_roots = ["notes"]\n',
    )
    write(tmp_path / "retinue.toml", '[agents.other]\nrisk_profile = "open"\n')

    settings = found(tmp_path)
    mine, other = settings.core_agents()

    assert settings.tool_modules == (module,)
    assert mine.workspace == str(user / "desk")
    assert [each.policy and each.policy.allowed_roots for each in (mine, other)] == [(str(user / "notes"),)] * 2


def test_the_store_may_be_named_above_or_in_the_file_of_the_user(
    user: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(repository / "no-state"))
    monkeypatch.chdir(repository / "src")
    assert store_in_settings(None) is None
    write(user / "retinue.toml", '[store]\nurl = "sqlite:mine.db"\n')
    assert store_in_settings(None) == f"sqlite:{user / 'mine.db'}"
    write(repository / "retinue.toml", '[store]\nurl = "sqlite:ours.db"\n')
    assert store_in_settings(None) == f"sqlite:{repository / 'ours.db'}"


def test_errors_and_warnings_name_the_file_of_the_user(user: Path, tmp_path: Path) -> None:
    file = write(user / "retinue.toml", "[risk_profiles.open]\nsandbox_enabled = false\n")
    write(tmp_path / "retinue.toml", "[tools]\nnetwork = true\n")

    assert [str(warning).partition(": ")[0] for warning in found(tmp_path).warnings] == [f"{file}:2"]
    write(file, "[tools]\nnetwork = 3\n")
    with pytest.raises(ConfigError, match=rf"^{file}:2: tools.network: found 3"):
        found(tmp_path)


def test_a_program_reads_the_file_that_it_names_alone(user: Path, tmp_path: Path) -> None:
    write(user / "retinue.toml", '[agents.mine]\ndescription = "of the user"\n')
    file = write(tmp_path / "retinue.toml", "")

    assert load_settings(file, user=False, home=tmp_path / "home").agents == {}
    assert list(load_settings(file, home=tmp_path / "home").agents) == ["mine"]
    assert list(load_settings(project=False, home=tmp_path / "home").agents) == ["mine"]


def test_the_folder_of_the_user_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    monkeypatch.setattr("sys.platform", "linux")

    assert user_folder() == Path("/elsewhere/retinue")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert user_folder() == Path.home() / ".config" / "retinue"
    monkeypatch.setattr("sys.platform", "darwin")
    assert user_folder() == Path.home() / "Library" / "Application Support" / "retinue"


# ---- defaults and profiles -------------------------------------------------------------------------------------------

DEFAULTS = """
model = "house:qwen3"
dialects = ["spec"]

[defaults]
tools = ["file_read"]
agent = "lead"

[agents.lead]
description = "Leads"

[profiles.fast]
model = "house:qwen3-mini"
dialects = []
"""


def test_defaults_of_the_project_precede_those_of_the_user(user: Path, tmp_path: Path) -> None:
    write(user / "retinue.toml", 'dialects = ["meerkat"]\n[defaults]\ntools = ["grep"]\n')
    write(tmp_path / "retinue.toml", 'dialects = ["xzatoma"]\n')

    settings = found(tmp_path)

    assert (settings.default_dialects, settings.default_tools, settings.default_agent) == (
        ("xzatoma",),
        ("grep",),
        None,
    )


def test_a_profile_replaces_the_defaults_that_it_has(tmp_path: Path) -> None:
    write(tmp_path / "retinue.toml", DEFAULTS)

    settings = found(tmp_path)
    fast = settings.with_profile("fast")

    assert (settings.default_dialects, settings.default_agent) == (("spec",), "lead")
    assert (fast.default_dialects, fast.default_tools, fast.default_agent) == ((), ("file_read",), "lead")
    assert fast.profile == RunDefaults(model="house:qwen3-mini", dialects=())
    with pytest.raises(UnknownName, match="unknown profile: 'fats'; known: fast"):
        settings.with_profile("fats")
    with pytest.raises(BadInput, match=r"the settings have no \[profiles.NAME\]"):
        replace(settings, profiles={}).with_profile("fast")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('dialects = ["spek"]', 'retinue.toml:1: dialects: found "spek"; expected one of: '),
        (
            '[defaults]\nagent = "x"',
            'retinue.toml:2: defaults.agent: found "x"; expected the name of a table',
        ),
        (
            '[profiles.x]\nagent = "lead"',
            'retinue.toml:2: profiles.x.agent: found "lead"; expected the name of a table',
        ),
        ('base_url = "https://k:v@host/v1"', "retinue.toml:1: base_url: the base URL for host has a secret in it"),
        ('[defaults]\ntools = "shell"', 'retinue.toml:2: defaults.tools: found "shell" (a string); expected an array'),
    ],
)
def test_wrong_defaults_are_errors(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "retinue.toml", text)

    with pytest.raises(ConfigError) as caught:
        found(tmp_path)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "named", "dialects"),
    [
        ("", None, ()),
        ("[agents.a]\n", None, ("spec",)),
        ("[agents.a]\nenabled = false\n", None, ()),
        ('dialects = ["meerkat"]\n', None, ("meerkat",)),
        ("dialects = []\n[agents.a]\n", None, ()),
        ("[agents.a]\n", (), ()),
        ("", ("xzatoma",), ("xzatoma",)),
    ],
)
def test_delegation_is_offered_only_if_it_is_wanted(
    tmp_path: Path, text: str, named: tuple[str, ...] | None, dialects: tuple[str, ...]
) -> None:
    write(tmp_path / "retinue.toml", text)

    assert dialects_for(named, found(tmp_path)) == dialects


def test_default_tools_are_for_runs_without_an_agent(tmp_path: Path) -> None:
    write(tmp_path / "retinue.toml", DEFAULTS)
    settings = found(tmp_path)

    assert default_tools_for(None, (), settings) == ("file_read",)
    assert default_tools_for("lead", ("spec",), settings) == ()
