"""What is said to run is what runs, and of nothing else anything is said."""

import pytest

from engine.api.errors import UnsupportedModelError
from engine.gguf.file import open_gguf
from engine.model import architectures as table
from engine.model.architectures import architectures, refusal
from engine.model.config import read_config
from engine.model.families import FAMILIES
from tests.support.tiny_gguf import make_tiny

_LISTED = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon
chatglm clip codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr
deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe
exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4
glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok
grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2
jina-bert-v3 kimi-k3 kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba
mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt
muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe
openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe
qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6
rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder
talkie wavtokenizer-dec xverse
"""
"""Every name in llama.cpp's table of architectures."""


def test_a_family_runs_and_lacks_nothing_and_all_others_lack_something():
    names = [one.name for one in architectures()]
    assert len(set(names)) == len(names), "a family that runs is still said to lack something"
    assert {one.name for one in architectures() if one.runs} == FAMILIES.keys()
    assert set(names) == set(_LISTED.split())
    assert sum(len(names.split()) for names in table._LACKING.values()) == len(table._MISSING)


def test_a_file_is_refused_in_the_words_of_the_table(tmp_path):
    path = make_tiny(tmp_path / "m.gguf", "llama")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"llama", b"mamba"))
    with open_gguf(path) as file, pytest.raises(UnsupportedModelError) as error:
        read_config(file)
    assert (
        "m.gguf: general.architecture: 'mamba' does not run here, what is missing is recurrent state. "
        in str(error.value)
    )
    assert refusal("grok-9") == "'grok-9' is not known"
