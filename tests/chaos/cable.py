"""A cable between an agent and its panel that a test can pull: TCP on loopback, cut into requests on its way.

It lives in the test's process. What it does to whom is decided by `mode`; with "whole" it is a plain cable.

refused     nothing listens
black hole  everything is accepted and nothing arrives; it arrives late, when the hole is gone
slow        a pause first, then a few bytes at a time
cut         connections break at any byte of a request or an answer
repeated    what was delivered is delivered once more a little later, on a connection of its own
reordered   the sender is told that it broke, and the request arrives after those that came later
dead        connections that are there stay there and carry nothing, for ever; new ones are whole
"""

import random
import socket
import threading
import time
from contextlib import suppress

MODES = ("refused", "black hole", "slow", "cut", "repeated", "reordered", "dead")
PIECE, PIECE_S, LAG_S = 256, 0.004, 0.25
LATE_S = 1.5


class Cable:
    """Leads to `port` of this machine. `url` is the near end."""

    def __init__(self, port: int, seed: int = 1) -> None:
        self.port, self.mode = port, "whole"
        self.rng = random.Random(seed)
        self.changed = threading.Condition()
        self.delivered = 0  # requests that came twice, or late
        self._open: set[socket.socket] = set()
        self._dead: set[socket.socket] = set()
        self._held: list[bytes] = []
        self._closed = False
        self._listener = self._listen(0)
        self.near = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.near}"

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener,), name="cable", daemon=True).start()
        return listener

    # --- what a test says -------------------------------------------------------------------------------------------

    def set(self, mode: str) -> None:
        """From now on like this. "whole" delivers what was held back."""
        with self.changed:
            before, self.mode = self.mode, mode
            held, self._held = self._held, []
            self.changed.notify_all()
        if mode in ("refused", "cut", "reordered"):
            self._break(list(self._open))
        if mode == "refused":
            self._close(self._listener)
        elif before == "refused":
            self._listener = self._listen(self.near)
        if mode == "dead":
            self._dead |= self._open
        self.rng.shuffle(held)
        for request in held:
            self._again(request, 0.0)

    def close(self) -> None:
        self._closed = True
        with self.changed:
            self.mode = "whole"
            self.changed.notify_all()
        self._close(self._listener)
        self._break(list(self._open))

    # --- the wire ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _close(sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _break(self, socks: list[socket.socket]) -> None:
        for sock in socks:
            self._open.discard(sock)
            self._close(sock)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _address = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(near,), name="cable", daemon=True).start()

    def _connection(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        except OSError:
            self._close(near)
            return
        far.settimeout(None)
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open |= {near, far}
        threading.Thread(target=self._answers, args=(near, far), name="cable", daemon=True).start()
        with suppress(OSError):
            while request := read_request(near):
                if not self._request(request, near, far):
                    break
        self._break([near, far])

    def _wait_while(self, sock: socket.socket, mode: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._closed or (self.mode != mode and sock not in self._dead))

    def _request(self, request: bytes, near: socket.socket, far: socket.socket) -> bool:
        """Carry one request; False when the connection ends with it."""
        self._wait_while(near, "black hole")
        mode = self.mode
        if mode == "slow":
            time.sleep(LAG_S)
            for at in range(0, len(request), PIECE):
                far.sendall(request[at : at + PIECE])
                time.sleep(PIECE_S)
            return True
        if mode == "cut" and self.rng.random() < 0.5:
            far.sendall(request[: self.rng.randrange(len(request))])
            return False
        if mode == "reordered" and self.rng.random() < 0.5:
            with self.changed:
                self._held.append(request)
            return False
        far.sendall(request)
        if mode == "repeated":
            self._again(request, self.rng.uniform(0.0, LATE_S))
        return True

    def _answers(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 16):
                self._wait_while(near, "black hole")
                if self.mode == "cut" and self.rng.random() < 0.3:
                    near.sendall(data[: self.rng.randrange(len(data))])
                    break
                step = PIECE if self.mode == "slow" else len(data)
                for at in range(0, len(data), step):
                    near.sendall(data[at : at + step])
                    if step == PIECE:
                        time.sleep(PIECE_S)
        self._break([near, far])

    def _again(self, request: bytes, after_s: float) -> None:
        """Deliver a request on a connection of its own; nobody hears the answer."""

        def send() -> None:
            time.sleep(after_s)
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as far:
                far.sendall(request)
                self.delivered += 1
                far.recv(1 << 16)

        threading.Thread(target=send, name="cable", daemon=True).start()


def read_request(sock: socket.socket) -> bytes:
    """One HTTP request with its whole body; empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1 << 16)
        if not part:
            return b""
        data += part
    head, _, _body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    whole = len(head) + 4 + length
    while len(data) < whole:
        part = sock.recv(1 << 16)
        if not part:
            return b""
        data += part
    return data[:whole]
