"""The vendor's library keeps no memory for streams and threads that are gone, and graphs keep theirs."""

import threading

import pytest
import torch

from engine.device.stream import CudaStream, open_stream
from kernels.cuda.cublas import free_workspaces, matmul


def factors(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=made).half() for shape in ((96, 512), (512, 320)))
    return a.to(device), b.to(device)


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_products(device, dtype):
    a, b = factors(device)
    if device == "cpu" and dtype is not None:
        pytest.skip("plain torch has no such product")
    product = matmul(a, b, dtype)
    assert product.dtype == (dtype or torch.float16)
    assert torch.allclose(product.float(), a.float() @ b.float(), atol=0.05, rtol=2e-3)
    free_workspaces()
    assert torch.equal(matmul(a, b, dtype), product)


def test_workspaces_of_other_threads_and_streams_are_given_back(device, full):
    if not full:
        pytest.skip("the vendor's library needs a GPU")
    a, b = factors(device)
    free_workspaces()
    before = torch.cuda.memory_allocated()

    def multiply() -> None:
        queue = open_stream(torch.device(device))
        with queue.current():
            matmul(a, b)
        queue.synchronize()

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.cuda.memory_allocated() > before, "nothing was kept: this test can be dropped"
    free_workspaces()
    assert torch.cuda.memory_allocated() == before


def test_a_graph_needs_no_workspace_that_is_given_back(device, full):
    if not full:
        pytest.skip("graphs need a GPU")
    queue = CudaStream(torch.device(device))
    a, b = factors(device)
    queue.synchronize()
    with queue.current():
        out = matmul(a, b)
        queue.synchronize()
        wanted = out.clone()

    def work() -> None:
        out.copy_(matmul(a, b))

    replay = queue.capture(work)
    free_workspaces()
    torch.cuda.empty_cache()
    taken = [torch.full((8 << 20,), 7, dtype=torch.int32, device=device) for _ in range(4)]
    with queue.current():
        out.zero_()
        replay()
    queue.synchronize()
    assert torch.equal(out, wanted)
    assert all(bool((part == 7).all()) for part in taken), "a replay wrote to memory of others"
