"""A TCP proxy that can cut what runs through it, hold it up, or send half of it."""

from __future__ import annotations

import contextlib
import socket
import threading

from twostroke.core.network.address import Address


class CuttingProxy:
    """Passes bytes on to an address.

    Attributes:
        is_open: Whether connections are passed on; else they are closed at once.
        flows: Cleared, nothing is passed on in either direction.
    """

    def __init__(self, to: Address) -> None:
        self._to = to
        self.is_open, self.flows = True, threading.Event()
        self.flows.set()
        self._sockets: list[socket.socket] = []  # all that there were
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(*self._listener.getsockname())

    def cut(self) -> None:
        """End all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.flows.set()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                client.close()
                continue
            server = socket.create_connection(self._to)
            self._sockets += [client, server]
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass, args=pair, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.flows.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
