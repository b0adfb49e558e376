"""The examples of the document of xzatoma, its headings in their order, run by the command with a scripted model.

Numbers in brackets are rows of the settled list, where this project decides what the document leaves open.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.core.usage import Usage
from retinue.dialects.xzatoma import XzatomaSettings
from retinue.providers.scripted import Line, calls, fails, hangs, says
from retinue.testing.fake_chat import FakeChat
from tests.cli.stage import Ended, retinue

pytestmark = pytest.mark.real_time

COMPLETE_INPUT = {
    "label": "research_quantum_computing",
    "task_prompt": "Research quantum computing breakthroughs in 2024. Focus on: new algorithms, hardware improvements, "
    "and companies leading the field.",
    "summary_prompt": "Create an executive summary with sections: Breakthroughs, Technical Details, Commercial Impact, "
    "Future Outlook",
    "allowed_tools": ["fetch", "grep"],
    "max_turns": 8,
}

COMPLETE_OUTPUT = {
    "success": True,
    "output": "Quantum Computing 2024 Breakthroughs:\n\nKey Advances:\n"
    "- Google's Willow chip achieves quantum advantage in new domains\n- IBM rolls out 1000+ qubit systems\n"
    "- Atom Computing demonstrates 24-qubit neutral atom system\n\n"
    "Technical Details:\nQuantum error correction (QEC) remains the bottleneck...",
    "error": None,
    "metadata": {
        "subagent_label": "research_quantum_computing",
        "recursion_depth": "1",
        "completion_status": "complete",
        "turns_used": "4",
        "max_turns_reached": "false",
        "tokens_consumed": "3200",
    },
}


TELEMETRY = "warn,retinue.tools.subagent=debug"


class Session:
    """One folder and state folder, in which commands run against a model that answers with these lines in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self.ended = Ended(0, "", "")

    async def run(
        self,
        *lines: Line,
        settings: str = "",
        stdin: bytes | None = None,
        command: str = "run",
        log: dict[str, str] | None = None,
    ) -> None:
        """`xzatoma run` or `xzatoma chat` as it is typed here, by default with its telemetry on stderr."""
        (self.folder / "config.yaml").write_text(settings)
        left = iter(lines)
        async with FakeChat(lambda request: next(left)) as vendor:
            self.ended = await retinue(
                *(command, "--config", "config.yaml", "--dialect", "xzatoma", "--quiet"),
                *("--base-url", vendor.base_url, "--model", "fake-1"),
                *(("Go on.",) if stdin is None else ()),
                stdin=stdin,
                cwd=self.folder,
                env={"RETINUE_HOME": str(self.folder / "home"), **(log or {"RETINUE_LOG": TELEMETRY})},
            )
        self.requests = [request.body for request in vendor.requests]
        found = re.findall(r"^\S+ [A-Z]+ retinue\.tools\.subagent (.*)$", self.ended.stderr, re.MULTILINE)
        self.logged = list(found)

    async def delegate(self, arguments: dict[str, Any], *lines: Line, settings: str = "") -> dict[str, Any]:
        """The answer to one call of `subagent` by the root; `lines` are the replies of the subagents."""
        await self.run(calls("subagent", **arguments), *lines, says("Thanks."), settings=settings)
        assert (self.ended.code, self.ended.stdout) == (0, "Thanks.\n"), self.ended.stderr
        return self.result()

    def result(self) -> dict[str, Any]:
        """The last result that the root's model read."""
        return json.loads(self.requests[-1]["messages"][-1]["content"])

    def offered(self, request: int) -> list[str]:
        """The tools that a request offers."""
        return [tool["function"]["name"] for tool in self.requests[request].get("tools", ())]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    for name in (
        "RETINUE_MODEL",
        "RETINUE_PROVIDER",
        "RETINUE_BASE_URL",
        "RETINUE_API_KEY_ENV",
        "RUST_LOG",
        "RETINUE_LOG",
    ):
        monkeypatch.delenv(name, raising=False)
    return Session(tmp_path)


def uses_grep(pattern: str, *, input: int, output: int) -> Line:
    """A call of grep that costs this many tokens."""
    return replace(calls("grep", pattern=pattern), usage=Usage(input=input, output=output))


def task(**more: Any) -> dict[str, Any]:
    return {"label": "dig", "task_prompt": "Find it.", **more}


class TestOverview:
    """## Overview."""

    async def test_overview(self, session: Session) -> None:
        """The subagent's conversation is its own: the parent reads the summary alone."""
        result = await session.delegate(
            task(), calls("grep", pattern="secret detail"), says("Long talk."), says("Short.")
        )

        assert result["output"] == "Short."
        assert "Go on." not in json.dumps(session.requests[1]["messages"])
        assert "secret detail" not in json.dumps(session.requests[-1]["messages"])


class TestToolDefinition:
    """## Tool Definition."""

    async def test_name_and_description(self, session: Session) -> None:
        """### Name and ### Description."""
        await session.run(says("Nothing to do."))

        tools = {tool["function"]["name"]: tool["function"] for tool in session.requests[0]["tools"]}
        assert tools["subagent"]["description"] == (
            "Delegate a focused task to a recursive agent instance with isolated conversation context. Use this when "
            "you need to explore a sub-problem independently without polluting the main conversation."
        )


class TestInputSchema:
    """## Input Schema."""

    async def test_parameters_type_required_and_optional_fields(self, session: Session) -> None:
        """### Parameters Type, ### Required Fields and ### Optional Fields."""
        await session.run(says("Nothing to do."))

        tools = {tool["function"]["name"]: tool["function"] for tool in session.requests[0]["tools"]}
        subagent = tools["subagent"]
        parameters = subagent["parameters"]
        assert (parameters["type"], parameters["required"]) == ("object", ["label", "task_prompt"])
        fields = parameters["properties"]
        assert list(fields) == ["label", "task_prompt", "summary_prompt", "allowed_tools", "max_turns"]
        kept = ("type", "minLength", "minimum", "maximum", "default", "items")
        described = {
            name: {key: value for key, value in below.items() if key in kept} for name, below in fields.items()
        }
        assert described["label"] == {"type": "string", "minLength": 1}
        assert described["task_prompt"] == {"type": "string", "minLength": 1}
        assert described["summary_prompt"] == {"type": "string", "default": "Summarize your findings concisely"}
        assert (described["allowed_tools"]["type"], described["allowed_tools"]["items"]["type"]) == ("array", "string")
        assert described["max_turns"] == {"type": "integer", "minimum": 1, "maximum": 50}
        assert fields["max_turns"]["description"] == "How many turns the subagent may take; 10 by default."


class TestCompleteInputExample:
    """## Complete Input Example."""

    async def test_the_input_as_printed(self, session: Session) -> None:
        await session.delegate(COMPLETE_INPUT, says("Willow."), says("Willow, 1000+ qubits."))

        assert session.offered(1) == ["fetch", "grep", "subagent"]
        assert session.requests[1]["messages"][-1] == {"role": "user", "content": COMPLETE_INPUT["task_prompt"]}
        assert session.requests[2]["messages"][-1] == {"role": "user", "content": COMPLETE_INPUT["summary_prompt"]}
        assert session.offered(2) == ["fetch", "grep", "subagent"]
        assert session.requests[2]["tool_choice"] == "none"
        assert "subagent.max_turns=8 " in session.logged[0]


class TestOutputSchema:
    """## Output Schema."""

    async def test_output_is_truncated_with_the_notice(self, session: Session) -> None:
        result = await session.delegate(task(), says("Long."), says("x" * 8192))

        assert result["output"] == "x" * 4096 + "[Output truncated]"
        assert result["success"] is True

    async def test_a_subagent_that_hits_max_turns_is_incomplete(self, session: Session) -> None:
        """The summary is still requested, and the result is a success [42]."""
        result = await session.delegate(task(max_turns=1), calls("grep", pattern="a"), says("As far as I got."))

        assert (result["success"], result["output"]) == (True, "As far as I got.")
        metadata = result["metadata"]
        assert (metadata["completion_status"], metadata["max_turns_reached"], metadata["turns_used"]) == (
            "incomplete",
            "true",
            "2",
        )

    async def test_complete_output_example(self, session: Session) -> None:
        """### Response Format, ### Metadata Fields and ### Complete Output Example."""
        replies = [
            uses_grep("qubit", input=700, output=50),
            uses_grep("Willow", input=800, output=50),
            says("Willow, 1000+ qubits, neutral atoms.", usage=Usage(input=700, output=100)),
            says(str(COMPLETE_OUTPUT["output"]), usage=Usage(input=600, output=200)),
        ]

        result = await session.delegate(COMPLETE_INPUT, *replies)

        assert result == COMPLETE_OUTPUT
        assert list(result) == ["success", "output", "error", "metadata"]


class TestErrorResponse:
    """## Error Response."""

    async def test_an_error_as_printed(self, session: Session) -> None:
        """The reason is that of the model's vendor [44]."""
        result = await session.delegate(
            {**COMPLETE_INPUT, "max_turns": 8}, fails(ProviderError("Invalid tool request", fault="bad_request"))
        )

        assert (result["success"], result["output"]) == (False, "")
        assert result["error"].startswith("Subagent execution failed: ")
        assert "Invalid tool request" in result["error"]
        assert result["metadata"] == {"subagent_label": "research_quantum_computing", "recursion_depth": "1"}


class TestCommonErrorMessages:
    """## Common Error Messages."""

    async def test_maximum_subagent_depth_reached(self, session: Session) -> None:
        """One line [40]; the run at max_depth has the tool, too [41]."""
        again = calls("subagent", **task())
        answers = [says("Refused."), says("Refused.")] * 3

        await session.run(again, again, again, again, *answers, says("Thanks."))

        refused = json.loads(session.requests[4]["messages"][-1]["content"])
        assert refused["error"] == (
            "Maximum subagent recursion depth (3) exceeded. Current depth: 3. Cannot spawn nested subagent."
        )

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"task_prompt": "Find it."}, "Invalid input: missing field `label`"),
            ({"label": "", "task_prompt": "Find it."}, "Invalid input: missing field `label`"),
            (task(allowed_tools=["fetch", "subagent"]), "Tool 'subagent' cannot be used by subagents"),
            (task(allowed_tools=["nonexistent_tool"]), "Unknown tool in allowed_tools: nonexistent_tool"),
            (task(task_prompt="  "), "task_prompt cannot be empty"),
            (task(max_turns=51), "max_turns must be between 1 and 50"),
            (task(max_turns=0), "max_turns must be between 1 and 50"),
        ],
    )
    async def test_the_other_messages(self, session: Session, arguments: dict[str, Any], error: str) -> None:
        result = await session.delegate(arguments)

        assert (result["success"], result["output"], result["error"]) == (False, "", error)


class TestConfigurationReference:
    """## Configuration Reference."""

    @pytest.mark.parametrize(
        ("line", "changed"),
        [
            ("max_depth: 5", {"max_depth": 5}),
            ("default_max_turns: 15", {"default_max_turns": 15}),
            ("output_max_size: 8192", {"output_max_size": 8192}),
            ("telemetry_enabled: true", {"telemetry_enabled": True}),
            ("persistence_enabled: false", {"persistence_enabled": False}),
        ],
    )
    def test_each_key_as_printed(self, tmp_path: Path, line: str, changed: dict[str, Any]) -> None:
        from retinue.app.settings_file import dialect_settings, load_settings

        (tmp_path / "config.yaml").write_text(f"agent:\n  subagent:\n    {line}\n")

        settings = load_settings(tmp_path / "config.yaml")

        assert dialect_settings(settings)["xzatoma"] == XzatomaSettings(**changed)
        assert settings.warnings == ()

    @pytest.mark.parametrize(
        ("line", "error"),
        [
            ("max_depth: 11", "agent.subagent.max_depth cannot exceed 10 (stack overflow risk)"),
            ("max_depth: 0", "agent.subagent.max_depth must be greater than 0"),
            ("default_max_turns: 101", "agent.subagent.default_max_turns cannot exceed 100"),
            ("output_max_size: 1023", "agent.subagent.output_max_size must be at least 1024 bytes"),
        ],
    )
    async def test_valid_ranges(self, session: Session, line: str, error: str) -> None:
        await session.run(settings=f"agent:\n  subagent:\n    {line}\n")

        assert (session.ended.code, session.ended.stderr) == (
            2,
            f"error: config.yaml:3: Configuration error: {error}\n",
        )

    async def test_the_settings_of_the_file_reach_the_subagents(self, session: Session) -> None:
        settings = "agent:\n  subagent:\n    default_max_turns: 15\n    output_max_size: 1024\n"

        result = await session.delegate(task(), says("Long."), says("x" * 2000), settings=settings)

        assert "subagent.max_turns=15" in session.logged[0]
        assert result["output"] == "x" * 1024 + "[Output truncated]"


class TestTelemetryEvents:
    """## Telemetry Events."""

    async def test_events_spawn_and_complete(self, session: Session) -> None:
        """Each event is one line [49]."""
        replies = [uses_grep(word, input=700, output=50) for word in ("a", "b")]
        ends = [
            says("Found.", usage=Usage(input=800, output=100)),
            says("Summary.", usage=Usage(input=700, output=100)),
        ]

        await session.delegate({**COMPLETE_INPUT, "label": "research_quantum"}, *replies, *ends)

        assert session.logged == [
            "subagent.event=spawn subagent.label=research_quantum subagent.depth=1 subagent.max_turns=8 "
            'subagent.allowed_tools=["fetch","grep"] Spawning subagent',
            "subagent.event=complete subagent.label=research_quantum subagent.depth=1 subagent.turns_used=4 "
            "subagent.tokens_consumed=3200 subagent.status=complete Subagent completed",
        ]

    async def test_event_error(self, session: Session) -> None:
        await session.delegate(
            task(label="research_quantum"), fails(ProviderError("fetch timeout", fault="bad_request"))
        )

        *_, error = session.logged
        assert error.startswith(
            'subagent.event=error subagent.label=research_quantum subagent.depth=1 subagent.error="'
        )
        assert "fetch timeout" in error
        assert error.endswith(" Subagent execution failed")

    async def test_event_max_turns_exceeded(self, session: Session) -> None:
        replies = [*(calls("grep", pattern=str(number)) for number in range(8)), says("As far as I got.")]

        await session.delegate(task(label="research_quantum", max_turns=8), *replies)

        assert (
            "subagent.event=max_turns_exceeded subagent.label=research_quantum subagent.depth=1 subagent.max_turns=8 "
            "Subagent exceeded max turns"
        ) in session.logged

    async def test_event_truncation(self, session: Session) -> None:
        await session.delegate(task(label="research_quantum"), says("Long."), says("x" * 8192))

        assert (
            "subagent.event=truncation subagent.label=research_quantum subagent.original_size=8192 "
            "subagent.truncated_size=4096 Subagent output truncated"
        ) in session.logged

    async def test_event_depth_limit(self, session: Session) -> None:
        again = calls("subagent", **task(label="research_quantum"))

        await session.run(again, again, again, again, *[says("Refused.")] * 6, says("Thanks."))

        assert (
            "subagent.event=depth_limit subagent.label=research_quantum subagent.current_depth=3 subagent.max_depth=3 "
            "Subagent recursion depth limit enforced"
        ) in session.logged


class TestEnableLogging:
    """## Enable Logging."""

    @pytest.mark.parametrize("levels", ["info", "xzatoma::tools::subagent=debug"])
    async def test_rust_log(self, session: Session, levels: str) -> None:
        """`RUST_LOG=info xzatoma chat`: the target is `retinue.tools.subagent` here."""
        lines = [calls("subagent", **task()), says("It."), says("Summary."), says("Thanks.")]

        await session.run(*lines, command="chat", stdin=b"Use a subagent.\n", log={"RUST_LOG": levels})

        assert session.ended.code == 0, session.ended.stderr
        assert [line.partition(" ")[0] for line in session.logged] == [
            "subagent.event=spawn",
            "subagent.event=complete",
        ]


class TestUsageExamples:
    """## Usage Examples."""

    async def test_simple_information_lookup(self, session: Session) -> None:
        lookup = {
            "label": "weather_research",
            "task_prompt": "What was the highest temperature recorded on Earth in 2024?",
            "allowed_tools": ["fetch"],
            "max_turns": 3,
        }

        result = await session.delegate(lookup, says("It was measured in July."), says("July."))

        assert session.offered(1) == ["fetch", "subagent"]
        assert (result["output"], result["metadata"]["turns_used"]) == ("July.", "2")

    async def test_complex_problem_solving(self, session: Session) -> None:
        review = {
            "label": "architecture_review",
            "task_prompt": "Review this microservices architecture for scalability issues: [architecture description]",
            "summary_prompt": "Provide recommendations organized by: Critical Issues, Medium Priority, Low Priority, "
            "Implementation Timeline",
            "max_turns": 15,
        }
        replies = [*(calls("grep", pattern=str(number)) for number in range(7)), says("One shared database.")]

        result = await session.delegate(review, *replies, says("Critical Issues: the database."))

        assert {"fetch", "grep", "file_ops", "terminal", "subagent"} <= set(session.offered(1))
        assert (result["output"], result["metadata"]["turns_used"]) == ("Critical Issues: the database.", "9")

    async def test_security_isolated_task(self, session: Session) -> None:
        """A call of a tool that the subagent does not have is refused."""
        validate = {
            "label": "validate_user_code",
            "task_prompt": "Analyze this user-provided code for syntax errors and security issues: [code]",
            "allowed_tools": ["file_ops"],
            "max_turns": 2,
        }

        result = await session.delegate(validate, calls("terminal", command="ls"), says("No terminal."), says("Clean."))

        assert session.offered(1) == ["file_ops", "subagent"]
        refusal = session.requests[2]["messages"][-1]["content"]
        assert "terminal" in refusal
        assert "config.yaml" not in refusal
        assert result["output"] == "Clean."

    async def test_iterative_refinement(self, session: Session) -> None:
        steps = [("generate", "def f(x): ..."), ("review", "No bugs."), ("optimize", "Use sorted().")]
        lines: list[Line] = []
        for label, summary in steps:
            lines += [calls("subagent", label=label, task_prompt=f"{label} it"), says("Done."), says(summary)]

        await session.run(*lines, says("def f(x): return sorted(x)"))

        assert (session.ended.code, session.ended.stdout) == (0, "def f(x): return sorted(x)\n")
        read = [json.loads(each["content"]) for each in session.requests[-1]["messages"] if each["role"] == "tool"]
        assert [(each["metadata"]["subagent_label"], each["output"]) for each in read] == steps


class TestRateLimitsAndQuotas:
    """## Rate Limits and Quotas."""

    async def test_max_executions(self, session: Session) -> None:
        """What the document announces is enforced; a session is a root run [48]."""
        lines = [
            calls("subagent", **task()),
            says("It."),
            says("Summary."),
            calls("subagent", **task()),
            says("Thanks."),
        ]

        await session.run(*lines, settings="agent:\n  subagent:\n    max_executions: 1\n")

        assert session.result()["error"] == "Resource quota exceeded: Execution limit reached: 1/1"

    async def test_max_total_tokens(self, session: Session) -> None:
        used = Usage(input=900, output=100)
        lines = [calls("subagent", **task()), says("It.", usage=used), says("Summary."), calls("subagent", **task())]

        await session.run(*lines, says("Thanks."), settings="agent:\n  subagent:\n    max_total_tokens: 1000\n")

        assert session.result()["error"].startswith("Resource quota exceeded: Token limit exceeded: ")

    async def test_max_total_time(self, session: Session) -> None:
        """The time of a subagent that is at work counts, so it ends in the middle."""
        lines = [calls("subagent", **task()), hangs(), says("Thanks.")]

        await session.run(*lines, settings="agent:\n  subagent:\n    max_total_time: 1\n")

        error = session.result()["error"]
        assert re.fullmatch(r"Resource quota exceeded: Time limit exceeded: 1(\.\d+)?s >= 1s", error), error


class TestLimitations:
    """## Limitations."""

    @pytest.mark.parametrize(
        ("line", "code"), [("max_depth: 10", 0), ("max_depth: 11", 2), ("output_max_size: 1024", 0)]
    )
    async def test_maximum_depth_and_output(self, session: Session, line: str, code: int) -> None:
        await session.run(says("Fine."), settings=f"agent:\n  subagent:\n    {line}\n")

        assert session.ended.code == code

    @pytest.mark.parametrize(("turns", "success"), [(50, True), (51, False)])
    async def test_maximum_turns(self, session: Session, turns: int, success: bool) -> None:
        lines = [says("It."), says("Summary.")] if success else []

        assert (await session.delegate(task(max_turns=turns), *lines))["success"] is success

    async def test_tool_access_must_be_available_in_the_parent(self, session: Session) -> None:
        """A subagent with fetch alone cannot give grep to its own."""
        nested = calls("subagent", label="inner", task_prompt="Find it.", allowed_tools=["grep"])

        await session.delegate(task(allowed_tools=["fetch"]), nested, says("Refused."), says("Refused."))

        assert json.loads(session.requests[2]["messages"][-1]["content"])["error"] == (
            "Unknown tool in allowed_tools: grep"
        )
