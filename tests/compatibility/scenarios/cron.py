"""`retinue cron`: add, list, run-now, daemon, pause, resume, remove and log."""

from __future__ import annotations

from dataclasses import replace

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import calls, says
from tests.compatibility.scenarios.common import LOGGED
from tests.compatibility.stage import Stage

SETTINGS = """
[agents.dig]
description = "Digs."
system_prompt = "You dig."

[agents.reader]
risk_profile = "careful"

[risk_profiles.careful]
level = "readonly"
"""


@scenario()
def cron_jobs(stage: Stage) -> None:
    """Jobs of all kinds, run by hand and by a daemon."""
    stage.write("retinue.toml", SETTINGS)
    server = stage.server()
    server.play(says("Found it."))
    spawn = replace(calls("spawn_subagent", prompt="Dig there."), hold="twice")
    server.play(spawn, says("Both dug."), words="Dig twice.")
    server.play(says("Dug there."), words="Dig there.")
    model = ("--base-url", server.url, "--model", "m")
    stage.forked("cron", "list")
    dig = ("--agent", "dig", "--prompt")
    stage.forked("cron", "add", "once", "--at", "2100-07-01T09:00:00", "--tz", "Europe/Berlin", *dig, "Dig.", *model)
    stage.forked("cron", "add", "often", "--every", "90m", *dig, "Dig twice.", "--missed", "skip", *model)
    stage.forked("cron", "add", "yearly", "--cron", "0 9 1 1 *", "--tz", "Europe/Berlin", *dig, "Dig.", *model)
    stage.forked("cron", "add", "space", "--every", "1h", "--shell", "echo one && pwd", "--no-sandbox")
    stage.forked("cron", "add", "past", "--at", "2020-01-01T00:00:00Z", *dig, "Dig.", "--no-memory", *model)
    stage.forked("cron", "add", "read", "--every", "1h", "--agent", "reader", "--prompt", "Read.", *model)
    stage.forked("cron", "list")
    stage.forked("cron", "list", "--json")
    command = stage.start("cron", "run-now", "often", "--quiet", env=LOGGED)
    server.wait_for_request("twice")
    # A log line before this one has the fields of the job, or has not.
    stage.wait_for(lambda: "event=started" in command.stderr, "the start of the job was never logged")
    server.release("twice")
    stage.note(command.arguments, command.ended())
    stage.forked("cron", "run-now", "once")
    stage.forked("cron", "run-now", "once", "--json")
    stage.forked("cron", "run-now", "space")
    stage.forked("cron", "run-now", "space", "--json")
    stage.forked("cron", "run-now", "read")
    stage.run("cron", "daemon", "--once")
    stage.forked("cron", "pause", "space")
    stage.forked("cron", "resume", "space")
    stage.forked("cron", "pause", "often")
    stage.forked("cron", "remove", "read")
    stage.forked("cron", "list", "--json")
    stage.forked("cron", "log")
    stage.forked("cron", "log", "once", "--limit", "1", "--json")
    stage.forked("runs", "--all")
    stage.show_requests()


@scenario()
def cron_errors(stage: Stage) -> None:
    """Invalid jobs, and unknown names."""
    stage.write("retinue.toml", SETTINGS)
    what = ("--agent", "dig", "--prompt", "Dig.")
    when = ("--every", "1h")
    for flags in (
        what,
        when,
        (*when, "--at", "2100-01-01T00:00:00Z", *what),
        ("--cron", "61 * * * *", *what),
        ("--cron", "* * * * *", "--tz", "Mars", *what),
        ("--at", "tomorrow", *what),
        ("--every", "5", *what),
        (*when, "--agent", "dog", "--prompt", "Dig."),
        (*when, *what, "--shell", "ls"),
        (*when, *what, "--type", "x"),
        (*when, *what, "--missed", "twice"),
    ):
        stage.forked("cron", "add", "a", *flags)
    stage.forked("cron", "add", "No Name", *when, *what)
    for verb in ("pause", "resume", "remove", "run-now", "log"):
        stage.forked("cron", verb, "a")
