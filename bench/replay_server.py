"""A server that answers every request with the same bytes, as fast as the socket takes them.

It runs as a program (`python -m bench.replay_server FILE SECONDS REQUESTS`), so that its CPU is not counted as the
client's. FILE has the pieces of the answer as a JSON array; the address is the first line on stdout, and the program
ends with its stdin.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def replay_server(pieces: Sequence[bytes], *, every: float = 0.0, min_requests: int = 1) -> AsyncGenerator[str]:
    """The address of a server, in a process of its own, that sends these pieces, one `every` so many seconds.

    No answer continues after its first piece before `min_requests` requests have arrived.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        path.write_bytes(msgspec.json.encode([piece.decode() for piece in pieces]))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.replay_server", str(path), str(every), str(min_requests)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield (await process.stdout.readline()).decode().strip()
        finally:
            process.stdin.close()
            await process.wait()


async def _serve(pieces: Sequence[bytes], every: float, min_requests: int) -> None:
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    requests, has_enough = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.lower().split(b"\r\n")
                size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                await reader.readexactly(size)
                requests += 1
                if requests >= min_requests:
                    has_enough.set()
                writer.write(HEAD)
                if every:
                    for chunk in chunks:
                        writer.write(chunk)
                        await asyncio.sleep(every)
                        await has_enough.wait()
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"".join(chunks) + b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    text = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[str])
    asyncio.run(_serve([piece.encode() for piece in text], float(sys.argv[2]), int(sys.argv[3])))
