"""Kill a process in the middle of a run with SIGKILL, and let another process go on with the run.

Run: `python examples/resume_after_crash.py`. It prints:

    charged the card
    killed the worker while its model was answering
    resumed: Paid, and the receipt is sent.
    the card was charged 1 time(s)

The run has a key: the same key in a later process is the same run. The call was stored before the kill, so the second
process does not repeat it.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import retinue
from retinue.messages import TextDelta
from retinue.testing import Script, ScriptedProvider, calls, hangs, says

LEDGER = "ledger.txt"
ANSWERING = "answering"


def provider(*, crashes: bool) -> ScriptedProvider:
    """The scripted model; in the process that is killed, it falls silent in the middle of its second reply."""
    second = hangs("Paid, and") if crashes else says("Paid, and the receipt is sent.")
    # For a real model, return "anthropic" here, and pass model="NAME" to `retinue.open`.
    return ScriptedProvider(Script().play("main", calls("charge"), second))


async def pay(home: Path, *, crashes: bool) -> None:
    """Start the run of order 4711, or go on with it."""

    @retinue.tool  # of the kind `once`: a call that may have happened is not made again
    def charge() -> str:
        """Charge the card."""
        with (home / LEDGER).open("a") as ledger:
            ledger.write("charged\n")
        print("charged the card", flush=True)
        return "charged"

    async with retinue.open(provider=provider(crashes=crashes), tools=[charge], dialects=(), home=home) as r:
        run = await r.spawn("Charge the card and send the receipt.", key="order-4711")
        async for item in run.events():
            if crashes and isinstance(item, TextDelta):
                print(ANSWERING, flush=True)
        print(f"resumed: {(await run.wait()).text}")


def start_and_kill(home: Path) -> None:
    """Run this program as a worker, and kill it while its model is answering."""
    with subprocess.Popen([sys.executable, __file__, str(home)], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.strip() == ANSWERING:
                worker.kill()  # SIGKILL
                print("killed the worker while its model was answering", flush=True)
            else:
                print(line, end="", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(pay(Path(sys.argv[1]), crashes=True))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        start_and_kill(home)
        asyncio.run(pay(home, crashes=False))
        print(f"the card was charged {len((home / LEDGER).read_text().splitlines())} time(s)")


main()
