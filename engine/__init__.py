"""What turns requests into tokens: scheduler, KV blocks, model runner, GGUF files, text and tokens.

    from engine import Engine, Message, Request

    with Engine() as engine:
        model = engine.load("model.gguf")
        prompt = model.template.encode([Message("user", "What is a tern?")])
        print(model.submit(Request(tuple(prompt), max_tokens=100)).result()[0])

These names are the floor's public face; what else its rooms hold is the floor's own. A name is imported
when it is asked for, so that `import engine` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.api.answer_format import THINK, AnswerFormat, MessageFormat, TagFormat
    from engine.api.constraint import Constraint, ConstraintError, ConstraintKind
    from engine.api.detail import DeviceUse, EngineDetail, KVHolding, KVPool, SequenceDetail, TickRecord
    from engine.api.errors import (
        DeviceLostError,
        EngineClosedError,
        EngineError,
        EngineFailedError,
        ModelFileError,
        RequestError,
        TemplateError,
        TokenizerError,
        UnsupportedModelError,
    )
    from engine.api.generation import Generation
    from engine.api.load_plan import LoadPlan, PlannedRelease, Release
    from engine.api.options import EngineOptions
    from engine.api.recommended import check_sampling
    from engine.api.request import (
        Event,
        Finished,
        FinishReason,
        Priority,
        Request,
        SamplingParams,
        TextDelta,
        TokenLogprobs,
    )
    from engine.api.stats import EngineStats, ModelState, ModelStats, SequenceState, SequenceStats
    from engine.api.thinking import Thinking, ThinkingSupport
    from engine.api.tool_format import ARGUMENTS_MARK, CALL_ID_MARK, CallStyle, ToolCall, ToolFormat
    from engine.catalog import ModelSummary, model_paths, part_paths, recommended_sampling, summarize
    from engine.core.device_choice import device_rules
    from engine.disk.saved_kv import SavedKV
    from engine.engine import Engine, Model
    from engine.footprint.device import expected_tok_s, free_memory, read_bandwidth
    from engine.footprint.fit import Advice, AdviceKind, Fit, Verdict, fit
    from engine.footprint.kv_choice import HostRoom, Room
    from engine.footprint.outline import Outline
    from engine.footprint.rules import DeviceRules, read_bytes
    from engine.footprint.serving import serving
    from engine.footprint.shape import Footprint
    from engine.model.architectures import Architecture, architectures
    from engine.several.engines import AnyEngine, Engines, open_engine
    from engine.templates.turns import KeptAnswer, Message, Prompt
    from engine.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ARGUMENTS_MARK",
    "CALL_ID_MARK",
    "THINK",
    "Advice",
    "AdviceKind",
    "AnswerFormat",
    "AnyEngine",
    "Architecture",
    "CallStyle",
    "Constraint",
    "ConstraintError",
    "ConstraintKind",
    "DeviceLostError",
    "DeviceRules",
    "DeviceUse",
    "Engine",
    "EngineClosedError",
    "EngineDetail",
    "EngineError",
    "EngineFailedError",
    "EngineOptions",
    "EngineStats",
    "Engines",
    "Event",
    "FinishReason",
    "Finished",
    "Fit",
    "Footprint",
    "Generation",
    "HostRoom",
    "KVHolding",
    "KVPool",
    "KeptAnswer",
    "LoadPlan",
    "Message",
    "MessageFormat",
    "Model",
    "ModelFileError",
    "ModelState",
    "ModelStats",
    "ModelSummary",
    "Outline",
    "PlannedRelease",
    "Priority",
    "Prompt",
    "Release",
    "Request",
    "RequestError",
    "Room",
    "SamplingParams",
    "SavedKV",
    "SequenceDetail",
    "SequenceState",
    "SequenceStats",
    "TagFormat",
    "TemplateError",
    "TextDelta",
    "Thinking",
    "ThinkingSupport",
    "TickRecord",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "ToolFormat",
    "UnsupportedModelError",
    "Verdict",
    "architectures",
    "check_sampling",
    "device_rules",
    "expected_tok_s",
    "fit",
    "free_memory",
    "model_paths",
    "open_engine",
    "part_paths",
    "read_bandwidth",
    "read_bytes",
    "recommended_sampling",
    "serving",
    "summarize",
]

_HOMES = {
    "ARGUMENTS_MARK": "engine.api.tool_format",
    "CALL_ID_MARK": "engine.api.tool_format",
    "CallStyle": "engine.api.tool_format",
    "ToolCall": "engine.api.tool_format",
    "ToolFormat": "engine.api.tool_format",
    "THINK": "engine.api.answer_format",
    "AnswerFormat": "engine.api.answer_format",
    "AnyEngine": "engine.several.engines",
    "Architecture": "engine.model.architectures",
    "Advice": "engine.footprint.fit",
    "AdviceKind": "engine.footprint.fit",
    "Constraint": "engine.api.constraint",
    "ConstraintError": "engine.api.constraint",
    "ConstraintKind": "engine.api.constraint",
    "DeviceLostError": "engine.api.errors",
    "DeviceRules": "engine.footprint.rules",
    "DeviceUse": "engine.api.detail",
    "Engine": "engine.engine",
    "EngineDetail": "engine.api.detail",
    "KVHolding": "engine.api.detail",
    "KVPool": "engine.api.detail",
    "SequenceDetail": "engine.api.detail",
    "EngineClosedError": "engine.api.errors",
    "EngineError": "engine.api.errors",
    "EngineFailedError": "engine.api.errors",
    "EngineOptions": "engine.api.options",
    "EngineStats": "engine.api.stats",
    "Engines": "engine.several.engines",
    "Event": "engine.api.request",
    "FinishReason": "engine.api.request",
    "Finished": "engine.api.request",
    "Fit": "engine.footprint.fit",
    "Footprint": "engine.footprint.shape",
    "Generation": "engine.api.generation",
    "KeptAnswer": "engine.templates.turns",
    "LoadPlan": "engine.api.load_plan",
    "ModelState": "engine.api.stats",
    "PlannedRelease": "engine.api.load_plan",
    "Release": "engine.api.load_plan",
    "Message": "engine.templates.turns",
    "MessageFormat": "engine.api.answer_format",
    "Model": "engine.engine",
    "ModelFileError": "engine.api.errors",
    "ModelStats": "engine.api.stats",
    "ModelSummary": "engine.catalog",
    "Outline": "engine.footprint.outline",
    "Priority": "engine.api.request",
    "Prompt": "engine.templates.turns",
    "Request": "engine.api.request",
    "RequestError": "engine.api.errors",
    "HostRoom": "engine.footprint.kv_choice",
    "Room": "engine.footprint.kv_choice",
    "SamplingParams": "engine.api.request",
    "SavedKV": "engine.disk.saved_kv",
    "SequenceState": "engine.api.stats",
    "SequenceStats": "engine.api.stats",
    "TagFormat": "engine.api.answer_format",
    "TemplateError": "engine.api.errors",
    "TextDelta": "engine.api.request",
    "Thinking": "engine.api.thinking",
    "ThinkingSupport": "engine.api.thinking",
    "TickRecord": "engine.api.detail",
    "Tokenizer": "engine.tokenizer.tokenizer",
    "TokenLogprobs": "engine.api.request",
    "TokenizerError": "engine.api.errors",
    "UnsupportedModelError": "engine.api.errors",
    "architectures": "engine.model.architectures",
    "Verdict": "engine.footprint.fit",
    "check_sampling": "engine.api.recommended",
    "device_rules": "engine.core.device_choice",
    "fit": "engine.footprint.fit",
    "expected_tok_s": "engine.footprint.device",
    "free_memory": "engine.footprint.device",
    "model_paths": "engine.catalog",
    "open_engine": "engine.several.engines",
    "part_paths": "engine.catalog",
    "read_bandwidth": "engine.footprint.device",
    "read_bytes": "engine.footprint.rules",
    "recommended_sampling": "engine.catalog",
    "serving": "engine.footprint.serving",
    "summarize": "engine.catalog",
}
"""Where each name is defined."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
