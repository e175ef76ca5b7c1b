"""A network between a robot and its policy server that can be cut, stalled, slowed down and spoilt."""

import contextlib
import select
import socket
import threading
import time
from collections import deque


class Proxy:
    """Passes TCP connections on to a port of this machine. To be closed."""

    def __init__(self, target):
        self._target, self._pairs = target, []
        self.delay, self.stalled = 0.0, False  # seconds in each direction; nothing gets through
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Every connection that stands breaks; new ones are taken."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs = []

    def garble(self, data):
        """These bytes come to the robot in the middle of the stream."""
        for robot, _ in self._pairs:
            with contextlib.suppress(OSError):
                robot.sendall(data)

    def close(self):
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts, which closing does not
        self._listening.close()
        self.stalled = False
        self.cut()

    def _accept(self):
        while True:
            try:
                robot, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 1.0)
            except OSError:  # nobody listens there now
                robot.close()
                continue
            self._pairs.append((robot, server))
            threading.Thread(target=self._serve, args=(robot, server), daemon=True).start()

    def _serve(self, robot, server):
        with robot, server:
            back = threading.Thread(target=self._pass, args=(server, robot), daemon=True)
            back.start()
            self._pass(robot, server)
            back.join()

    def _pass(self, source, sink):
        waiting = deque()
        with contextlib.suppress(OSError, ValueError):
            while True:
                if self.stalled:
                    time.sleep(0.005)
                    continue
                if select.select([source], [], [], 0.005 if waiting else 0.05)[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        break
                    waiting.append((time.monotonic() + self.delay, data))
                while waiting and waiting[0][0] <= time.monotonic():
                    sink.sendall(waiting.popleft()[1])
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
