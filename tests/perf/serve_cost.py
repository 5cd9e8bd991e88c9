"""What the server costs a streamed token, beside an engine that costs nothing: processor time of its thread.

    python -m tests.perf.serve_cost --clients 32 --tick-ms 10 --seconds 5

A thread gives every answer one token a tick, as the engine's does; clients of another process read what comes
as bytes. Says the processor time of the server's event loop and of that thread for each token.
"""

import argparse
import cProfile
import json
import multiprocessing
import pstats
import selectors
import socket
import threading
import time
from itertools import count

from app.serve.listening import listening_socket
from app.serve.program import ServeOptions, Server
from engine import Generation, Request, TextDelta
from tests.app.serve.scripted import ScriptedServer, said

BODY = json.dumps(said("Tell me of terns.", stream=True, stream_options={"include_usage": True})).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
ASKED = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


class Ticks:
    """Stands in for the engine: every answer gets a token a tick, and none ends."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._ids = count(1)
        self.running: list[Generation] = []
        self.ended = threading.Event()
        self.tokens = 0
        self.cpu_s = 0.0

    def submit(self, request: Request) -> Generation:
        generation = Generation(next(self._ids), request, lambda *_: None)
        self.running.append(generation)
        return generation

    def run(self) -> None:
        due = time.perf_counter()
        while not self.ended.is_set():
            due += self._tick_s
            time.sleep(max(0.0, due - time.perf_counter()))
            begun = time.thread_time()
            for generation in list(self.running):
                generation.stream.push(TextDelta(" tern", (7,)))
            self.tokens += len(self.running)
            self.cpu_s += time.thread_time() - begun


def read(port: int, clients: int) -> None:
    """The clients' process: asks, and takes whatever comes."""
    waiting = selectors.DefaultSelector()
    for _ in range(clients):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(ASKED)
        waiting.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if not key.fileobj.recv(1 << 16):
                waiting.unregister(key.fileobj)


def measure(options: argparse.Namespace) -> str:
    scripted, ticks = ScriptedServer(most_requests=options.clients), Ticks(options.tick_ms / 1000)
    scripted.model.submit = ticks.submit
    profile = cProfile.Profile()
    with listening_socket("127.0.0.1", 0) as listening:
        listening.listen(512)
        server = Server(scripted.application, ServeOptions(most_requests=options.clients))

        def serve() -> None:
            if options.profile:
                profile.enable()
            server.run(sockets=[listening])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listening.getsockname()[1]
        clients = multiprocessing.get_context("spawn").Process(
            target=read, args=(port, options.clients), daemon=True
        )
        clients.start()
        while len(ticks.running) < options.clients:
            time.sleep(0.01)
        threading.Thread(target=ticks.run, daemon=True).start()
        clock = time.pthread_getcpuclockid(thread.ident)
        time.sleep(0.5)
        tokens, engine, served = ticks.tokens, ticks.cpu_s, time.clock_gettime(clock)
        time.sleep(options.seconds)
        tokens = ticks.tokens - tokens
        served, engine = time.clock_gettime(clock) - served, ticks.cpu_s - engine
        ticks.ended.set()
        clients.kill()
        server.end()
        thread.join(30)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return (
        f"{options.clients} clients, {tokens} tokens: {1e6 * served / tokens:.1f} us a token of the server's "
        f"thread, {1e6 * engine / tokens:.1f} us of the thread that gives them"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tick-ms", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--profile", action="store_true")
    print(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
