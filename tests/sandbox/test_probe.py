"""The probe accepts only a working sandbox, and says what to do if there is none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from retinue.core.errors import SandboxUnavailable
from retinue.core.ports import Ended, Program, Sandbox
from retinue.local import programs
from retinue.local.programs import FoundProgram
from retinue.sandbox import probe
from retinue.sandbox.none import NoSandbox
from retinue.sandbox.probe import (
    HOW_TO_ALLOW,
    HOW_TO_INSTALL,
    ProbeResult,
    RequiredSandbox,
    attack,
    choose,
    examine,
    sandbox_verdict,
)
from tests.sandbox.conftest import Calls

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(sys.platform != "linux", reason="there is none but on Linux")]


async def test_a_working_sandbox_is_used(sandbox: Sandbox, program: Calls) -> None:
    found = await examine()

    assert found.text == "bubblewrap holds: none of 16 attempts to get out succeeded"
    assert found.sandbox is not None
    assert await found.sandbox.run(program("echo", "hello")) == Ended(code=0, stdout=b"hello\n")


async def test_the_probe_detects_a_missing_sandbox() -> None:
    tried, complaint = await attack(NoSandbox())

    assert tried == 16
    assert complaint.startswith("a program could read a file outside its folders, write a file outside its folders, ")


async def test_a_sandbox_with_one_escape_is_refused(sandbox: Sandbox) -> None:
    class WithNetwork:
        async def run(self, program: Program) -> Ended:
            return await sandbox.run(
                Program(
                    argv=program.argv,
                    folder=program.folder,
                    readable=program.readable,
                    writable=program.writable,
                    hidden=program.hidden,
                    stdin=program.stdin,
                    processes=program.processes,
                    memory=program.memory,
                    network=True,
                )
            )

    assert await attack(WithNetwork()) == (16, "a program could reach a port of this machine")


async def test_a_sandbox_in_which_nothing_works_is_refused() -> None:
    class Dead:
        async def run(self, program: Program) -> Ended:
            return Ended(code=1, stderr=b"no such luck\n")

    assert await attack(Dead()) == (0, "a program could not do what it may (no such luck)")


async def test_without_bubblewrap_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/no/such/folder")
    text = f"bubblewrap is not installed; {HOW_TO_INSTALL}, or {HOW_TO_ALLOW}"

    assert await examine() == ProbeResult(text, None, (FoundProgram("bwrap", ""), FoundProgram("prlimit", "")))


@pytest.mark.parametrize("name", ["bwrap", "prlimit"])
async def test_a_program_that_an_agent_left_on_the_path_is_not_started(
    sandbox: Sandbox, work: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (work / "bin").mkdir()
    fake = work / "bin" / name
    fake.write_text(f'#!/bin/sh\nid > {work}/started\nexec {name} "$@"\n')
    fake.chmod(0o755)
    (work / "started").touch()
    (work / "started").chmod(0o666)
    work.parent.chmod(0o755)
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", f"{work / 'bin'}:bin:{os.environ['PATH']}")

    found = await examine(agents_write=(str(work),))

    assert (work / "started").read_text() == ""
    assert found.sandbox is not None
    assert any(f"{fake} is not used: agents may write in {work}" in each.passed_over for each in found.programs)


async def test_a_later_program_with_more_folders_does_not_use_what_lies_in_them(
    monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    async def record(*, agents_write: Sequence[str]) -> ProbeResult:
        asked.append(tuple(agents_write))
        return ProbeResult("holds", None, (FoundProgram("bwrap", str(work / "bwrap")),))

    asked: list[tuple[str, ...]] = []
    (work / "bwrap").touch()
    monkeypatch.setattr(probe, "_verdicts", [])
    monkeypatch.setattr(probe, "examine", record)
    await sandbox_verdict(("/elsewhere",))
    await sandbox_verdict(("/elsewhere", "/other"))
    await sandbox_verdict((str(work),))

    assert asked == [("/elsewhere",), (str(work),)]


def a_broken_one(folder: Path) -> str:
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    for path in (folder, program):
        path.chmod(0o755)
    return str(program)


async def test_with_a_broken_bubblewrap_the_message_says_why() -> None:
    # Not in the folder of the test: root starts bubblewrap as a user that may not read it.
    with TemporaryDirectory(dir="/var/tmp") as folder:
        found = await examine(bwrap=a_broken_one(Path(folder)))

    assert found.sandbox is None
    assert found.text.startswith(
        "bubblewrap is installed and does not hold: the sandbox could not be set up: No permissions to create new "
        "namespace; it needs user namespaces"
    )


async def test_a_program_is_refused_without_a_working_sandbox(monkeypatch: pytest.MonkeyPatch, program: Calls) -> None:
    monkeypatch.setattr(probe, "_verdicts", [ProbeResult("there is none; install one")])

    with pytest.raises(SandboxUnavailable) as refused:
        await choose("required").run(program("true"))

    assert str(refused.value) == "nothing fences programs in here: there is none; install one"


async def test_the_sandbox_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(*, agents_write: Sequence[str]) -> ProbeResult:
        asked.append("asked")
        return ProbeResult("none")

    asked: list[str] = []
    monkeypatch.setattr(probe, "_verdicts", [])
    monkeypatch.setattr(probe, "examine", once)

    assert (await sandbox_verdict(), await sandbox_verdict(), asked) == (
        ProbeResult("none"),
        ProbeResult("none"),
        ["asked"],
    )


def test_the_setting_selects_the_sandbox() -> None:
    assert isinstance(choose("required"), RequiredSandbox)
    assert isinstance(choose("off"), NoSandbox)


def test_the_probe_can_be_imported_on_every_system() -> None:
    ask = "import sys; sys.modules['resource'] = sys.modules['pwd'] = None; import retinue.sandbox.probe"

    assert subprocess.run([sys.executable, "-c", ask]).returncode == 0


# ---- without a sandbox ----------------------------------------------------------------------------------------------


async def test_without_a_sandbox_variables_output_and_exit_code_work(program: Calls, work: Path) -> None:
    ended = await NoSandbox().run(program("sh", "-c", "pwd; echo $A >&2; cat", environment={"A": "b"}, stdin=b"in"))

    assert ended == Ended(code=0, stdout=f"{work}\nin".encode(), stderr=b"b\n")


async def test_without_a_sandbox_a_timeout_kills_the_process_group(program: Calls) -> None:
    ended = await NoSandbox().run(program("sh", "-c", "echo begun; sleep 30 & sleep 30", seconds=1.0))

    assert ended == Ended(code=-9, stdout=b"begun\n", timed_out=True)


async def test_without_a_sandbox_files_are_still_limited(program: Calls, work: Path) -> None:
    ended = await NoSandbox().run(program("sh", "-c", "head -c 3000 /dev/zero > file", file_size=2048))

    assert (ended.code != 0, (work / "file").stat().st_size) == (True, 2048)


async def test_concurrent_programs_wait_for_one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[ProbeResult] = []

    async def tried(*, agents_write: Sequence[str]) -> ProbeResult:
        await asyncio.sleep(0)
        trials.append(ProbeResult("tried"))
        return trials[-1]

    monkeypatch.setattr(probe, "_verdicts", [])
    monkeypatch.setattr(probe, "examine", tried)

    assert await asyncio.gather(*(sandbox_verdict() for _ in range(3))) == [ProbeResult("tried")] * 3
    assert len(trials) == 1


async def test_without_a_sandbox_a_home_that_all_users_share_is_replaced(program: Calls, tmp_path: Path) -> None:
    """Another user may have left settings there that programs obey."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder, mode in ((shared, 0o1777), (own, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    trap = f"[alias]\n\tx = !touch {tmp_path}/ran\n"
    (shared / ".gitconfig").write_text(trap)
    show = ("sh", "-c", 'printf %s "$HOME"; ls -A "$HOME"; ls -ld "$HOME" >&2; git x')
    replaced = await NoSandbox().run(program(*show, environment={"HOME": str(shared), "PATH": "/usr/bin:/bin"}))
    missing = await NoSandbox().run(program(*show, environment={"HOME": "/nowhere", "PATH": "/usr/bin:/bin"}))
    kept = await NoSandbox().run(program(*show, environment={"HOME": str(own), "PATH": "/usr/bin:/bin"}))

    for ended in (replaced, missing):
        home = Path(ended.stdout.decode())
        assert home.name.startswith("retinue-home-")
        assert ended.stderr.startswith(b"drwx------")
        assert home.name not in os.listdir(home.parent)
    assert kept.stdout.decode() == str(own)
    assert not (tmp_path / "ran").exists()
