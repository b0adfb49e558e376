"""No spelling of a path and no concurrent change leads out of the folders that a policy opens."""

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.errors import ToolError
from retinue.core.policy import Policy
from retinue.tools.files.atomic_write import blocks, replace
from retinue.tools.files.paths import AccessDenied, FileAccess, UnusablePath
from tests.conftest import STRESS

SECRET = b"SECRET"

PROBES = 20
TREES = 700 if STRESS else 100
"""Each tree is probed with twenty paths for reading and twenty for writing."""


def read(reach: FileAccess, path: str) -> bytes:
    with reach.file(path) as file:
        return b"".join(blocks(file.fd, file.stat.st_size))


def write(reach: FileAccess, path: str, content: bytes = b"written") -> None:
    with reach.target(path, "write", parents=True) as target:
        replace(target, (content,))


def setting_of(act: Callable[[], object]) -> str:
    with pytest.raises(AccessDenied) as refusal:
        act()
    return refusal.value.setting


# ---- any tree, any path ----------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "no", os.fsdecode(b"\xff"), "ä")
PARTS = (*NAMES, "..", ".", "", "ws", "out")


def spelled(engine: list[str], base: str, start: str) -> str:
    path = "/".join(engine)
    return {
        "": path,
        "/": f"/{path}",
        "base": f"{base}/{path}",
        "ws": f"{base}/ws/{path}",
        "out": f"{base}/out/{path}",
    }[start]


paths = st.tuples(st.lists(st.sampled_from(PARTS), max_size=5), st.sampled_from(("", "", "base", "ws", "out", "/")))
things = st.lists(
    st.tuples(
        st.sampled_from(("ws", "ws", "ws", "out")),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
        st.one_of(st.sampled_from(("file", "folder")), paths),
    ),
    max_size=14,
)


@contextlib.contextmanager
def tree(made: list[tuple[str, list[str], str | tuple[list[str], str]]]) -> Generator[str]:
    """A folder with a workspace `ws`, a folder `out` outside of it, and as much of the rest as could be created."""
    base = os.path.realpath(tempfile.mkdtemp())
    try:
        for folder in ("ws/no", "out"):
            os.makedirs(f"{base}/{folder}")
        Path(base, "out", "a").write_bytes(SECRET)
        for area, engine, kind in made:
            path = os.path.join(base, area, *engine)
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if kind == "file":
                    # Through a link a file may come to lie anywhere, so what it holds says where that is.
                    place = os.path.realpath(path)
                    closed = not inside(place, f"{base}/ws") or inside(place, f"{base}/ws/no")
                    Path(path).write_bytes(SECRET if closed else b"open")
                elif kind == "folder":
                    os.mkdir(path)
                elif isinstance(kind, tuple):
                    os.symlink(spelled(kind[0], base, kind[1]) or ".", path)
        yield base
    finally:
        shutil.rmtree(base)


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def state(base: str) -> dict[str, bytes]:
    """All files outside the workspace and in its forbidden folder, without those behind links."""
    found: dict[str, bytes] = dict.fromkeys(os.listdir(base), b"")
    for folder in ("out", "ws/no"):
        for place, folders, files in os.walk(os.path.join(base, folder)):
            for name in (*folders, *files):
                path = os.path.join(place, name)
                if os.path.islink(path):
                    found[path] = os.fsencode(os.readlink(path))
                elif os.path.isfile(path):
                    found[path] = Path(path).read_bytes()
                else:
                    found[path] = b""
    return found


@settings(max_examples=TREES)
@given(things, st.lists(paths, min_size=PROBES, max_size=PROBES))
def test_reading_gives_what_lies_inside_and_nothing_else(
    made: list[tuple[str, list[str], str | tuple[list[str], str]]], probes: list[tuple[list[str], str]]
) -> None:
    with tree(made) as base:
        reach = FileAccess(Policy(forbidden_paths=(f"{base}/ws/no",)), f"{base}/ws")
        for engine, start in probes:
            path = spelled(engine, base, start)
            place = os.path.realpath(os.path.join(base, "ws", path))
            try:
                content = read(reach, path)
            except ToolError:
                # Whatever is open can be read, unless the way there leads through what is not.
                if os.path.isfile(place) and inside(place, f"{base}/ws") and "no" not in path and not passes_no(base):
                    assert not os.path.isfile(os.path.join(base, "ws", path)), path
            else:
                assert content != SECRET, path
                assert inside(place, f"{base}/ws"), path


def passes_no(base: str) -> bool:
    """Whether any link in the tree mentions the forbidden folder."""
    links = (
        os.path.join(place, name)
        for place, folders, files in os.walk(base)
        for name in (*folders, *files)
        if os.path.islink(os.path.join(place, name))
    )
    return any("no" in os.readlink(link) for link in links)


@settings(max_examples=TREES)
@given(things, st.lists(paths, min_size=PROBES, max_size=PROBES))
def test_writing_never_changes_what_lies_outside(
    made: list[tuple[str, list[str], str | tuple[list[str], str]]], probes: list[tuple[list[str], str]]
) -> None:
    with tree(made) as base:
        before = state(base)
        reach = FileAccess(Policy(forbidden_paths=(f"{base}/ws/no",)), f"{base}/ws")
        for engine, start in probes:
            path = spelled(engine, base, start)
            try:
                write(reach, path)
            except ToolError:
                continue
            assert Path(base, "ws", path).read_bytes() == b"written"
        assert state(base) == before
        assert not [name for _, _, names in os.walk(base) for name in names if name.endswith(".tmp")]


# ---- concurrent changes ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def flipping(one: Callable[[], object], other: Callable[[], object]) -> Generator[list[int]]:
    """Do and undo something repeatedly in a thread."""
    done = threading.Event()
    flips = [0]

    def flip() -> None:
        while not done.is_set():
            one()
            other()
            flips[0] += 1

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield flips
    finally:
        done.set()
        thread.join()


@pytest.fixture
def swapped(tmp_path: Path) -> Generator[tuple[Path, list[int]]]:
    """A workspace in which the folder `d` is now a folder, now a link to the outside; and so is the file `f`."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "f").write_bytes(SECRET)
    workspace = tmp_path / "ws"
    (workspace / "d").mkdir(parents=True)
    (workspace / "d" / "f").write_bytes(b"open")
    (workspace / "f").write_bytes(b"open")
    folder, aside, file, link = (str(workspace / name) for name in ("d", "aside", "f", "link"))

    def swap() -> None:
        os.rename(folder, aside)
        insist(lambda: os.symlink(tmp_path / "out", folder))
        os.symlink(tmp_path / "out" / "f", link)
        os.rename(link, file)

    def swap_back() -> None:
        os.unlink(folder)
        insist(lambda: os.rename(aside, folder))
        Path(link).write_bytes(b"open")
        os.rename(link, file)

    def insist(act: Callable[[], None]) -> None:
        """A writer creates missing folders, also while the swap has removed that name."""
        while True:
            try:
                return act()
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)

    with flipping(swap, swap_back) as flips:
        yield workspace, flips


@pytest.mark.parametrize("path", ["d/f", "f", "d/../f", "d/../d/f"])
def test_a_folder_that_is_swapped_for_a_link_is_never_read_through(swapped: tuple[Path, list[int]], path: str) -> None:
    workspace, flips = swapped
    reach = FileAccess(Policy(), str(workspace))
    seen = 0
    for _ in range(20_000 if STRESS else 1500):
        with contextlib.suppress(ToolError):
            assert read(reach, path) in (b"open", b"")
            seen += 1
    assert flips[0] > 0
    assert seen > 0


@pytest.mark.parametrize("path", ["d/new", "f", "d/sub/new"])
def test_a_folder_that_is_swapped_for_a_link_is_never_written_through(
    tmp_path: Path, swapped: tuple[Path, list[int]], path: str
) -> None:
    workspace, flips = swapped
    reach = FileAccess(Policy(), str(workspace))
    for _ in range(10_000 if STRESS else 700):
        with contextlib.suppress(ToolError):
            write(reach, path)
    assert flips[0] > 0
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == {"f": SECRET}


# ---- what is open, and what is not -----------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A workspace and some folders beside it."""
    for folder in ("ws", "ws2", "both", "look", "drop", "home"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(folder.encode())
    return tmp_path


def test_relative_paths_start_in_the_workspace(base: Path) -> None:
    assert read(FileAccess(Policy(), str(base / "ws")), "file") == b"ws"


def test_a_sibling_with_the_same_prefix_is_outside(base: Path) -> None:
    assert setting_of(lambda: read(FileAccess(Policy(), str(base / "ws")), f"{base}/ws2/file")).startswith(
        "workspace_only"
    )


def test_a_tilde_is_a_name_like_any_other(base: Path) -> None:
    write(FileAccess(Policy(), str(base / "ws")), "~/file")
    assert (base / "ws" / "~" / "file").read_bytes() == b"written"


def test_roots_open_for_both_for_reading_or_for_writing(base: Path) -> None:
    reach = FileAccess(
        Policy(
            allowed_roots=(f"{base}/both",),
            allowed_roots_read_only=(f"{base}/look",),
            allowed_roots_write_only=(f"{base}/drop",),
        ),
        str(base / "ws"),
    )
    assert read(reach, f"{base}/both/file") == b"both"
    assert read(reach, "../look/file") == b"look"
    write(reach, f"{base}/both/new")
    write(reach, f"{base}/drop/new")
    assert "allowed_roots_read_only" in setting_of(lambda: read(reach, f"{base}/drop/file"))
    assert "allowed_roots_write_only" in setting_of(lambda: write(reach, f"{base}/look/new"))


def test_without_workspace_only_all_but_forbidden_paths_are_open(base: Path) -> None:
    reach = FileAccess(
        Policy(workspace_only=False, forbidden_paths=(f"{base}/look",)), str(base / "ws"), home=base / "home"
    )
    assert read(reach, f"{base}/ws2/file") == b"ws2"
    write(reach, f"{base}/ws2/new")
    assert setting_of(lambda: read(reach, f"{base}/look/file")) == "forbidden_paths"
    assert setting_of(lambda: read(reach, f"{base}/home/file")) == "state folder"


def test_a_forbidden_path_is_closed_under_every_name(base: Path) -> None:
    (base / "ws" / "key").write_bytes(SECRET)
    (base / "ws" / "link").symlink_to("key")
    os.link(base / "ws" / "key", base / "ws" / "hard")
    reach = FileAccess(Policy(forbidden_paths=("key",)), str(base / "ws"))
    for path in ("key", "./key", "link", "hard", "../ws/key", f"{base}/ws/key", f"{base}/look/../ws/link"):
        assert setting_of(lambda path=path: read(reach, path)) == "forbidden_paths"
        assert setting_of(lambda path=path: write(reach, path)) == "forbidden_paths"


def test_a_forbidden_link_closes_itself_and_what_it_leads_to(base: Path) -> None:
    (base / "ws" / "real").mkdir()
    (base / "ws" / "real" / "key").write_bytes(SECRET)
    (base / "ws" / "link").symlink_to("real")
    reach = FileAccess(Policy(forbidden_paths=(f"{base}/ws/link",)), str(base / "ws"))
    for path in ("link/key", "real/key"):
        assert setting_of(lambda path=path: read(reach, path)) == "forbidden_paths"


def test_a_forbidden_path_stays_forbidden_once_it_exists(base: Path) -> None:
    reach = FileAccess(Policy(forbidden_paths=(f"{base}/ws/later/key",)), str(base / "ws"))
    assert setting_of(lambda: write(reach, "later/key")) == "forbidden_paths"
    write(reach, "later/other")


def test_a_forbidden_path_may_start_at_home(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base / "ws"))
    (base / "ws" / ".ssh").mkdir()
    reach = FileAccess(Policy(forbidden_paths=("~/.ssh",)), str(base / "ws"))
    assert setting_of(lambda: write(reach, ".ssh/config")) == "forbidden_paths"


def test_the_state_folder_is_closed_even_inside_the_workspace(base: Path) -> None:
    reach = FileAccess(Policy(), str(base), home=base / "home")
    assert setting_of(lambda: read(reach, "home/file")) == "state folder"
    assert setting_of(lambda: write(reach, "home/file")) == "state folder"


@pytest.mark.parametrize("path", ["retinue.toml", "sub/retinue.yaml", "Retinue.TOML", "link"])
def test_settings_that_could_widen_a_policy_are_read_and_never_written(base: Path, path: str) -> None:
    (base / "ws" / "retinue.toml").write_bytes(b"[tools]")
    (base / "ws" / "link").symlink_to("retinue.toml")
    reach = FileAccess(Policy(), str(base / "ws"))
    assert setting_of(lambda: write(reach, path)) == "retinue settings"
    assert read(reach, "retinue.toml") == b"[tools]"


def test_settings_behind_a_link_are_not_written_either(base: Path) -> None:
    (base / "ws" / "real.toml").write_bytes(b"[tools]")
    (base / "ws" / "retinue.toml").symlink_to("real.toml")
    reach = FileAccess(Policy(), str(base / "ws"))
    for path in ("retinue.toml", "real.toml"):
        assert setting_of(lambda path=path: write(reach, path)) == "retinue settings"


def test_files_that_are_run_as_part_of_retinue_are_never_written(base: Path) -> None:
    reach = FileAccess(Policy(), str(base / "ws"), settings=(base / "ws" / "mytools.py",))
    assert setting_of(lambda: write(reach, "mytools.py")) == "retinue settings"


def test_a_root_that_is_a_link_in_another_root_opens_nothing(base: Path) -> None:
    (base / "ws" / "sub").symlink_to(base / "ws2")
    reach = FileAccess(Policy(allowed_roots=(f"{base}/ws/sub",)), str(base / "ws"))
    assert "allowed_roots" in setting_of(lambda: read(reach, "sub/file"))


def test_a_workspace_behind_a_link_is_the_folder_it_leads_to(base: Path) -> None:
    (base / "shortcut").symlink_to(base / "ws")
    reach = FileAccess(Policy(), str(base / "shortcut"))
    assert read(reach, "file") == read(reach, f"{base}/ws/file") == b"ws"


def test_errors_outside_the_roots_do_not_reveal_what_exists(base: Path) -> None:
    reach = FileAccess(Policy(), str(base / "ws"))
    (base / "ws" / "out").symlink_to(base / "ws2")
    texts = set[str]()
    for path in (f"{base}/ws2/file", f"{base}/ws2/none", f"{base}/ws2/file/below", f"{base}/none/x", "out/none"):
        with pytest.raises(AccessDenied) as refusal:
            read(reach, path)
        texts.add(str(refusal.value).replace(path, "PATH"))
    assert len(texts) == 1


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "x" * 300, "/".join(["a"] * 3000), "loop", "loop/x"])
def test_an_impossible_path_is_a_tool_error(base: Path, path: str) -> None:
    (base / "ws" / "loop").symlink_to("loop")
    reach = FileAccess(Policy(), str(base / "ws"))
    for act in (read, write):
        with pytest.raises(UnusablePath):
            act(reach, path)


def test_pipes_and_devices_are_not_waited_for(base: Path) -> None:
    os.mkfifo(base / "ws" / "pipe")
    reach = FileAccess(Policy(allowed_roots=("/dev",)), str(base / "ws"))
    for path in ("pipe", "/dev/zero"):
        for act in (read, write):
            with pytest.raises(UnusablePath, match="not a regular file"):
                act(reach, path)


def test_writing_to_a_hard_link_leaves_the_other_name_alone(base: Path) -> None:
    os.link(base / "ws2" / "file", base / "ws" / "twin")
    write(FileAccess(Policy(), str(base / "ws")), "twin")
    assert ((base / "ws2" / "file").read_bytes(), (base / "ws" / "twin").read_bytes()) == (b"ws2", b"written")


def test_too_many_open_files_are_reported(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reach = FileAccess(Policy(), str(base / "ws"))

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr(os, "supports_dir_fd", {full})
    for act in (
        lambda: FileAccess(Policy(), str(base / "ws")),
        lambda: read(reach, "file"),
        lambda: write(reach, "file"),
    ):
        with pytest.raises(UnusablePath, match="Too many open files"):
            act()


def test_no_descriptor_is_left_open(base: Path) -> None:
    (base / "ws" / "out").symlink_to(base / "ws2")
    reach = FileAccess(Policy(forbidden_paths=("no",)), str(base / "ws"))
    open_before = len(os.listdir("/dev/fd"))
    for path in ("file", "out/file", "none", "none/x", "no/x", ".", "..", "../ws/file", "new/er/file"):
        for act in (read, write):
            with contextlib.suppress(ToolError):
                act(reach, path)
    assert len(os.listdir("/dev/fd")) == open_before


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are not shown as files here")
def test_what_processes_keep_is_closed_even_where_everything_is_open(tmp_path: Path) -> None:
    reach = FileAccess(Policy(workspace_only=False), str(tmp_path))
    (tmp_path / "link").symlink_to("/proc/self/environ")

    for path in (
        "/proc/self/environ",
        f"/proc/{os.getpid()}/environ",
        "link",
        os.path.join("/proc/self/root", "etc/passwd"),
    ):
        assert setting_of(lambda path=path: read(reach, path)) == "/proc"
