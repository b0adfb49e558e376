"""Help, version, `init`, `doctor`, and errors in arguments and settings."""

from __future__ import annotations

import json

from tests.compatibility.catalog import scenario
from tests.compatibility.stage import Stage

COMMANDS = """
run; call; chat; replay; approvals; approve; deny; tools; init; doctor; demo
runs; runs show; runs tree; runs resume; runs cancel; runs prune
context; context list; context show; context create; context snapshot; context archive; context delete
memory; memory list; memory show; memory forget
cron; cron add; cron list; cron remove; cron pause; cron resume; cron run-now; cron log; cron daemon
""".strip()


@scenario()
def help_texts(stage: Stage) -> None:
    """The help of every command."""
    stage.run("--version")
    stage.forked("--help", stdout="help")
    for command in COMMANDS.replace("\n", ";").split(";"):
        stage.forked(*command.split(), "--help", stdout="help")


@scenario()
def init_settings(stage: Stage) -> None:
    """The settings file of `retinue init`: its keys are contract, its comments are help."""
    stage.forked("init")
    text = (stage.work / "retinue.toml").read_text()
    keys = [line for line in text.splitlines() if line.startswith("#") and not line.startswith("# ") and len(line) > 1]
    stage.show("settings of retinue init", "\n".join(keys))
    stage.show("comments of retinue init", "\n".join(line for line in text.splitlines() if line not in keys), "help")
    stage.forked("init")
    stage.write("retinue.toml", text)
    stage.forked("init", "--force")


@scenario()
def doctor_findings(stage: Stage) -> None:
    """The findings of `retinue doctor`, without those that depend on the machine."""
    names = [each["name"] for each in stage.query("doctor", "--json").json["findings"]]
    stage.show("findings of retinue doctor --json", "\n".join(names))
    stage.write(
        "retinue.toml",
        '[agents.dig]\ntools = ["file_read", "fil_read"]\n[risk_profiles.p]\nexcluded_tools = ["shel"]\n',
    )
    told = stage.query("doctor", "--json", env={"OPENAI_API_KEY": "sk-secret", "https_proxy": "socks5://proxy:1080"})
    stage.show("exit status of retinue doctor --json", f"{told.code} {json.dumps(told.json['ok'])}")
    shown = ("state", "settings", "tools", "key OPENAI_API_KEY", "key GEMINI_API_KEY", "proxy")
    found = [each for each in told.json["findings"] if each["name"] in shown or not each["ok"]]
    stage.show("doctor", "\n".join(f"{each['name']}: {each['ok']}" for each in found if each["name"] != "sandbox"))
    prose = [f"{each['name']}: {each['found']}" for each in found if each["name"] != "sandbox"]
    stage.show("doctor", "\n".join(prose), "prose")


@scenario()
def errors_in_arguments(stage: Stage) -> None:
    """Invalid arguments and environment variables."""
    stage.write("lines.json", [{"say": "Hi."}])
    script = ("--provider", "scripted", "--model", "lines.json")
    stage.forked(stderr="help")
    for words in (
        ("explode",),
        ("run",),
        ("run", "--explode", "x"),
        ("run", "--max-turns", "0", "x"),
        ("run", "--max-turns", "many", "x"),
        ("run", "--timeout", "0", *script, "x"),
        ("run", "--max-cost", "nan", *script, "x"),
        ("run", "--json", "--sse", *script, "x"),
        ("run", "--sse", "--detach", *script, "x"),
        ("run", "--output-json", "--output-schema", "x", *script, "x"),
        ("run", "--output-schema", "nowhere.json", *script, "x"),
        ("run", "--dialect", "klingon", *script, "x"),
        ("run", "--dialect", "spec", "--dialect", "xzatoma", *script, "x"),
        ("run", "--tools", "fil_read", *script, "x"),
        ("run", "--agent", "unknown", *script, "x"),
        ("run", "--approvals", "perhaps", *script, "x"),
        ("run", "--yes", "--approvals", "deny", *script, "x"),
        ("run", "--provider", "unknown", "--model", "m", "x"),
        ("run", "--provider", "anthropic", "--model", "m", "x"),
        ("run", "--provider", "scripted", "--model", "nowhere.json", "x"),
        ("run", "--provider", "scripted", "x"),
        ("run", "--provider", "openai-chat", "--base-url", "nonsense", "--model", "m", "x"),
        ("run", "--api-key-env", "sk-1234", *script, "x"),
        ("run", "--config", "nowhere.toml", *script, "x"),
        ("run", *script, ""),
        ("runs", "show", "nothing"),
        ("runs", "show", "x"),
        ("runs", "resume", "nothing"),
        ("runs", "prune"),
        ("runs", "explode"),
        ("context", "show", "nothing"),
        ("memory", "show", "unknown", "nothing"),
        ("approve", "nothing"),
        ("replay", "--limit", "-1", "--list"),
        ("tools", "extra"),
    ):
        stage.forked(*words)
    stage.forked("runs", env={"RETINUE_LOG": "loud"})
    stage.forked("runs", env={"RETINUE_LOG": "other=info"})
    stage.write("taken", "a file")
    stage.forked("runs", env={"RETINUE_HOME": str(stage.work / "taken" / "home")})
    stage.forked("run", *script, "--quiet", "x", env={"RETINUE_HOME": str(stage.work / "taken" / "home")})


SETTINGS = (
    "[agents\n",
    '[agents."Bad Name"]\ndescription = "x"\n',
    '[agents.dig]\nmax_turns = "ten"\n',
    "[agents.dig]\nmax_turns = 0\n",
    "[agents.dig]\ncolour = 1\n",
    "[agents.dig.limits]\ntimeout = -1\n",
    '[agents.dig]\nrisk_profile = "unknown"\n',
    '[agents.dig]\nmodel_provider = "unknown.nowhere"\n',
    '[providers.near]\nbase_url = "http://x"\n',
    '[providers.near]\nwire = "klingon"\n',
    '[providers.openai]\napi_key_env = "sk-1234"\n',
    "[providers.openai]\ntemperature = 3\n",
    '[risk_profiles.p]\nlevel = "bold"\n',
    "[runtime_profiles.p]\nmax_actions_per_hour = -1\n",
    '[tools]\nsandbox = "perhaps"\n',
    '[tools]\nmodules = ["./nowhere.py"]\n',
    '[spec]\nextensions = ["explode"]\n',
    "[sub_agents]\ndefault_budget = -1\n",
    "[buzzllm]\ntimeout_secs = 0\n",
    '[cron]\nmissed = "twice"\n',
    "[weather]\nx = 1\n",
    "[agents.dig]\nskill_bundles = []\n[risk_profiles.p]\nfirejail_args = []\n",
)


@scenario()
def errors_in_settings(stage: Stage) -> None:
    """Invalid settings files, in TOML and in YAML."""
    stage.write("lines.json", [{"say": "Hi.", "usage": {"input": 1, "output": 1}}])
    run = ("run", "--provider", "scripted", "--model", "lines.json", "--dialect", "none", "--quiet")
    for text in SETTINGS:
        stage.write("retinue.toml", text)
        stage.forked(*run, "x", title=f"retinue run with {json.dumps(text)}")
    (stage.work / "retinue.toml").unlink()
    for text in ("agents: [\n", "agents:\n  dig:\n    max_turns: ten\n", "agents: 7\n", "- 1\n"):
        stage.write("retinue.yaml", text)
        stage.forked(*run, "x", title=f"retinue run with {json.dumps(text)} in YAML")
