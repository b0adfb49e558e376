"""Agent files of other programs: every format, the oddities of real collections, and hostile input."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.agent_files.agent_file import (
    KNOWN_KEYS,
    AgentFile,
    NotAnAgentFile,
    UnusableAgentFile,
    read_agent_file,
)
from retinue.config.agent_files.folders import FileError, find_agents
from retinue.config.agent_files.toml_output import as_toml
from retinue.config.agent_files.translation import AgentFileSettings, FormatTables
from retinue.config.agents import AgentSettings
from retinue.core.errors import BadInput
from retinue.providers.catalog import CLAUDE_MODELS
from retinue.providers.pricing import list_prices
from retinue.tools.builtin import BUILTIN

OWN = frozenset(BUILTIN)
HERE = FormatTables(own_tools=OWN, providers={"anthropic": "anthropic", "openai-responses": "openai-responses"})
NO_KEYS = FormatTables(own_tools=OWN)


def read(text: str, path: str = "reviewer.md", translation: FormatTables = HERE) -> AgentFile:
    (agent,) = read_agent_file(path, text, translation)
    return agent


def notes(agent: AgentFile) -> list[tuple[int | None, str]]:
    return [(warning.line, warning.text) for warning in agent.warnings]


def test_a_claude_code_file_becomes_an_agent() -> None:
    agent = read(
        "---\nname: code-reviewer\ndescription: Reviews code\ntools: Read, Grep, Bash\nmodel: sonnet\nmaxTurns: 12\n"
        "color: red\n---\n\nYou review code.\n"
    )

    assert agent == AgentFile(
        "code-reviewer",
        "reviewer.md",
        "claude",
        AgentSettings(
            description="Reviews code",
            system_prompt="You review code.",
            tools=("file_read", "grep", "shell"),
            model="anthropic:claude-sonnet-5-5",
            max_turns=12,
        ),
    )


@pytest.mark.parametrize(
    "tools",
    ["tools: Read, Edit", "tools: [Read, Edit]", "tools:\n  - Read\n  - Edit", "tools:\n  Read: true\n  Edit: true"],
)
def test_tools_are_a_text_a_list_or_a_mapping(tools: str) -> None:
    assert read(f"---\nname: a\ndescription: b\n{tools}\n---\nx").settings.tools == ("file_read", "file_edit")


def test_a_file_without_tools_has_the_default_of_the_dialect() -> None:
    assert read("---\nname: a\ndescription: b\n---\nx").settings.tools is None
    assert read("---\nname: a\ndescription: b\ntools: '*'\n---\nx").settings.tools is None


def test_disallowed_tools_are_removed() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Read, Bash\ndisallowedTools: Bash\n---\nx")

    assert agent.settings.tools == ("file_read",)


@pytest.mark.parametrize(
    ("removal", "excluded", "told"),
    [
        ("disallowedTools: Bash, mcp__github", ("shell", "mcp__github"), []),
        ("disallowedTools: Bash(rm:*)", ("shell",), [(4, "'Bash(rm:*)' removes the whole tool Bash")]),
        ("tools:\n  write: false\n  bash: false", ("file_write", "shell"), []),
    ],
)
def test_tools_are_removed_from_those_that_an_agent_inherits(
    removal: str, excluded: tuple[str, ...], told: list[tuple[int, str]]
) -> None:
    agent = read(f"---\nname: a\ndescription: b\n{removal}\n---\nx")

    assert (agent.settings.tools, agent.settings.excluded_tools) == (None, excluded)
    assert notes(agent) == told


def test_rights_that_an_opencode_file_denies_are_taken() -> None:
    agent = read("---\ndescription: b\npermission:\n  edit: deny\n  bash: ask\n---\nx", ".opencode/agent/a.md")

    assert agent.settings.excluded_tools == ("file_edit", "file_write")
    reason = "apart from tools that it denies, the settings and --approvals decide what an agent may do"
    assert notes(agent) == [(3, f"permission is ignored: {reason}")]


@pytest.mark.parametrize(
    ("denial", "left"),
    [
        ("disallowedTools: '*'", ()),
        ("disallowedTools: '*'\nmcpServers: [github]", ()),
        ("tools:\n  '*': false", ()),
        ("tools:\n  '*': false\n  read: true", ("file_read",)),
        ("permission: deny", ()),
        ("tools: Read, Bash\npermission: deny", ()),
        ("permission:\n  '*': deny\n  read: allow", ("file_read",)),
        ("permission:\n  read: allow\n  '*': deny", ()),  # the last one counts
    ],
)
def test_a_file_that_denies_all_tools_inherits_none(denial: str, left: tuple[str, ...]) -> None:
    agent = read(f"---\nname: a\ndescription: b\n{denial}\n---\nx")

    assert agent.settings.tools == left


def test_a_tool_of_which_some_uses_are_denied_is_removed() -> None:
    agent = read("---\ndescription: b\npermission:\n  bash:\n    '*': deny\n    git log: allow\n---\nx", "agent/a.md")

    assert agent.settings.excluded_tools == ("shell",)
    assert (3, "what is denied of 'bash' removes the whole tool") in notes(agent)


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ("tools: mcp__github__*\ndisallowedTools: mcp__github__delete", ("mcp__github__*",)),
        ("tools: Read\nmcpServers: [github]\ndisallowedTools: mcp__github__delete", ("file_read", "mcp__github__*")),
    ],
)
def test_a_tool_of_a_server_is_removed_from_a_pattern_that_has_it(fields: str, tools: tuple[str, ...]) -> None:
    agent = read(f"---\nname: a\ndescription: b\n{fields}\n---\nx")

    assert (agent.settings.tools, agent.settings.excluded_tools) == (tools, ("mcp__github__delete",))


def test_a_server_is_removed_with_its_tools() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Read, mcp__github__search\ndisallowedTools: mcp__github\n---\nx")

    assert agent.settings.tools == ("file_read",)


def test_a_tool_that_is_limited_to_commands_is_left_out_instead_of_widened() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Read, Bash(git add:*, git log:*)\n---\nx")

    assert agent.settings.tools == ("file_read",)
    assert notes(agent) == [
        (4, "tool 'Bash(git add:*, git log:*)' is left out: its limit to 'git add:*, git log:*' cannot be kept")
    ]


def test_unknown_tools_are_named_and_an_agent_without_any_is_not_usable() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Teleport\n---\nx")

    assert (agent.settings.tools, agent.is_usable) == ((), False)
    assert notes(agent) == [
        (4, "tool 'Teleport' has no equal and is left out"),
        (4, "none of its tools exists here: the agent has no tools"),
    ]


def test_delegation_tools_of_other_programs_are_left_to_the_dialect() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Read, Task\n---\nx")

    assert (agent.settings.tools, agent.warnings) == (("file_read",), ())


def test_a_limit_of_a_delegation_tool_is_reported() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: Read, Agent(worker, tester)\n---\nx")

    assert agent.settings.tools == ("file_read",)
    assert notes(agent) == [
        (4, "the limit of tool 'Agent(worker, tester)' is not kept: settings decide which agents it can start")
    ]


def test_tools_of_mcp_servers_keep_their_names_and_patterns() -> None:
    agent = read("---\nname: a\ndescription: b\ntools: mcp__github__*, mcp__jira__search\n---\nx")

    assert agent.settings.tools == ("mcp__github__*", "mcp__jira__search")


def test_tables_of_the_settings_come_before_the_built_in_ones() -> None:
    own = AgentFileSettings(tools={"Bash": ("terminal",), "Teleport": ("fetch",)}, models={"sonnet": "local:qwen3"})
    translation = FormatTables(own, own_tools=OWN)

    agent = read("---\nname: a\ndescription: b\ntools: Bash, Teleport\nmodel: sonnet\n---\nx", translation=translation)

    assert (agent.settings.tools, agent.settings.model, agent.warnings) == (("terminal", "fetch"), "local:qwen3", ())


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("inherit", ""),
        ("haiku", "anthropic:claude-haiku-5-5"),
        ("claude-opus-4-5", "anthropic:claude-opus-4-5"),
        ("anthropic/claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gpt-5-mini", "openai-responses:gpt-5-mini"),
    ],
)
def test_models_are_translated_to_providers_that_are_set_up(written: str, model: str) -> None:
    agent = read(f"---\nname: a\ndescription: b\nmodel: {written}\n---\nx")

    assert (agent.settings.model, agent.warnings) == (model, ())


def test_the_aliases_are_models_with_prices() -> None:
    assert [alias for alias, model in CLAUDE_MODELS.items() if model not in list_prices().models] == []


def test_a_model_of_a_provider_without_a_key_is_replaced_by_the_parent_model() -> None:
    agent = read("---\nname: a\ndescription: b\nmodel: sonnet\n---\nx", translation=NO_KEYS)

    assert agent.settings.model == ""
    assert notes(agent) == [
        (4, "model 'sonnet' needs the provider anthropic, which is not set up; the parent's model is used")
    ]


def test_an_unquoted_colon_is_read_as_it_was_meant() -> None:
    agent = read('---\nname: a\ndescription: Use it when: code changes. Example: "x"\ntools: Read\n---\nx')

    assert agent.settings.description == 'Use it when: code changes. Example: "x"'
    assert agent.settings.tools == ("file_read",)
    assert [line for line, text in notes(agent) if "not valid YAML" in text] == [3]


def test_a_description_over_raw_lines_ends_at_the_next_known_key() -> None:
    text = "---\nname: a\ndescription: First.\nContext: user asks\nuser: 'hi'\n\t<example>\ntools: Read\n---\nbody"

    agent = read(text)

    assert agent.settings.description == "First.\nContext: user asks\nuser: 'hi'\n\t<example>"
    assert agent.settings.tools == ("file_read",)


@pytest.mark.parametrize("end", ["---  Text after it.", " ---\nText after it."])
def test_a_closing_line_with_more_than_dashes_is_taken(end: str) -> None:
    agent = read(f"---\nname: a\ndescription: b\n{end}\n")

    assert (agent.name, agent.settings.description, agent.settings.system_prompt) == ("a", "b", "Text after it.")
    assert notes(agent) == [(4, "the line that closes the front matter has more than ---")]


def test_byte_order_mark_windows_line_ends_and_leading_blank_lines_are_accepted() -> None:
    agent = read("\ufeff\r\n\r\n---\r\nname: a\r\ndescription: b\r\n---\r\nOne\r\nTwo\r\n")

    assert agent.settings.system_prompt == "One\nTwo"
    assert notes(agent) == [(1, "blank lines before the front matter are ignored")]


@pytest.mark.parametrize(
    ("written", "name"), [("Code Reviewer", "code-reviewer"), ("42", "42"), ("ops:deploy", "ops-deploy")]
)
def test_names_become_names_of_the_settings(written: str, name: str) -> None:
    assert read(f"---\nname: {written}\ndescription: b\n---\nx").name == name


def test_a_missing_name_is_that_of_the_file_and_a_missing_description_the_first_line() -> None:
    unnamed = read("---\ndescription: b\n---\nx", "agents/Log Reader.md")
    undescribed = read("---\nname: a\n---\n\n# Reads logs\n\nYou read.")

    assert (unnamed.name, notes(unnamed)) == (
        "log-reader",
        [(2, "there is no name; the name of the file is used: log-reader")],
    )
    assert undescribed.settings.description == "Reads logs"


def test_fields_without_an_equal_are_named_with_their_lines() -> None:
    agent = read(
        "---\nname: a\ndescription: b\npermissionMode: bypassPermissions\nhooks:\n  Stop: []\nmood: good\n---\nx"
    )

    assert notes(agent) == [
        (4, "permissionMode 'bypassPermissions' is ignored: the settings and --approvals decide what it may do"),
        (5, "hooks is ignored: hooks of files are not run"),
        (7, "mood is ignored"),
    ]


@pytest.mark.parametrize(
    ("mode", "read_only", "is_told"),
    [
        ("plan", True, False),
        ("default", False, False),
        ("acceptEdits", False, True),
        ("dontAsk", False, True),
        ("bypassPermissions", False, True),
        ("auto", False, True),
    ],
)
def test_a_permission_mode_takes_rights_and_gives_none(mode: str, read_only: bool, is_told: bool) -> None:
    agent = read(f"---\nname: a\ndescription: b\npermissionMode: {mode}\n---\nx")

    assert agent.settings == AgentSettings(description="b", system_prompt="x", read_only=read_only)
    told = f"permissionMode {mode!r} is ignored: the settings and --approvals decide what it may do"
    assert notes(agent) == ([(4, told)] if is_told else [])


def test_an_agent_of_the_background_is_read() -> None:
    agent = read("---\nname: a\ndescription: b\nbackground: true\n---\nx")

    assert (agent.settings.background, agent.settings.agent("a").background, agent.warnings) == (True, True, ())


def test_memory_gives_an_agent_with_tools_the_tools_of_memory() -> None:
    told = (5, "what the agent remembers is kept by memory_store and memory_recall, not in files")
    agent = read("---\nname: a\ndescription: b\ntools: Read\nmemory: project\n---\nx")

    assert agent.settings.tools == ("file_read", "memory_store", "memory_recall")
    assert notes(agent) == [told]
    assert read("---\nname: a\ndescription: b\nmemory: user\n---\nx").settings.tools is None


def test_servers_of_a_file_are_those_of_the_settings_and_none_is_started_from_it() -> None:
    named = read("---\nname: a\ndescription: b\ntools: Read\nmcpServers: [github, 'a b']\n---\nx")
    inline = read("---\nname: a\ndescription: b\ntools: Read\nmcpServers:\n  - jira:\n      command: sh\n---\nx")
    inherits = read("---\nname: a\ndescription: b\nmcpServers: github\n---\nx")

    assert (named.settings.tools, named.warnings) == (("file_read", "mcp__github__*"), ())
    assert inline.settings.tools == ("file_read", "mcp__jira__*")
    assert notes(inline) == [(5, "no server is started from a file: declare jira in [mcp_servers.NAME]")]
    assert inherits.settings.tools is None
    assert notes(inherits) == [
        (
            4,
            "mcpServers is ignored: without tools the agent has those of its caller; MCP servers are declared in the "
            "settings",
        )
    ]


def test_skills_hooks_and_other_fields_without_an_equivalent_are_reported() -> None:
    agent = read("---\nname: a\ndescription: b\nskills: [x]\nhooks:\n  Stop: []\ninitialPrompt: Go\n---\nx")

    assert agent.settings == AgentSettings(description="b", system_prompt="x")
    assert notes(agent) == [
        (4, "skills is ignored: skills are not loaded"),
        (5, "hooks is ignored: hooks of files are not run"),
        (7, "initialPrompt is ignored: the task of the caller is the first message"),
    ]


def test_turns_and_effort_of_a_file_are_those_of_the_agent() -> None:
    agent = read("---\nname: a\ndescription: b\nmaxTurns: 7\neffort: high\n---\nx")

    assert (agent.settings.max_turns, agent.settings.effort, agent.warnings) == (7, "high", ())


def test_isolation_is_read_if_it_is_a_worktree() -> None:
    known = read("---\nname: a\ndescription: b\nisolation: worktree\n---\nx")
    unknown = read("---\nname: a\ndescription: b\nisolation: remote\n---\nx")

    assert (known.settings.isolation, known.settings.agent("a").isolation, known.warnings) == (
        "worktree",
        "worktree",
        (),
    )
    assert unknown.settings.isolation is None
    assert notes(unknown) == [(4, "isolation is not worktree; it is ignored")]


def test_effort_is_read_if_it_is_a_known_step() -> None:
    known = read("---\nname: a\ndescription: b\neffort: xhigh\n---\nx")
    unknown = read("---\nname: a\ndescription: b\neffort: 7000\n---\nx")

    assert (known.settings.effort, known.warnings) == ("xhigh", ())
    assert unknown.settings.effort is None
    assert notes(unknown) == [(4, "effort is none of: none, minimal, low, medium, high, xhigh, max; it is ignored")]


def test_codex_files_are_read() -> None:
    text = 'name = "explorer"\ndescription = "Explores"\nmodel = "gpt-5-mini"\nsandbox_mode = "danger-full-access"\n'
    agent = read(f'{text}developer_instructions = """\nYou explore.\n"""\n', "explorer.toml")

    assert (agent.name, agent.source, agent.settings.system_prompt) == ("explorer", "codex", "You explore.")
    assert agent.settings.model == "openai-responses:gpt-5-mini"
    assert notes(agent) == [
        (4, "sandbox_mode 'danger-full-access' is ignored: the settings and --approvals decide what it may do")
    ]
    assert agent.settings.read_only is False


def test_a_codex_file_for_reading_makes_an_agent_that_changes_nothing() -> None:
    agent = read('name = "a"\ndescription = "b"\nsandbox_mode = "read-only"\ndeveloper_instructions = "x"\n', "a.toml")

    assert (agent.settings.read_only, agent.warnings) == (True, ())


def test_opencode_files_are_named_by_their_path() -> None:
    text = "---\ndescription: Plans\nmode: subagent\ntools:\n  write: false\n  read: true\nsteps: 5\n---\nYou plan."
    agent = read(text, ".opencode/agent/planner.md")

    assert (agent.name, agent.source, agent.warnings) == ("planner", "opencode", ())
    assert (agent.settings.tools, agent.settings.max_turns) == (("file_read",), 5)


def test_an_opencode_file_in_a_folder_is_named_by_its_whole_path() -> None:
    text = "---\ndescription: Finds holes\nmode: subagent\n---\nx"
    agent = read(text, ".opencode/agents/review/security.md")

    assert agent.name == "review-security"


def test_sampling_of_a_file_is_that_of_the_agent() -> None:
    agent = read("---\ndescription: d\nmode: all\ntemperature: 0.2\ntop_p: .9\n---\nx", ".opencode/agent/a.md")
    wrong = read("---\nname: a\ndescription: d\ntemperature: 1.5\ntop_p: high\n---\nx")

    assert (agent.settings.temperature, agent.settings.top_p, agent.warnings) == (0.2, 0.9, ())
    assert (wrong.settings.temperature, wrong.settings.top_p) == (None, None)
    assert notes(wrong) == [
        (4, "temperature is not a number from 0 to 1 and is ignored"),
        (5, "top_p is not a number from 0 to 1 and is ignored"),
    ]


def test_minutes_of_a_gemini_file_limit_the_time_of_work() -> None:
    agent = read("---\nkind: local\nname: g\ndescription: d\ntimeout_mins: 5\n---\nx")

    assert (agent.settings.limits.timeout, agent.warnings) == (300, ())


def test_a_remote_agent_of_gemini_is_not_started() -> None:
    text = "---\nkind: remote\nname: g\ndescription: d\nagent_card_url: https://example.com/card\n---\n"

    with pytest.raises(
        UnusableAgentFile, match="it names a remote agent, which cannot be started from a file"
    ) as found:
        read(text)
    assert found.value.line == 2


def test_gemini_and_copilot_files_are_read() -> None:
    gemini = read(
        "---\nkind: local\nname: g\ndescription: d\ntools: [read_file, run_shell_command]\nmax_turns: 7\n---\nx"
    )
    copilot = read("---\ndescription: d\ntools: ['edit/editFiles', 'search']\n---\nx", ".github/agents/fix.agent.md")

    assert (gemini.source, gemini.settings.tools, gemini.settings.max_turns) == ("gemini", ("file_read", "shell"), 7)
    assert (copilot.name, copilot.source) == ("fix", "copilot")
    assert copilot.settings.tools == ("file_edit", "file_write", "grep", "bash_find")


def test_agents_of_a_settings_file_lose_what_the_settings_decide() -> None:
    agent = read('[agents.a]\ndescription = "d"\nrisk_profile = "all"\ntools = ["shell"]\n', "x.toml")

    assert (agent.source, agent.settings) == ("retinue", AgentSettings(description="d", tools=("shell",)))
    assert notes(agent) == [(1, "risk_profile is ignored: the settings decide it")]


@pytest.mark.parametrize("text", ["# A page\n", "", "text\n---\nname: a\n---\n", "[project]\nname = 'x'\n"])
def test_other_files_are_no_agent_files(text: str) -> None:
    with pytest.raises(NotAnAgentFile):
        read(text, "x.toml" if text.startswith("[") else "x.md")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("---\nname: a\n", 1, "the front matter has no closing line ---"),
        ("---\ntitle: a\n---\n", None, "it has neither a name nor a description: this is not an agent"),
    ],
)
def test_files_that_define_no_agent_say_why(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(UnusableAgentFile) as caught:
        read(text)

    assert (caught.value.line, caught.value.reason) == (line, reason)


@pytest.mark.parametrize(
    "hostile", ["x: " + "[" * 60_000, "- " * 60_000, "a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]", "tools: " + "{a: " * 3000]
)
def test_nested_and_expanding_yaml_is_bounded(hostile: str) -> None:
    assert read(f"---\nname: a\ndescription: b\n{hostile}\n---\nx").name == "a"


PIECES = st.sampled_from([*"-: \n\t[]{}'\"|>&*!#,ab0", *sorted(KNOWN_KEYS)])


@given(st.lists(PIECES, max_size=200))
def test_no_front_matter_raises_anything_else(pieces: list[str]) -> None:
    try:
        agents = read_agent_file("x.md", f"---\n{''.join(pieces)}\n---\nbody", HERE)
    except (NotAnAgentFile, UnusableAgentFile):
        return
    assert len(agents) == 1


def test_one_bad_file_does_not_stop_the_rest_and_equal_names_get_numbers(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text("---\nname: twin\ndescription: one\n---\nx")
    (tmp_path / "bad.md").write_text("---\nname: bad\n")
    (tmp_path / "README.md").write_text("# Agents\n")
    (tmp_path / "sub" / "SKILL.md").write_text("---\nname: skill\ndescription: no agent\n---\n")
    (tmp_path / "sub" / "b.md").write_bytes(b"---\nname: twin\ndescription: two \xff\n---\nx")

    found = find_agents([tmp_path], HERE)

    assert (found.files, [agent.name for agent in found.agents]) == (3, ["twin", "twin-2"])
    assert found.errors == (FileError(str(tmp_path / "bad.md"), 1, "the front matter has no closing line ---"),)
    assert found.agents[1].warnings[-1].text == (
        f"the name 'twin' is taken by {tmp_path / 'a.md'}; this one is 'twin-2'"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "developer_instructions = 'x'\n" + ".".join("a" * 100_000) + " = 1",
            "not readable: a key of more than 64 parts",
        ),
        ("developer_instructions = 'x'\nx = " + "9" * 5000, "not valid TOML: exceeds the limit"),
        ("developer_instructions = 'x'\nx = [" + "1," * 30_000 + "]", "not readable: more than 20000 values"),
    ],
)
def test_toml_that_takes_long_is_refused_before_it_is_parsed(text: str, reason: str) -> None:
    with pytest.raises(UnusableAgentFile) as caught:
        read_agent_file("hostile.toml", text, HERE)

    assert caught.value.reason.startswith(reason)


def test_many_blank_lines_and_commas_are_read_once() -> None:
    with pytest.raises(NotAnAgentFile):
        read_agent_file("blank.toml", "\n" * 1_000_000, HERE)

    agent = read("---\nname: a\ndescription: b\ntools: >\n " + "Read(" + "," * 200_000 + "), Grep" + "\n---\nBody.\n")
    assert agent.settings.tools == ("grep",)


def test_a_folder_of_claude_code_has_no_other_files_than_agents(tmp_path: Path) -> None:
    for name in ("SKILL.md", "a.prompt.md", "venv/b.md", "c.txt"):
        for folder in (".claude/agents", "other"):
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"---\nname: {file.stem}\ndescription: d\n---\nx")

    def names(folder: str) -> list[str]:
        return [agent.name for agent in find_agents([tmp_path / folder], HERE).agents]

    assert (names(".claude/agents"), names("other")) == (["skill", "a-prompt", "b"], [])


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    agents, shared = tmp_path / "agents", tmp_path / "shared"
    for folder in (agents, shared):
        folder.mkdir()
        (folder / f"{folder.name}.md").write_text(f"---\nname: {folder.name}\ndescription: d\n---\nx")
    (agents / "again").symlink_to(shared)
    (agents / "linked").symlink_to(shared)
    (agents / "loop").symlink_to(agents)
    (agents / "itself.md").symlink_to(agents / "itself.md")

    assert [agent.name for agent in find_agents([agents], HERE).agents] == ["shared", "agents"]


def test_a_link_to_a_whole_disk_is_not_walked_without_end(tmp_path: Path) -> None:
    disk, agents = tmp_path / "disk", tmp_path / ".claude" / "agents"
    for number in range(2001):
        (disk / str(number)).mkdir(parents=True)
    agents.mkdir(parents=True)
    (agents / "shared").symlink_to(disk)

    with pytest.raises(BadInput, match="there are more than 2000 folders"):
        find_agents([tmp_path / ".claude"], HERE)


def test_a_missing_folder_and_a_huge_file_are_reported(tmp_path: Path) -> None:
    (tmp_path / "huge.md").write_bytes(b"---\nname: a\n---\n" + b"x" * (1 << 20))

    assert [error.text for error in find_agents([tmp_path], HERE).errors] == ["it is larger than 1 MiB"]
    with pytest.raises(BadInput, match="there is no folder or file"):
        find_agents([tmp_path / "none"], HERE)


def test_converted_agents_are_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    fields = 'name: a\ndescription: "say \\"hi\\""\ntools: Read\ntemperature: 0.5\ntimeout_mins: 3\n'
    agent = read(f'---\n{fields}---\nOne \\ two\n"""three"""\n\x07')

    converted = read(as_toml([agent]), "out.toml")

    assert converted.settings == agent.settings
