"""The rules of a device, told by the operations that serve it, and what it has free."""

from functools import cache
from typing import TYPE_CHECKING

from engine.device.bandwidth import gpu_bandwidth, host_bandwidth
from engine.device.free_memory import free_gpu_bytes, free_host_bytes
from engine.footprint.rules import DeviceRules, Holding
from engine.footprint.split import Split

REACHED_ON_A_GPU, REACHED_ON_A_CPU = 0.4, 0.5
"""Part of a memory's bandwidth that writing for one chat reaches where nothing was measured yet."""

if TYPE_CHECKING:
    from kernels.contract import Operations


def rules_of(ops: "Operations") -> DeviceRules:
    """How these operations hold weights and KV."""
    widened = ops.weight_format in ("float32", "bfloat16")
    repacked = Holding.PLANES if ops.few_tokens is None else Holding.PACKED
    title, gpu = _names(ops)
    return DeviceRules(
        device=str(ops.device),
        title=title,
        holding=Holding.DENSE if widened else repacked,
        weight_itemsize=ops.weight_itemsize,
        kv_format=ops.kv_format,
        block_size=ops.block_size,
        gpu=gpu,
        kv_choices=ops.kv_choices,
        pass_tokens=0 if widened or repacked is Holding.PACKED else ops.max_prefill_tokens,
        host=_host_rules(ops) if ops.runs_ahead else None,
    )


def _host_rules(ops: "Operations") -> DeviceRules:
    """Of `kernels.select.host_operations`, told without making them: that takes a compiler's import."""
    from kernels.select import host_holding

    packs, itemsize = host_holding()
    return DeviceRules(
        device="cpu",
        title="this computer's processor",
        holding=Holding.PACKED if packs else Holding.DENSE,
        weight_itemsize=itemsize,
        kv_format=ops.kv_format,
        block_size=ops.block_size,
    )


def _names(ops: "Operations") -> tuple[str, str]:
    """What a person and what the driver calls the device."""
    if ops.device.type != "cuda":
        return "this computer's processor", ""
    import torch

    properties = torch.cuda.get_device_properties(ops.device)
    return properties.name, f"GPU-{properties.uuid}"


def free_memory(rules: DeviceRules) -> int | None:
    """Bytes that the device has free; None where nobody says it."""
    return free_gpu_bytes(rules.gpu) if rules.on_gpu else free_host_bytes()


def expected_tok_s(split: Split, rules: DeviceRules, threads: int) -> float | None:
    """Tokens a second that one chat with a divided model will be written with; None: not known.

    Takes some 50 ms of the processor, once.
    """
    host = _host_bandwidth(threads)
    device = _gpu_bandwidth(rules.gpu) if rules.on_gpu else host
    if device is None:
        return None
    return 1 / (split.device_read / device / REACHED_ON_A_GPU + split.host_read / host / REACHED_ON_A_CPU)


_host_bandwidth, _gpu_bandwidth = cache(host_bandwidth), cache(gpu_bandwidth)


def read_bandwidth(rules: DeviceRules, threads: int) -> float | None:
    """Bytes a second that the device's memory gives, to so many threads of a processor; None: not known.

    Takes some 50 ms of a processor.
    """
    return gpu_bandwidth(rules.gpu) if rules.on_gpu else host_bandwidth(threads)
