"""torch comes in without what eager computation never uses, and what was left out still works."""

import subprocess
import sys

import pytest
import torch

from app.models.torch_start import import_torch

SCRIPT = """
import gc, inspect, sys
from app.models import torch_start
finders, getmodule = list(sys.meta_path), inspect.getmodule
torch_start.map_torch_libraries()
torch_start.map_torch_libraries()
torch_start._mapping.join()
if sys.platform == "linux":
    assert "libtorch_cpu.so" in open("/proc/self/maps").read()
    assert "torch" not in sys.modules
torch_start.import_torch()
assert sys.meta_path == finders and gc.isenabled() and inspect.getmodule is getmodule
assert "torch._decomp" not in sys.modules and "torch.export.exported_program" not in sys.modules
assert "torch.optim.sgd" not in sys.modules and "torch.utils.data.dataloader" not in sys.modules
import torch
def unused():
    return [m for m in map(sys.modules.get, torch_start._DEFERRED) if type(m) is torch_start._DeferredModule]
before = unused()
import engine.engine, engine.runner.eager_runner, kernels.cpu.operations
assert before and unused() == before
assert bool((torch.ones(3, 4) @ torch.ones(4, 5) == 4).all())
assert torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(0.0)) == 0.5
assert callable(torch.export.export) and "torch.export.exported_program" in sys.modules
assert list(torch.utils.data.DataLoader([1, 2])) == [1, 2] and callable(torch.nn.quantized.Linear)
torch.testing.assert_close(torch.ones(2), torch.ones(2))
assert torch._meta_registrations.meta_mm is not None
assert (torch.empty(3, 4, device="meta") @ torch.empty(4, 5, device="meta")).shape == (3, 5)
try:
    torch.export.no_such_name
except AttributeError as error:
    print(error)
"""


def test_parts_left_out_are_there_when_asked_for():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "no_such_name" in done.stdout


def test_a_program_that_has_torch_keeps_all_of_it(monkeypatch):
    before = list(sys.meta_path)
    import_torch()
    assert sys.meta_path == before and callable(torch.export.export)


def test_an_import_that_fails_leaves_the_import_system_as_it_was(monkeypatch):
    before = list(sys.meta_path)
    monkeypatch.delitem(sys.modules, "torch")

    class Refusing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "torch":
                raise ImportError("none here")

    monkeypatch.setattr(sys, "meta_path", [Refusing, *before])
    with pytest.raises(ImportError, match="none here"):
        import_torch()
    assert sys.meta_path == [Refusing, *before]
