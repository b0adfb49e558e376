"""Workspaces: each is resolved once; a swap by an agent that works in the folder above leads nowhere else.

The caller works in `work`, its helper in `work/research`. The caller's tool `swap` stands for two of its commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import retinue
from retinue.core.agent import Agent
from retinue.core.messages import ToolMessage
from retinue.core.policy import Autonomy, Policy, RuntimeProfile
from retinue.core.ports import Request, Sandbox
from retinue.providers.scripted import ScriptedReply, calls, says, together
from retinue.testing.harness import Harness
from retinue.tools.path_walk import WorkspaceRefused, Workspaces, change_to

FREE_HAND = Policy(autonomy=Autonomy.FULL, require_approval_for_medium_risk=False, max_actions_per_hour=100)
LINK = "leads through a link in a folder that an agent may write; name the folder itself in the settings"
OTHER = "is another folder than before; if a person has replaced it, start retinue again"


class Scene:
    """A caller in `work`, a helper in `work/research`, and a folder outside with a secret."""

    def __init__(self, base: Path) -> None:
        self.work = base / "work"
        self.research = self.work / "research"
        self.outside = base / "outside"
        self.home = base / "home"
        self.research.mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "key").write_text("SECRET\n")
        (self.research / "note").write_text("inside\n")
        self.texts: list[str] = []

    def replace_by_link(self) -> None:
        self.research.rename(self.work / "moved")
        self.research.symlink_to(self.outside)

    def replace_by_folder(self) -> None:
        self.research.rename(self.work / "moved")
        self.research.mkdir()

    async def play(self, swap: Callable[[], object], *asked: ScriptedReply, **options: Any) -> list[str]:
        """The results that the helper reads for these calls, after the caller has made its swap."""

        def collect_results(request: Request) -> ScriptedReply:
            self.texts += [message.text for message in request.messages if isinstance(message, ToolMessage)]
            return says("done")

        @retinue.tool(name="swap", kind="once")
        def swapping() -> str:
            """Swap."""
            swap()
            return "swapped"

        tools = ("file_read", "file_write", "shell", "python_execute", "file_ops", "grep", "memory_store")
        helper = Agent(name="helper", tools=tools, workspace=str(self.research), memory=options.pop("memory", None))
        async with Harness(
            dialects=("zeroclaw",),
            tools=[swapping, *tools],
            agents=[helper],
            policy=FREE_HAND,
            home=self.home,
            **options,
        ) as harness:
            harness.script("main", calls("swap"), calls("delegate", agent="helper", prompt="read"), says("ended"))
            harness.script("helper", together(*asked), collect_results, task="read")
            await harness.run("go")
        return self.texts


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path)
    monkeypatch.chdir(made.work)
    return made


FILE_CALLS = (
    calls("file_read", path="key"),
    calls("file_write", path="made", content="OWNED"),
    calls("file_ops", operation="list", path="."),
    calls("grep", pattern="SECRET"),
)


async def test_file_tools_refuse_a_workspace_that_became_a_link(scene: Scene) -> None:
    texts = await scene.play(scene.replace_by_link, *FILE_CALLS)

    assert texts == [f"Security policy: the workspace {scene.research} {LINK}"] * 4
    assert os.listdir(scene.outside) == ["key"]


async def test_file_tools_refuse_a_workspace_that_became_another_folder(scene: Scene) -> None:
    texts = await scene.play(scene.replace_by_folder, *FILE_CALLS)

    assert texts == [f"Security policy: the workspace {scene.research} {OTHER}"] * 4


async def test_a_workspace_behind_a_link_that_was_there_at_the_start_is_refused(scene: Scene) -> None:
    scene.replace_by_link()

    texts = await scene.play(lambda: None, *FILE_CALLS)

    assert texts == [f"Security policy: the workspace {scene.research} {LINK}"] * 4


async def test_a_missing_workspace_in_which_a_link_is_put_is_refused(scene: Scene) -> None:
    scene.research.rename(scene.work / "moved")

    texts = await scene.play(lambda: scene.research.symlink_to(scene.outside), *FILE_CALLS)

    assert texts == [f"Security policy: the workspace {scene.research} {LINK}"] * 4


async def test_a_missing_workspace_that_is_made_during_the_run_is_used(scene: Scene) -> None:
    scene.research.rename(scene.work / "moved")

    texts = await scene.play(scene.research.mkdir, calls("file_write", path="made", content="mine"))

    assert texts == ["Written 4 bytes to made"]
    assert (scene.research / "made").read_text() == "mine"


@pytest.mark.real_time
@pytest.mark.parametrize("swap", ["replace_by_link", "replace_by_folder"])
async def test_programs_are_not_started_in_a_workspace_that_was_replaced(
    scene: Scene, sandbox: Sandbox, swap: str
) -> None:
    texts = await scene.play(
        getattr(scene, swap),
        calls("shell", command="cat key; echo OWNED > made"),
        calls("python_execute", code="print(open('key').read())"),
    )

    reason = LINK if swap == "replace_by_link" else OTHER
    assert texts == [f"Security policy: the workspace {scene.research} {reason}"] * 2
    assert os.listdir(scene.outside) == ["key"]


async def test_memories_are_not_stored_in_a_workspace_that_became_a_link(scene: Scene) -> None:
    texts = await scene.play(
        scene.replace_by_link, calls("memory_store", key="k", content="c", category="core"), memory="workspace"
    )

    assert texts == [f"Security policy: the workspace {scene.research} {LINK}"]
    assert os.listdir(scene.outside) == ["key"]


async def test_memories_do_not_make_folders_behind_a_link(scene: Scene) -> None:
    scene.research.rename(scene.work / "moved")
    workspaces = Workspaces()
    workspaces.add_agent(FREE_HAND, str(scene.work))
    (scene.work / "research").symlink_to(scene.outside)

    with pytest.raises(WorkspaceRefused, match="link"):
        workspaces.make(str(scene.research / "deep" / "er"))

    assert os.listdir(scene.outside) == ["key"]


async def test_result_files_are_not_written_behind_a_link(scene: Scene) -> None:
    @retinue.tool(name="swap", kind="once")
    def swapping() -> str:
        """Swap."""
        scene.replace_by_link()
        return "swapped"

    front = Agent(name="front", tools=("swap",), workspace=str(scene.research))
    helper = Agent(name="helper", no_tools=True)
    async with Harness(dialects=("zeroclaw",), tools=[swapping], agents=[front, helper], policy=FREE_HAND) as harness:
        harness.script(
            "front",
            calls("swap"),
            calls("delegate", agent="helper", prompt="read", background=True),
            lambda ask: says(ask.messages[-1].text),
        )
        outcome = await harness.retinue.run("go", agent="front")

    assert outcome.text.endswith(
        f"Results cannot be kept in {scene.research}/delegate_results: "
        f"Security policy: the workspace {scene.research} {LINK}"
    )
    assert os.listdir(scene.outside) == ["key"]


async def test_a_link_to_a_workspace_that_a_person_made_elsewhere_works(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "proj").symlink_to(scene.outside)
    (scene.outside / "key").write_text("mine\n")
    helper = Agent(name="helper", tools=("file_read", "file_write"), workspace=str(tmp_path / "proj"))
    texts: list[str] = []

    def collect_results(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    async with Harness(dialects=("zeroclaw",), tools=["file_read"], agents=[helper], policy=FREE_HAND) as harness:
        harness.script("main", calls("delegate", agent="helper", prompt="read"), says("ended"))
        harness.script(
            "helper",
            together(calls("file_read", path="key"), calls("file_read", path=f"{tmp_path}/proj/key")),
            collect_results,
            task="read",
        )
        await harness.run("go")

    assert ["mine" in text for text in texts] == [True, True]


async def test_a_workspace_that_a_person_made_anew_works_after_a_new_start(scene: Scene) -> None:
    await scene.play(scene.replace_by_folder, calls("file_write", path="made", content="x"))
    scene.texts.clear()

    await scene.play(lambda: None, calls("file_write", path="made", content="x"))

    assert (scene.research / "made").read_text() == "x"


async def test_a_root_through_a_link_in_the_workspace_of_another_agent_is_not_open(scene: Scene) -> None:
    (scene.work / "data").symlink_to(scene.outside)
    policy = Policy(autonomy=Autonomy.FULL, allowed_roots=(str(scene.work / "data"),))
    workspaces = Workspaces()
    workspaces.add_agent(FREE_HAND, str(scene.work))
    from retinue.tools.files.paths import AccessDenied, FileAccess

    access = FileAccess(policy, str(scene.home.parent / "home2"), workspaces=workspaces)
    with pytest.raises(AccessDenied), access.file(str(scene.outside / "key")):
        pass


def test_a_link_in_a_folder_that_no_agent_may_write_is_followed(scene: Scene) -> None:
    workspaces = Workspaces()
    workspaces.add_agent(Policy(autonomy=Autonomy.READONLY), str(scene.work))
    scene.replace_by_link()

    assert workspaces.open(str(scene.research)).path == str(scene.outside)


# ---- forbidden paths ------------------------------------------------------------------------------------------------


class Family:
    """A lead in `work` and its helper in `work/research`; both may read all of `work`, except `forbidden`."""

    def __init__(self, scene: Scene, *forbidden: str, lead: str = "") -> None:
        policy = replace(FREE_HAND, forbidden_paths=forbidden, allowed_roots=(str(scene.work),))
        caller = RuntimeProfile(delegation_ceiling="caller")
        self.lead = Agent(name="lead", tools=TOOLS, workspace=lead or str(scene.work), runtime=caller, policy=policy)
        self.helper = Agent(name="helper", tools=TOOLS, workspace=str(scene.research))

    async def texts(self, *asked: ScriptedReply) -> list[str]:
        """What the helper reads for these calls."""
        texts: list[str] = []

        def collect_results(request: Request) -> ScriptedReply:
            texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
            return says("done")

        agents = [self.lead, self.helper]
        async with Harness(dialects=("zeroclaw",), tools=TOOLS, agents=agents) as harness:
            harness.script("lead", calls("delegate", agent="helper", prompt="read"), says("ended"))
            harness.script("helper", together(*asked), collect_results, task="read")
            await harness.retinue.run("go", agent="lead")
        return texts


TOOLS = ("file_read", "shell", "file_ops")


@pytest.mark.parametrize("own", [None, (), (".env",), ("/etc", ".env")], ids=str)
async def test_a_relative_forbidden_path_binds_a_child_with_another_workspace(
    scene: Scene, own: tuple[str, ...] | None
) -> None:
    for folder in (scene.work, scene.research):
        (folder / ".env").write_text("KEY=SECRET\n")
    family = Family(scene, ".env")
    if own is not None:
        policy = replace(FREE_HAND, forbidden_paths=own, allowed_roots=(str(scene.work),))
        family.helper = replace(family.helper, policy=policy)
    paths = (f"{scene.work}/.env", "../.env", ".env", f"{scene.work}/x/../.env")

    texts = await family.texts(*(calls("file_read", path=path) for path in paths), calls("file_read", path="note"))

    assert [text.endswith("it is forbidden (forbidden_paths)") for text in texts[:3]] == [True] * 3
    assert "SECRET" not in "".join(texts)
    assert "inside" in texts[4]


async def test_a_relative_forbidden_path_above_the_workspace_binds_a_child(scene: Scene, tmp_path: Path) -> None:
    (scene.work / "secrets").mkdir()
    (scene.work / "secrets" / "key").write_text("SECRET")
    (scene.work / "desk").mkdir()
    (tmp_path / "link").symlink_to(scene.work / "desk")
    family = Family(scene, "../secrets", lead=str(tmp_path / "link"))

    texts = await family.texts(calls("file_read", path=f"{scene.work}/secrets/key"))

    assert texts[0].endswith("it is forbidden (forbidden_paths)")


async def test_a_relative_forbidden_path_that_does_not_exist_yet_binds_a_child(scene: Scene) -> None:
    family = Family(scene, "later/.env")
    family.helper = replace(family.helper, policy=replace(FREE_HAND, allowed_roots=(str(scene.work),)))

    texts = await family.texts(
        calls("file_ops", operation="write", path=f"{scene.work}/later/.env", content="x"),
        calls("file_ops", operation="write", path=f"{scene.work}/later/other", content="x"),
    )

    assert texts[0].endswith("it is forbidden (forbidden_paths)")
    assert (scene.work / "later" / "other").read_text() == "x"


@pytest.mark.real_time
async def test_what_a_forbidden_link_led_to_stays_closed_after_the_link_is_changed(
    scene: Scene, sandbox: Sandbox
) -> None:
    (scene.work / "real").mkdir()
    (scene.work / "real" / ".env").write_text("KEY=SECRET\n")
    (scene.work / "conf").symlink_to("real")
    (scene.research / "elsewhere").mkdir()
    policy = replace(FREE_HAND, forbidden_paths=(f"{scene.work}/conf/.env",), allowed_commands=("rm", "ln", "cat"))
    texts: list[str] = []

    def collect_results(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    async with Harness(dialects=(), tools=TOOLS, policy=policy) as harness:
        harness.script(
            "main",
            calls("shell", command="cat conf/.env"),
            calls("shell", command="ln -sfn research/elsewhere conf"),
            together(calls("shell", command="cat real/.env"), calls("file_read", path="real/.env")),
            collect_results,
        )
        await harness.run("go")

    assert os.readlink(scene.work / "conf") == "research/elsewhere"
    assert "SECRET" not in "".join(texts)


@pytest.mark.parametrize("above", [False, True])
def test_a_recorded_folder_that_is_behind_a_link_now_is_not_entered(scene: Scene, above: bool) -> None:
    (scene.outside / "inner").mkdir()
    (scene.research / "inner").mkdir()
    recorded = str(scene.research / "inner" if above else scene.research)
    scene.replace_by_link()

    with pytest.raises(OSError, match="there is a link on its path now"):
        change_to(recorded)

    assert os.getcwd() == str(scene.work)
