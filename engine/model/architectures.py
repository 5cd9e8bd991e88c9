"""Every architecture that GGUF files name, and what of it is missing here.

The names are llama.cpp's. What runs are the families; a family that is added leaves the table below.
"""

from dataclasses import dataclass

from engine.model.families import FAMILIES

_ENCODER = "text of its own: it is an encoder"
_DIFFUSION = "answers that are written all at once (diffusion)"
_DRAFTS = "text of its own: it drafts for another model"
_SOUND = "sound"
_STATE = "recurrent state"
_MLA = "multi-head latent attention (MLA)"
_SPARSE = "sparse attention"
_HEADS = "layers whose heads differ"
_ALIBI = "ALiBi positions"
_LEARNED = "learned positions"
_DESCRIPTION = "a description of its layers"

_LACKING: dict[str, str] = {
    _STATE: "mamba mamba2 jamba falcon-h1 nemotron_h nemotron_h_moe granitehybrid rwkv6 rwkv6qwen2 rwkv7 "
    "arwkv7 qwen3next qwen35 qwen35moe lfm2 lfm2moe plamo2 minimax-01",
    f"{_STATE}, {_MLA}": "kimi-linear kimi-k3 bailingmoe3",
    f"{_STATE}, {_SPARSE}": "qwen4exp",
    f"{_STATE}, {_MLA}, {_SPARSE}": "glm5-next",
    _MLA: "deepseek2 mistral4 minicpm3 plm",
    f"{_MLA}, {_SPARSE}": "deepseek32 glm-dsa dots3note",
    f"{_MLA}, several residual streams": "hy_v4",
    f"{_SPARSE}, several residual streams": "deepseek4",
    _SPARSE: "minimax-m3",
    f"{_HEADS}, values normed": "gemma4",
    f"{_HEADS}, shared KV, several residual streams": "gemma3n",
    _HEADS: "deci openelm laguna step35 mimo2 spark2_5 plamo3",
    "shared KV, layers that run several times": "nanbeige",
    "layers that run several times": "hrm_text",
    "chunked windows": "llama4",
    "a second set of experts in each layer": "grovemoe",
    "experts routed before the attention": "smallthinker",
    "experts beside a feed-forward part": "arctic",
    "experts with bounded products": "maple",
    "norms inside branches": "bitnet",
    "xIELU": "apertus",
    "a skip from the embeddings to every layer": "talkie",
    "adapters that tokens switch": "graniteswitch",
    _ALIBI: "bloom jais refact baichuan",
    f"{_ALIBI}, {_LEARNED}": "mpt",
    _LEARNED: "gpt2 starcoder",
    "an encoder in front of its decoder": "t5",
    _ENCODER: "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding t5encoder llama-embed",
    _DIFFUSION: "dream llada llada-moe rnd1",
    _DRAFTS: "eagle3 dflash gemma4-assistant",
    _SOUND: "wavtokenizer-dec qwen3tts pockettts",
    "text of its own: it reads images for another model": "clip",
    "images": "cogvlm deepseek2-ocr paddleocr",
    _DESCRIPTION: "falcon grok gptj gptneox qwen phi2 phimoe plamo codeshell orion gemma xverse cohere2moe "
    "dbrx olmo olmoe deepseek chatglm jais2 exaone exaone-moe granite_swa bailingmoe bailingmoe2 dots1 arcee "
    "afmoe hy_v3 minimax-m2 pangu-embedded maincoder mellum chameleon hunyuan_vl qwen2vl",
}
_MISSING = {name: what for what, names in _LACKING.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`; `missing` says in a few words why it does not run."""

    name: str
    missing: str | None

    @property
    def runs(self) -> bool:
        """Whether models of it run here."""
        return self.missing is None


def architectures() -> list[Architecture]:
    """All that are known: those that run, then the others, each by name."""
    running = [Architecture(name, None) for name in sorted(FAMILIES)]
    return running + [Architecture(name, _MISSING[name]) for name in sorted(_MISSING)]


def refusal(name: str) -> str:
    """Why an architecture does not run, for error messages."""
    missing = _MISSING.get(name)
    return f"'{name}' " + (f"does not run here, what is missing is {missing}" if missing else "is not known")
