"""`retinue run`: output forms, model errors, structured answers, background runs, sessions and settings."""

from __future__ import annotations

import json

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, calls_text, fails, says, together
from tests.compatibility.scenarios.common import LOGGED, SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}
PARIS = '{"capital": "Paris", "country": "France"}'


@scenario()
def run_scripted(stage: Stage) -> None:
    """A scripted model: all output forms of an answer, then all commands that show runs."""
    usage = {"input": 40, "output": 7, "reasoning": 3}
    stage.write(
        "lines.json",
        {
            "main": [{"say": "Let me see.", "think": "Where is it?", "usage": usage}],
            "main: fail": [{"status": 400, "message": "no such model"}],
            "main: nothing": [{"say": "", "usage": {"input": 5, "output": 0}}],
        },
    )
    flags = ("run", "--provider", "scripted", "--model", "lines.json", "--dialect", "none")
    stage.run(*flags, "Find it.")
    stage.forked(*flags, "--quiet", "Find it.")
    stage.forked(*flags, "--json", "Find it.")
    stage.forked(*flags, "--sse", "Find it.")
    stage.forked(*flags, "-v", "-", stdin="Find it,\nplease.\n")
    stage.forked(*flags, "fail")
    stage.forked(*flags, "--json", "fail")
    stage.forked(*flags, "--sse", "fail")
    stage.forked(*flags, "nothing")
    rows = stage.forked("runs", "--json", "--limit", "2").json
    stage.forked("runs")
    stage.forked("runs", "--all", "--limit", "1")
    stage.forked("runs", "--session", "none-of-that-name", "--json")
    nothing, failed = (row["run_id"] for row in rows)
    stage.forked("runs", "show", nothing[-8:])
    stage.forked("runs", "show", failed, "--json")
    stage.forked("runs", "tree", nothing[-8:])
    stage.forked("runs", "tree", nothing, "--json")
    stage.forked("runs", "resume", nothing)
    stage.forked("runs", "resume", failed, "--json")
    stage.forked("runs", "cancel", nothing)


@scenario()
def run_wire(stage: Stage) -> None:
    """A model over HTTP: thinking, parallel tool calls, failing tools, retries, and all requests."""
    stage.write("retinue.toml", SETTINGS)
    stage.write("mytools.py", TOOLS)
    server = stage.server()
    server.play(
        Line(words=("Let me ", "see."), calls=(("look", '{"where":"here"}'),), thinking="Where?", usage=(120, 30, 20)),
        calls("refuse", reason="it is late"),
        fails(429, "slow down", headers={"Retry-After": "0"}, times=2, then=says("Nothing is anywhere.")),
    )
    flags = at(server, "--tools", "look,who,refuse,crash,rest", "--system", "You look.", "--think")
    stage.run(*flags, "--sse", "What is there?", env=LOGGED)
    stage.forked(*flags, "--sse", "--brief", "What is there?")
    server.play(
        together(calls("look", where="there", times=2), calls("who"), calls("refuse", reason="it is late")),
        together(calls_text("look", '{"where": 7, "colour": "red"}'), calls_text("look", "{"), calls("nonsense")),
        together(calls("crash", reason="a bug"), calls("rest")),
        says("Nothing is anywhere."),
        words="And there?",
    )
    stage.forked(*flags, "--json", "And there?", env=LOGGED, ordered=False)
    stage.show_requests(whole=True)


@scenario()
def run_model_errors(stage: Stage) -> None:
    """HTTP errors, refusals, truncated answers and a broken connection."""
    server = stage.server()
    server.play(says("Hello."))
    server.play(fails(401, "wrong key sk-secret-1234"), words="key")
    server.play(fails(404, "no such model"), words="model")
    server.play(fails(400, "maximum context length exceeded"), words="long")
    server.play(says("It is bec", stop="length"), words="length")
    server.play(Line(words=("I will ", "not."), stop="content_filter"), words="refusal")
    again = Line(words=("It is the ", "pool."))
    server.play(Line(words=("It is ",), cut=True, times=1, then=again), words="cut")
    for word in ("key", "model", "long", "length", "refusal"):
        stage.forked(*at(server, "--api-key-env", "MY_KEY"), word, env={"MY_KEY": "sk-secret-1234"})
    stage.forked(*at(server, "--sse"), "model")
    stage.forked(*at(server, "--json"), "refusal")
    stage.forked(*at(server, "--sse"), "cut", env={"RETINUE_LOG": "retinue.engine=info"})


@scenario()
def run_structured(stage: Stage) -> None:
    """Structured answers: repaired, not repairable, and in all output forms."""
    stage.write("place.json", SCHEMA)
    server = stage.server()
    server.play(says('{"capital": "Paris"}'), says(f"```json\n{PARIS}\n```"))
    server.play(says("Paris."), says("Paris!"), says("Paris?"), words="never")
    server.play(says(PARIS), words="object")
    schema = ("--output-schema", "place.json")
    stage.forked(*at(server, *schema), "Where?")
    stage.forked(*at(server, *schema, "--quiet"), "Where?")
    stage.forked(*at(server, *schema, "--json"), "Where?")
    stage.forked(*at(server, *schema, "--sse"), "Where?")
    stage.forked(*at(server, *schema), "never")
    stage.forked(*at(server, *schema, "--sse"), "never")
    stage.forked(*at(server, "--output-json"), "object")
    stage.show_requests()


@scenario()
def run_detached(stage: Stage) -> None:
    """A run in a background process, and its log file."""
    server = stage.server()
    server.play(says("Done.", hold="work"))
    run_id = stage.run(*at(server, "--detach"), "Work.").stdout.strip()
    server.wait_for_request("work")
    stage.forked("runs", "--json", title="retinue runs --json, during the run")
    server.release("work")
    answer = stage.home / "logs" / f"{run_id}.log"
    stage.wait_for(lambda: answer.exists() and answer.read_text().endswith("\n"), "the answer was never written")
    stage.forked("runs", "resume", run_id)


@scenario()
def run_session(stage: Stage) -> None:
    """A named session of several runs, and the `context` commands on it."""
    server = stage.server()
    server.play(
        calls("shared_context", action="write", key="scope", value="All of it."),
        calls("shared_context", action="write", key="phase_status", value="begun", readable_by=["orchestrator"]),
        calls("shared_context", action="snapshot", label="first"),
        says("Written."),
        words="Write.",
    )
    server.play(
        calls("shared_context", action="list_keys"),
        calls("shared_context", action="read_batch", keys=["scope", "nowhere"]),
        calls("shared_context", action="delete", key="phase_status"),
        calls("shared_context", action="write", key="scope", value="Half of it."),
        calls("shared_context", action="read_history", key="scope"),
        says("Read."),
        words="Read.",
    )
    stage.forked(*at(server, "--session", "audit", "--quiet", dialect="spec"), "Write.", env=LOGGED)
    payloads = LOGGED | {"RETINUE_LOG_PAYLOADS": "1"}
    stage.forked(*at(server, "--session", "audit", "--quiet", dialect="spec"), "Read.", env=payloads)
    stage.forked("context", "list")
    stage.forked("context", "list", "--json")
    stage.forked("context", "show", "audit")
    stage.forked("context", "show", "audit", "--json")
    stage.forked("context", "show", "audit", "--snapshot", "first")
    stage.forked("context", "show", "audit", "--snapshot", "first", "--json")
    stage.forked("context", "snapshot", "audit", "--label", "second")
    stage.forked("context", "create", "empty")
    stage.forked("context", "create", "empty")
    stage.forked("context", "archive", "empty")
    stage.forked("context", "snapshot", "empty", "--label", "late")
    stage.forked(*at(server, "--session", "empty", "--quiet"), "Read.")
    stage.forked("context", "create", "old")
    stage.forked("context", "delete", "old")
    stage.forked("context", "show", "old")
    stage.forked("runs", "--session", "audit", "--json")


@scenario()
def run_settings(stage: Stage) -> None:
    """Agents, providers, prices and limits of a settings file, in TOML and in YAML."""
    server = stage.server()
    server.play(says("Dug.", usage=(1000, 100, 400)))
    server.play(fails(503, "overloaded", headers={"Retry-After": "0"}), words="spare")
    settings = {
        "agents": {
            "dig": {
                "description": "Digs.",
                "system_prompt": "You dig.",
                "model": "near:m",
                "max_turns": 4,
                "limits": {"max_tokens": 50_000, "timeout": 60.0},
            },
            "off": {"description": "Is switched off.", "enabled": False},
        },
        "providers": {
            "near": {
                "wire": "openai-chat",
                "base_url": server.url,
                "api_key_env": "",
                "temperature": 0.25,
                "headers": {"X-Team": "search"},
                "prices": {"m": {"input": 1.0, "output": 2.0, "cached": 0.1}},
            }
        },
    }
    stage.write("settings.yaml", json.dumps(settings))
    toml = (
        '[agents.dig]\ndescription = "Digs."\nsystem_prompt = "You dig."\nmodel = "near:m"\nmax_turns = 4\n'
        "[agents.dig.limits]\nmax_tokens = 50_000\ntimeout = 60.0\n"
        f'[providers.near]\nwire = "openai-chat"\nbase_url = "{server.url}"\napi_key_env = ""\ntemperature = 0.25\n'
        'headers = { X-Team = "search" }\nprices = { m = { input = 1.0, output = 2.0, cached = 0.1 } }\n'
    )
    stage.write("retinue.toml", toml)
    stage.forked("run", "--agent", "dig", "--json", "Dig.")
    stage.forked("run", "--config", "settings.yaml", "--agent", "dig", "--json", "--dialect", "none", "Dig.")
    stage.forked("run", "--agent", "dog", "Dig.")
    stage.forked("run", "--config", "settings.yaml", "--agent", "off", "Dig.")
    variables = {"RETINUE_PROVIDER": "near", "RETINUE_MODEL": "other"}
    stage.forked("run", "--quiet", "--dialect", "none", "Dig.", env=variables)
    stage.forked("run", "--quiet", "--dialect", "none", "--max-cost", "1", "--unpriced", "ok", "Dig.", env=variables)
    stage.show_requests(whole=True)
