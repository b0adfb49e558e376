"""The OpenAPI document against the server: generated requests get documented answers, a generated client works."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from retinue.web.openapi import document
from tests.conftest import STRESS
from tests.web.harness import ACT, site

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
LINES = {"main": [{"say": "It is the pool."}]}

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

CLIENT_PROGRAM = """
import json, sys
from retinue_client import AuthenticatedClient
from retinue_client.api.default import list_runs, show_run, show_transcript, start_run, stream_events
from retinue_client.models import NewRun

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
started = start_run.sync(client=client, body=NewRun(task="Why is it slow?"))
followed = stream_events.sync_detailed(started.run_id, client=client)
events = [line[6:] for line in followed.content.decode().splitlines() if line[:6] == "data: "]
types = [json.loads(event)["event"]["type"] for event in events]
run = show_run.sync(started.run_id, client=client)
listed = [each.run_id == started.run_id for each in list_runs.sync(client=client).items]
kinds = [entry.kind for entry in show_transcript.sync(started.run_id, client=client).items]
print(json.dumps([types[0], types[-1], run.outcome, run.text, listed, kinds]))
"""


async def output_of(*command: str, timeout: float, folder: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        text, _ = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, text.decode(errors="replace")


async def generated_requests(folder: Path, phases: str, examples: int, seconds: float) -> tuple[int, str]:
    """The exit code and report of schemathesis against a real server."""
    (folder / "openapi.json").write_text(json.dumps(document()))
    async with site(folder, LINES) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Why?"})).json["run_id"]
        await server.retinue.wait(run_id)
        return await output_of(
            sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.url,
            "-H", f"Authorization: Bearer {ACT}", "--checks", CHECKS, "--max-examples", str(examples),
            "--phases", phases, "--generation-deterministic", "--no-color",
            timeout=seconds, folder=folder,
        )  # fmt: skip


@pytest.mark.timeout(900)
async def test_generated_requests_get_documented_answers(folder: Path) -> None:
    pytest.importorskip("schemathesis")
    code, report = await generated_requests(folder, "fuzzing", examples=3, seconds=840)

    assert code == 0, report[-4000:]


@pytest.mark.stress
@pytest.mark.timeout(1800)
async def test_many_generated_requests_get_documented_answers(folder: Path) -> None:
    pytest.importorskip("schemathesis")
    code, report = await generated_requests(folder, "coverage,fuzzing", examples=100 if STRESS else 10, seconds=1700)

    assert code == 0, report[-4000:]


@pytest.mark.timeout(300)
async def test_a_generated_client_lists_runs_and_follows_one(folder: Path, tmp_path: Path) -> None:
    generator = shutil.which(
        "openapi-python-client", path=f"{ROOT}/build/api-client/bin{os.pathsep}{os.environ['PATH']}"
    )
    if generator is None:
        pytest.skip("openapi-python-client is not installed: make api-client")
    python = Path(generator).parent / "python"
    config = tmp_path / "client.json"
    config.write_text(json.dumps({"package_name_override": "retinue_client", "post_hooks": []}))
    made, report = await output_of(
        generator, "generate", "--path", str(ROOT / "docs/reference/openapi.json"), "--meta", "none",
        "--config", str(config), "--output-path", str(tmp_path / "retinue_client"), timeout=120, folder=tmp_path,
    )  # fmt: skip
    assert made == 0, report
    assert "WARNING" not in report
    async with site(folder, LINES) as server:
        code, printed = await output_of(str(python), "-c", CLIENT_PROGRAM, server.url, ACT, timeout=60, folder=tmp_path)

    assert code == 0, printed
    expected = ["accepted", "ended", "completed", "It is the pool.", [True], ["task", "reply", "end"]]
    assert json.loads(printed.splitlines()[-1]) == expected
