"""What a remote tab gets of another program's server: list, streams, counts, an end that is asked for.

    python -m tests.perf.real_servers http://127.0.0.1:8000/v1
    python -m tests.perf.real_servers --llama-cpp-python ENVIRONMENT/bin/python [--model FILE]

The second starts llama-cpp-python's server (`pip install 'llama-cpp-python[server]'` in an environment of
its own) with the built-in model or another one. Says what was found; ends with an error at the first thing
that is not as a tab needs it.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.endpoints.model import RemoteModel
from app.endpoints.service import Endpoints
from app.models.backends.port import ChatRequest
from app.models.builtin import builtin_model_path
from app.models.endpoint_keys import endpoint_key
from app.settings.servers.endpoints import given_endpoint
from engine import Finished, FinishReason, Message, SamplingParams, TextDelta

QUESTION = "Tell me a story of a tern."
START_S = 120


@contextmanager
def llama_cpp_python(python: Path, model: Path) -> Iterator[str]:
    """The server at a free port; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", model, "--port", port, "--n_ctx", 2048]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
        try:
            wait_for(f"http://127.0.0.1:{port}/v1/models", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start within {START_S} s (code {process.poll()})")


def asked(most: int, *before: Message) -> ChatRequest:
    sampling = SamplingParams(temperature=0.0, seed=1)
    return ChatRequest([*before, Message("user", QUESTION)], {}, sampling, most, {"temperature", "seed"})


def answer(model: RemoteModel, request: ChatRequest) -> tuple[list[str], Finished]:
    """Pieces of text, and the end."""
    pieces, end = [], None
    for event in model.chat(request).generation.events():
        if isinstance(event, TextDelta):
            pieces.append(event.text)
        else:
            end = event
    assert isinstance(end, Finished)
    return [piece for piece in pieces if piece], end


def stopped(model: RemoteModel) -> float:
    """Stop an answer after its first piece; seconds until its end came."""
    generation = model.chat(asked(1000)).generation
    for event in generation.events():
        if isinstance(event, TextDelta) and event.text:
            break
    started = time.perf_counter()
    generation.cancel()
    end = next(event for event in generation.events() if isinstance(event, Finished))
    assert end.reason is FinishReason.CANCELLED, end
    return time.perf_counter() - started


def counts(end: Finished) -> str:
    """Zero means that the server does not say."""
    if not end.completion_tokens:
        return "not told by this server"
    return f"{end.prompt_tokens} of the prompt, {end.completion_tokens} written at {end.tok_s:.1f} tok/s"


def look(address: str) -> None:
    """All that is looked at, a line each."""
    endpoint = given_endpoint(address, {})
    endpoints = Endpoints({endpoint.name: endpoint})
    try:
        listing = endpoints.listing(endpoint)
        assert listing.problem is None and listing.models, listing
        names = ", ".join(one.id for one in listing.models)
        model = endpoints.opened(endpoint_key(endpoint.name, ""))
        print(f"lists:    {names}; context {model.context_length or 'not said'}")
        pieces, end = answer(model, asked(32))
        assert end.reason in (FinishReason.STOP, FinishReason.LENGTH) and len(pieces) > 1, (pieces, end)
        print(f"streams:  {len(pieces)} pieces, {end.reason}: {''.join(pieces)[:60]!r}")
        print(f"counts:   {counts(end)}; first piece after {end.ttft_ms or 0:.0f} ms")
        print(f"stops:    within {1e3 * stopped(model):.0f} ms")
        again, _ = answer(model, asked(32))
        assert "".join(again) == "".join(pieces), (again, pieces)
        said = [Message("user", "Hello"), Message("assistant", "".join(pieces))]
        _, end = answer(model, asked(8, *said))
        assert end.reason in (FinishReason.STOP, FinishReason.LENGTH), end
        print("goes on:  the same answer after a stop, and a second turn")
    finally:
        endpoints.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", nargs="?")
    parser.add_argument("--llama-cpp-python", type=Path, metavar="PYTHON")
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    options = parser.parse_args()
    if options.llama_cpp_python is not None:
        with llama_cpp_python(options.llama_cpp_python, options.model) as address:
            look(address)
    elif options.address is not None:
        look(options.address)
    else:
        sys.exit("name an address, or --llama-cpp-python")


if __name__ == "__main__":
    main()
