"""A file's weights on their devices, and the runner that computes with them."""

from contextlib import ExitStack
from dataclasses import dataclass

from engine.api.errors import UnsupportedModelError
from engine.core.split_loader import load_split_decoder, split_sizes
from engine.device.memory import check_block_fits, free_bytes, kv_room, return_freed_memory
from engine.device.weight_memory import WeightMemory
from engine.footprint.device import rules_of
from engine.footprint.rules import Holding
from engine.footprint.scratch import PASS_SHARE, longest_pass
from engine.footprint.shape import Footprint
from engine.footprint.split import LONGEST_PASS, LONGEST_STREAMED, STREAMED_SHARE, split_rules
from engine.gguf.file import GGUFFile
from engine.model.decoder import Decoder
from engine.model.spec import ModelConfig
from engine.model.split.placement import Placement
from engine.model.weights import Progress, load_weights
from engine.runner.base import Runner
from engine.runner.eager_runner import EagerRunner
from engine.runner.model_kv import pool_bytes
from engine.tokenizer.tokenizer import Tokenizer
from kernels.contract import Operations

SLOTS_PER_CONTEXT = 64
"""KV slots are reserved for at most this many sequences of full length per model."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be loaded."""

    name: str
    """What errors call the file."""
    file: GGUFFile
    config: ModelConfig
    footprint: Footprint
    """Of what the device holds."""
    ops: Operations
    placement: Placement
    kv_budget_bytes: int
    weight_bytes: int
    """Expected, of the device."""

    def page_bytes(self) -> list[int]:
        """Of a KV block, then of a page of each window: the device's memory."""
        if self.placement.splits:
            return split_sizes(self.ops, self.config, self.placement).device
        return pool_bytes(self.ops, self.config)

    def check_block_fits(self) -> None:
        """Raise `EngineError` when the budget does not hold one block of KV."""
        check_block_fits(self.name, sum(self.page_bytes()), self.ops.block_size, self.kv_budget_bytes)

    def pages(self) -> list[int]:
        """Pages to reserve, scratch included: what the budget and the memory left by the weights hold."""
        room = self.kv_budget_bytes
        if not self.ops.runs_ahead:
            room = kv_room(room, self.ops.device)
        sizes, block_size = self.page_bytes(), self.ops.block_size
        check_block_fits(self.name, sum(sizes), block_size, room)
        most = SLOTS_PER_CONTEXT * -(-self.config.context_length // block_size)
        return [1 + min(room // size, most) for size in sizes]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load gave; closing the runner gives it back."""

    runner: Runner
    pages: list[int]
    longest_pass: int
    weight_bytes: int
    """On the device."""
    host_bytes: int = 0
    """In host memory beside it."""


def load_runner(order: Order, tokenizer: Tokenizer, progress: Progress) -> Loaded:
    """Convert the weights; raises what that raises, and nothing is held then."""
    return _load_split(order, progress) if order.placement.splits else _load_whole(order, tokenizer, progress)


def warm_up(order: Order, loaded: Loaded, tokenizer: Tokenizer, progress: Progress) -> Loaded:
    """Make the kernels ready, or, where that fails beside the operations, load again to go without.

    Raises `UnsupportedModelError` for what only kernels can do; nothing is held then.
    """
    try:
        loaded.runner.warm_up(lambda part: progress(part, "kernels"))
        return loaded
    except BaseException as error:
        loaded.runner.close()
        if not order.ops.runs_ahead or not isinstance(error, Exception):
            raise
        from kernels.cuda.errors import is_kernels, reason_of
        from kernels.pieces.operations import runs_singly

        if not is_kernels(error):
            raise
        if order.placement.splits or not runs_singly(order.ops, error):
            raise UnsupportedModelError(
                f"{order.name}: {reason_of(error)}; with weight_dtype bfloat16 or float32, or on the CPU, "
                "torch computes all of it"
            ) from None
    loaded.runner.freed.wait()
    return_freed_memory()
    return warm_up(order, load_runner(order, tokenizer, progress), tokenizer, progress)


def _load_whole(order: Order, tokenizer: Tokenizer, progress: Progress) -> Loaded:
    file, config, ops = order.file, order.config, order.ops
    with ExitStack() as undo:
        memory = WeightMemory(ops.device, order.weight_bytes) if ops.runs_ahead else None
        if memory is not None:
            undo.callback(memory.close)
        weights = load_weights(file, config, ops, progress, None if memory is None else memory.adopt)
        decoder, pages = Decoder(config, weights, ops), order.pages()
        longest = longest_pass(order.footprint, rules_of(ops), free_bytes(ops.device))
        runner: Runner
        if ops.runs_ahead:
            from engine.runner.graph_runner import GraphRunner

            length = config.context_length
            runner = GraphRunner(decoder, pages, length, tokenizer.eog_ids, longest, memory)
        elif rules_of(ops).holding is Holding.PLANES:
            from engine.runner.step_runner import StepRunner

            runner = StepRunner(decoder, pages)
        else:
            runner = EagerRunner(decoder, pages)
        # It closes the memory from now on, behind what its threads still run.
        undo.pop_all()
    return Loaded(runner, pages, longest, weights.nbytes)


def _load_split(order: Order, progress: Progress) -> Loaded:
    from engine.runner.split.split_runner import SplitRunner

    ops, placement = order.ops, order.placement
    decoder, held, host_bytes = load_split_decoder(order.file, order.config, ops, placement, progress)
    pages = split_sizes(ops, order.config, placement).capped(order.name, order.pages(), ops.block_size)
    most, share = (LONGEST_STREAMED, STREAMED_SHARE) if decoder.streams else (LONGEST_PASS, PASS_SHARE)
    rules = split_rules(rules_of(ops), most)
    longest = longest_pass(order.footprint, rules, free_bytes(ops.device), share) or LONGEST_PASS
    # Chunks of other models are as long as memory allows: those of this one have a limit of their own.
    return Loaded(SplitRunner(decoder, pages, longest), pages, 0, held, host_bytes)
