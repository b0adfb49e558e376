"""The folder of recordings.

SCENARIO/contract.txt, prose.txt, help.txt    the parts of the scenario's recording
SCENARIO/HOME.tar.xz                          a state folder, byte for byte
SCENARIO/HOME.inspected.txt                   the output of read-only commands on that state folder
SCENARIO/HOME.continued.txt                   the recording of commands that continue its work
SCENARIO/HOME.continued-prose.txt             their prose
texts/HASH.txt                                a long line; recordings refer to it as `<text HASH>`
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
from pathlib import Path

VERSION_0_1 = Path(__file__).parent / "recorded" / "0.1"
"""The recordings of version 0.1."""

LONG = 700
"""Characters from which a line is stored once, in `texts`."""

_REFERENCE = re.compile(r"<text ([0-9a-f]{16})>")


class Recorded:
    """Recordings in a folder."""

    def __init__(self, folder: Path = VERSION_0_1) -> None:
        self.folder = folder

    def read(self, scenario: str, name: str) -> str:
        """A recorded text, or an empty string."""
        path = self.folder / scenario / f"{name}.txt"
        return self._expanded(path.read_bytes().decode()) if path.exists() else ""

    def write(self, scenario: str, name: str, text: str) -> None:
        """Write a recorded text; an empty text has no file."""
        path = self.folder / scenario / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if text:
            path.write_bytes("\n".join(map(self._shortened, text.split("\n"))).encode())
        else:
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Delete long lines without a reference."""
        used = {name for path in self.folder.glob("*/*.txt") for name in _REFERENCE.findall(path.read_bytes().decode())}
        for path in (self.folder / "texts").glob("*.txt"):
            if path.stem not in used:
                path.unlink()

    def _shortened(self, line: str) -> str:
        if len(line) < LONG:
            return line
        name = hashlib.sha256(line.encode()).hexdigest()[:16]
        path = self.folder / "texts" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(line.encode() + b"\n")
        return f"<text {name}>"

    def _expanded(self, text: str) -> str:
        def long_line(reference: re.Match[str]) -> str:
            return (self.folder / "texts" / f"{reference[1]}.txt").read_bytes().decode().removesuffix("\n")

        return _REFERENCE.sub(long_line, text)

    # ---- state folders ----------------------------------------------------------------------------------------------

    def homes(self) -> list[tuple[str, str]]:
        """The scenario and the name of every recorded state folder."""
        archives = sorted(self.folder.glob("*/*.tar.xz"))
        return [(path.parent.name, path.name.removesuffix(".tar.xz")) for path in archives]

    def write_home(self, scenario: str, name: str, home: Path) -> None:
        """Write an archive of a state folder, without owners and times of files, and without SQLite's shared memory."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(each for each in home.rglob("*") if not each.name.endswith("-shm")):
                archive.add(path, str(path.relative_to(home)), recursive=False, filter=_anonymous)
        target = self.folder / scenario / f"{name}.tar.xz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))

    def restore_home(self, scenario: str, name: str, home: Path) -> None:
        """Unpack a state folder."""
        home.mkdir(parents=True)
        with tarfile.open(self.folder / scenario / f"{name}.tar.xz") as archive:
            for member in archive:
                path = home / member.name
                content = archive.extractfile(member)
                if content is None:
                    path.mkdir(mode=member.mode)
                else:
                    path.write_bytes(content.read())
                    path.chmod(member.mode)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
