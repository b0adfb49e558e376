"""Wake-ups by other processes: a thread that waits for notifications of the server on a connection of its own."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg

from retinue.core.log_context import logger
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import Connection, connect

log = logger("retinue.store")

_RECONNECT_SECONDS: Final = 1.0


class WakeUps:
    """Calls `wake`, from its own thread, when another writer notifies; `stop` ends the thread.

    Notifications while the connection is lost are missed: it calls `wake` after each new connection.
    """

    def __init__(self, address: PostgresAddress, writer_id: int, wake: Callable[[], None]) -> None:
        self._address = address
        self._own = str(writer_id).encode()
        self._wake = wake
        self._stopping = threading.Event()
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="retinue-wake-ups", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; may be called twice."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._stop.send(b"x")
            self._thread.join()
            self._stop.close()
            self._stopped.close()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with connect(self._address) as connection:
                    connection.execute(f'LISTEN "{self._address.channel}"'.encode())
                    self._wake()
                    self._wait(connection)
            except psycopg.Error as error:
                log.debug("wake-ups: %s", error)
                self._stopping.wait(_RECONNECT_SECONDS)

    def _wait(self, connection: Connection) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                if self._stopping.is_set():
                    return
                connection.pgconn.consume_input()
                is_other = False
                while (notification := connection.pgconn.notifies()) is not None:
                    is_other = is_other or notification.extra != self._own
                if is_other:
                    with suppress(RuntimeError):  # the loop of the caller was closed
                        self._wake()
