"""A TCP proxy that can cut what runs through it, or hold it up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from twostroke.core.network.address import Address


class CuttingProxy:
    """Passes bytes on to an address, which need not be there all the time.

    Attributes:
        is_open: Whether connections are passed on; else they are closed at once.
        flows: Cleared, nothing is read or passed on in either direction, so that sockets get full.
        on_data: Told of what is passed on, and whether it goes to that address.
    """

    def __init__(self, to: Address) -> None:
        self._to = to
        self.is_open, self.flows = True, threading.Event()
        self.flows.set()
        self.on_data: Callable[[bytes, bool], None] = lambda data, goes_there: None
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()  # of the set, and of closing what is in it
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(*self._listener.getsockname())

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for each in self._sockets:
                _shut_down(each)

    def close(self) -> None:
        self.flows.set()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                client.close()
                continue
            try:
                server = socket.create_connection(self._to)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            thread = threading.Thread(target=self._join, args=(client, server), daemon=True)
            thread.start()
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pass, args=(server, client, False), daemon=True)
        back.start()
        self._pass(client, server, True)
        back.join()
        with self._lock:
            self._sockets -= {client, server}
            client.close()
            server.close()

    def _pass(self, source: socket.socket, target: socket.socket, goes_there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.flows.wait()
                self.on_data(data, goes_there)
                target.sendall(data)
        for each in (source, target):
            _shut_down(each)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)
