"""How a model file becomes a resident model."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.cache.window_pages import WindowShape
from engine.core.recovery.block_table_check import BlockTableCheck
from engine.core.runner_loader import Loaded, Order, load_runner, warm_up
from engine.core.split_loader import Dividing
from engine.device.faults import is_out_of_memory
from engine.device.fit_advice import Holders, Need, does_not_fit
from engine.device.memory import (
    check_weights_fit,
    free_bytes,
    return_freed_memory,
)
from engine.footprint.device import rules_of
from engine.footprint.kv_choice import KVChoice, Room, choose_kv
from engine.footprint.rules import weight_bytes
from engine.footprint.shape import Footprint, read_footprint
from engine.footprint.split import Split, parts_of, split_rules
from engine.gguf.file import GGUFFile, open_gguf
from engine.gguf.labels import quantization_label
from engine.model.config import read_config
from engine.model.spec import ModelConfig
from engine.model.split.placement import Placement
from engine.model.tensors import check_tensors
from engine.model.weights import Progress
from engine.runner.base import Runner
from engine.runner.model_kv import window_sizes
from engine.templates.chat_template import ChatTemplate
from engine.tokenizer.tokenizer import Tokenizer
from kernels.contract import Operations
from kernels.cpu.team import passing_team
from kernels.quant.formats import KVFormat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a person wants to know of a resident model."""

    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    weight_bytes: int
    weight_dtype: str
    kv_dtype: KVFormat
    kv_note: str
    """Why its KV is not of a wider type; empty where it is as wide as it may be."""
    kv_bytes_per_token: int
    host_bytes: int = 0
    """Weights in host memory, which the processor computes with."""
    placement: str = ""
    """What computes its layers, where that is not the device alone."""


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """What a model is loaded from again, and what of it outlives its device."""

    key: int
    path: Path
    context_length: int
    kv: KVChoice
    salt: bytes
    tokenizer: Tokenizer
    template: ChatTemplate
    placement: Placement


@dataclass(slots=True)
class ResidentModel:
    """Everything that serves one loaded file."""

    key: int
    name: str
    path: Path
    info: ModelInfo
    config: ModelConfig
    context_length: int
    tokenizer: Tokenizer
    template: ChatTemplate
    runner: Runner
    longest_pass: int
    """Most prompt tokens of a pass that memory allows; 0: any."""
    pool_bytes: list[int]
    """Of a KV block, then of a page of each window: the device's memory."""
    pool_pages: list[int]
    """Numbers of blocks and of pages, scratch page 0 included."""
    salt: bytes
    """Keys the prefix index: KV of another file, element type or rope choice must never match."""
    warnings: list[str]
    placement: Placement
    ops: Operations
    """What computes it."""
    last_used: float = 0.0
    """Clock at which its last request came or ended."""
    blocks: BlockManager = field(init=False)
    table_check: BlockTableCheck = field(init=False)

    @property
    def slot_bytes(self) -> list[int]:
        """Of a block and of such pages where they wait in host memory or in files: all layers."""
        return [pool.block_bytes for pool in self.runner.host_pools]

    @property
    def origin(self) -> ModelOrigin:
        """How to load it again."""
        kv = KVChoice(self.info.kv_dtype, self.info.kv_note)
        return ModelOrigin(
            self.key, self.path, self.context_length, kv, self.salt, self.tokenizer, self.template,
            self.placement,
        )  # fmt: skip

    def open_blocks(self, budget: KVBudget, chunk: int, *, debug: bool) -> BlockManager:
        """Start with empty KV blocks; on the engine's thread, which owns the budget.

        chunk: most tokens of a prompt in one pass; debug: look for wrong page ids by what blocks hold too.
        """
        kinds = zip(window_sizes(self.config), self.pool_pages[1:], self.pool_bytes[1:], strict=True)
        self.blocks = BlockManager(
            self.pool_pages[0],
            self.runner.block_size,
            self.pool_bytes[0],
            budget,
            self.salt,
            lowest_first=self.runner.kv_bytes > 0,
            windows=[WindowShape(*kind) for kind in kinds],
            chunk=chunk,
        )
        self.table_check = BlockTableCheck(self.blocks, thorough=debug)
        return self.blocks


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every model of one engine shares."""

    ops: Operations
    kv_budget_bytes: int
    """Most that KV of all models may take; on a GPU less while weights take more."""
    make_room: Callable[[int], None]
    """Called with the bytes that weights will need, so that cached KV can give way."""
    holders: Callable[[], Holders] = Holders
    """Who has memory that closing something would free."""
    name_of: Callable[[Path], str] = attrgetter("stem")
    """What the model of a file is called."""

    def file_name(self, path: Path) -> str:
        """What errors call a file: by its model, where its own name says nothing of that."""
        return f"{self.name_of(path)}{path.suffix}"

    cached_kv: Callable[[], int] = lambda: 0
    """Bytes of cached KV that would give way to the model's."""
    kv: KVChoice | None = None
    """Element type of its KV; None: by the memory that there is."""
    dividing: Dividing = field(default_factory=Dividing)

    @property
    def room(self) -> Room:
        """Memory that one more model can have now."""
        return Room(free_bytes(self.ops.device) + self.cached_kv(), self.kv_budget_bytes)


def build_model(
    key: int, path: Path, context_length: int | None, options: LoadOptions, progress: Progress
) -> ResidentModel:
    """Open, check and convert a model file.

    Raises `EngineError` subclasses naming file and field when the file cannot be served, and saying
    what would help when memory does not hold it; nothing is held then. Runs on the caller's thread;
    nothing of it is visible to the engine until it is added.
    """
    progress(0.0, "header")
    with open_gguf(path) as file, passing_team():
        config = read_config(file, context_length)
        footprint = read_footprint(file, config, check_tensors(file, config))
        name = options.file_name(path)
        split = options.dividing.split(name, footprint, rules_of(options.ops), options.room)
        here = footprint if split is None else parts_of(footprint, split.placement)[0]
        need = weights_of(file, here, options)
        try:
            return _build(key, file, config, here, options, need, progress, split)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # Not the error itself: a record that is kept would hold its traceback, and that the weights.
            log.warning("loading %s: %s", path, str(error) or type(error).__name__)
    # What was loaded goes with the error's traceback, so only here it is free again.
    return_freed_memory()
    free = free_bytes(options.ops.device)
    raise does_not_fit(need, free, options.holders(), "memory ran out while it was loaded")


def _build(
    key: int,
    file: GGUFFile,
    config: ModelConfig,
    footprint: Footprint,
    options: LoadOptions,
    need: Need,
    progress: Progress,
    split: Split | None,
) -> ResidentModel:
    """footprint: of what the device holds."""
    path = file.path
    kv = options.kv or choose_kv_type(footprint, options, divided=split is not None)
    ops = options.ops.with_kv(kv.kv_format)
    _check_attention(file, config, ops)
    tokenizer = Tokenizer.from_gguf(file)
    placement = Placement() if split is None else split.placement
    name, budget = options.file_name(path), options.kv_budget_bytes
    order = Order(name, file, config, footprint, ops, placement, budget, need.weight_bytes)
    order.check_block_fits()
    options.make_room(need.weight_bytes)
    check_weights_fit(need, ops.device, options.holders())
    if split is None:
        _begin_to_compile(config, ops)
    loaded = load_runner(order, tokenizer, progress)
    try:
        # By now the process that compiles it has started.
        template = ChatTemplate.from_gguf(file, tokenizer)
        file.check_unchanged()
    except BaseException:
        loaded.runner.close()
        raise
    loaded = warm_up(order, loaded, tokenizer, progress)
    options.ops.host_gb_s = ops.host_gb_s
    warnings = [text for text in (tokenizer.warning, template.warning) if text]
    resident = ResidentModel(
        key=key,
        name=options.name_of(path),
        path=path,
        info=_info(order, need.parameters, loaded, kv, split),
        config=config,
        context_length=config.context_length,
        tokenizer=tokenizer,
        template=template,
        runner=loaded.runner,
        longest_pass=loaded.longest_pass,
        pool_bytes=order.page_bytes(),
        pool_pages=loaded.pages,
        salt=_salt(file, config, ops, placement),
        warnings=warnings,
        placement=placement,
        ops=ops,
    )
    try:
        progress(1.0, "ready")
    except BaseException:
        loaded.runner.close()
        raise
    return resident


def rebuild_model(origin: ModelOrigin, options: LoadOptions, progress: Progress) -> ResidentModel:
    """Load a model again from its file, under its key; raises what `build_model` raises.

    Tokenizer and template stay, since handles and running answers have them.
    """
    same = replace(options, kv=origin.kv, dividing=Dividing(placement=origin.placement))
    made = build_model(origin.key, origin.path, origin.context_length, same, progress)
    if made.salt != origin.salt:
        made.runner.close()
        raise ModelFileError(f"{origin.path}: the file has changed since it was loaded; restart the program")
    made.tokenizer, made.template = origin.tokenizer, origin.template
    return made


def _check_attention(file: GGUFFile, config: ModelConfig, ops: Operations) -> None:
    """Before anything large is read: else the first pass would fail."""
    try:
        for one in dict.fromkeys(layer.attention for layer in config.layers):
            ops.check_attention(one.heads, one.kv_heads, one.head_dim)
    except ValueError as error:
        key = f"{config.architecture}.attention.key_length"
        raise UnsupportedModelError(f"{file.path}: {key}: {error}.") from None


def choose_kv_type(footprint: Footprint, options: LoadOptions, *, divided: bool) -> KVChoice:
    """By what weights and context take of what is free; divided: whether the processor computes a part."""
    rules = rules_of(options.ops)
    return choose_kv(footprint, split_rules(rules) if divided else rules, options.room)


def weights_of(file: GGUFFile, footprint: Footprint, options: LoadOptions) -> Need:
    """What the weights of a file whose tensors were checked will take."""
    ops, parameters = options.ops, _parameters(file)
    return Need(
        options.file_name(file.path),
        weight_bytes(footprint, rules_of(ops)),
        parameters,
        narrow_bytes=parameters * 2 if ops.weight_format == "float32" else None,
        as_in_file=ops.weight_format == "as in the file",
    )


def _begin_to_compile(config: ModelConfig, ops: Operations) -> None:
    """Have compilers start while weights are read, where there are any."""
    if ops.runs_ahead and ops.device.type == "cuda":
        from engine.runner.warmup import compile_sampler_early

        compile_sampler_early(config.vocab_size, ops.device)


def _parameters(file: GGUFFile) -> int:
    total = 0
    for info in file.tensors.values():
        count = 1
        for size in info.shape:
            count *= size
        total += count
    return total


def _info(order: Order, parameters: int, loaded: Loaded, kv: KVChoice, split: Split | None) -> ModelInfo:
    file, ops = order.file, order.ops
    return ModelInfo(
        architecture=order.config.architecture,
        quantization=quantization_label(file),
        parameters=parameters,
        size_bytes=file.size_bytes,
        weight_bytes=loaded.weight_bytes,
        weight_dtype=ops.weight_format,
        kv_dtype=kv.kv_format,
        kv_note=kv.note,
        kv_bytes_per_token=sum(order.page_bytes()) // ops.block_size,
        host_bytes=loaded.host_bytes,
        placement="" if split is None else split.text,
    )


def _salt(file: GGUFFile, config: ModelConfig, ops: Operations, placement: Placement) -> bytes:
    identity = f"{file.path.resolve()}|{file.version_read}|{ops.kv_format}|{ops.name}|{config.ropes}"
    if placement.splits:
        identity += f"|{placement}"
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()
