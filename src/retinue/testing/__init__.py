"""The test kit: scripted models, a harness with crashes, virtual time, a fake model server, and contracts.

- A scripted model needs no network: `ScriptedProvider` plays a `Script` of lines (`says`, `calls`, `fails`, ...).
- `Harness` opens a whole retinue in memory, kills it and opens it again. `run_in_virtual_time` runs a test on an event
  loop whose timers fire at once.
- `FakeChat` is a local server that speaks the chat completions API of OpenAI.
- `record` keeps a tree in a file, `replay` plays it without a model, `trajectory_of` says what a tree did. The pytest
  plugin has them as the fixture `retinue`.
- `StoreContract`, `PersistentStoreContract` and `PROVIDER_PROMISES` test a store or a provider of your own. They need
  pytest; the rest does not.

>>> from retinue.testing import Harness, run_in_virtual_time, says
>>> async def test_an_agent_answers() -> None:
...     async with Harness(dialects=()) as harness:
...         harness.script("main", says("Forty-two."))
...         assert (await harness.run("What is six times seven?")).text == "Forty-two."
>>> run_in_virtual_time(test_an_agent_answers())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from retinue.providers.scripted import (
        Line,
        LineFunction,
        Script,
        ScriptedFailure,
        ScriptedHang,
        ScriptedProvider,
        ScriptedReply,
        calls,
        calls_verbatim,
        fails,
        hangs,
        says,
        streams,
        together,
    )
    from retinue.recording import (
        MadeCall,
        ReadMessage,
        ReplayDiffers,
        Trajectory,
        record,
        replay,
        trajectory_of,
    )
    from retinue.testing.contracts.provider import PROMISES as PROVIDER_PROMISES
    from retinue.testing.contracts.store import PersistentStoreContract, StoreContract
    from retinue.testing.crashing_store import CrashingStore, StoreKilled
    from retinue.testing.fake_chat import ChatScript, FakeChat
    from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
    from retinue.testing.harness import CountedIds, Harness, dialect_context
    from retinue.testing.virtual_time import DeadlockError, VirtualClock, VirtualTimeLoop, run_in_virtual_time

# Lazy, because the contracts import pytest, which is no dependency of the package.
_HOMES = {
    "ChatScript": "retinue.testing.fake_chat:ChatScript",
    "CountedIds": "retinue.testing.harness:CountedIds",
    "CrashingStore": "retinue.testing.crashing_store:CrashingStore",
    "DeadlockError": "retinue.testing.virtual_time:DeadlockError",
    "FakeChat": "retinue.testing.fake_chat:FakeChat",
    "FakeResponse": "retinue.testing.fake_server:FakeResponse",
    "FakeServer": "retinue.testing.fake_server:FakeServer",
    "Harness": "retinue.testing.harness:Harness",
    "MadeCall": "retinue.recording:MadeCall",
    "ReadMessage": "retinue.recording:ReadMessage",
    "ReplayDiffers": "retinue.recording:ReplayDiffers",
    "Trajectory": "retinue.recording:Trajectory",
    "record": "retinue.recording:record",
    "replay": "retinue.recording:replay",
    "trajectory_of": "retinue.recording:trajectory_of",
    "Line": "retinue.providers.scripted:Line",
    "LineFunction": "retinue.providers.scripted:LineFunction",
    "PROVIDER_PROMISES": "retinue.testing.contracts.provider:PROMISES",
    "PersistentStoreContract": "retinue.testing.contracts.store:PersistentStoreContract",
    "ReceivedRequest": "retinue.testing.fake_server:ReceivedRequest",
    "Script": "retinue.providers.scripted:Script",
    "ScriptedFailure": "retinue.providers.scripted:ScriptedFailure",
    "ScriptedHang": "retinue.providers.scripted:ScriptedHang",
    "ScriptedProvider": "retinue.providers.scripted:ScriptedProvider",
    "ScriptedReply": "retinue.providers.scripted:ScriptedReply",
    "StoreContract": "retinue.testing.contracts.store:StoreContract",
    "StoreKilled": "retinue.testing.crashing_store:StoreKilled",
    "VirtualClock": "retinue.testing.virtual_time:VirtualClock",
    "VirtualTimeLoop": "retinue.testing.virtual_time:VirtualTimeLoop",
    "calls": "retinue.providers.scripted:calls",
    "calls_verbatim": "retinue.providers.scripted:calls_verbatim",
    "dialect_context": "retinue.testing.harness:dialect_context",
    "fails": "retinue.providers.scripted:fails",
    "hangs": "retinue.providers.scripted:hangs",
    "run_in_virtual_time": "retinue.testing.virtual_time:run_in_virtual_time",
    "says": "retinue.providers.scripted:says",
    "streams": "retinue.providers.scripted:streams",
    "together": "retinue.providers.scripted:together",
}

__all__ = [
    "PROVIDER_PROMISES",
    "ChatScript",
    "CountedIds",
    "CrashingStore",
    "DeadlockError",
    "FakeChat",
    "FakeResponse",
    "FakeServer",
    "Harness",
    "Line",
    "LineFunction",
    "MadeCall",
    "PersistentStoreContract",
    "ReadMessage",
    "ReceivedRequest",
    "ReplayDiffers",
    "Script",
    "ScriptedFailure",
    "ScriptedHang",
    "ScriptedProvider",
    "ScriptedReply",
    "StoreContract",
    "StoreKilled",
    "Trajectory",
    "VirtualClock",
    "VirtualTimeLoop",
    "calls",
    "calls_verbatim",
    "dialect_context",
    "fails",
    "hangs",
    "record",
    "replay",
    "run_in_virtual_time",
    "says",
    "streams",
    "together",
    "trajectory_of",
]

__getattr__ = lazy_names(__name__, _HOMES)
