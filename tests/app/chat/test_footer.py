"""The line under an answer: what it cost."""

from app.chat.conversation import AnswerStats, Conversation, Status
from app.chat.prompt import answer_footer
from app.chat.reasoning import splitter_for
from engine import Finished, FinishReason
from engine.api.answer_format import THINK


def footer(**figures) -> str:
    conversation = Conversation()
    conversation.add_user("Hello")
    node = conversation.begin_answer("m.gguf", splitter_for(THINK, False))
    conversation.finish(node.id, Status.COMPLETE, stats=AnswerStats(**figures))
    return answer_footer(conversation, node, "Ctrl+R", "Ctrl+O")


def test_it_says_what_the_cache_has_saved():
    finished = Finished(FinishReason.STOP, None, 1_204, 1_100, 213, 3.0, 120.0, 31.2, saved_ms=860.4)
    assert AnswerStats.of(finished).saved_ms == 860.4
    text = footer(
        tokens=213, tok_s=31.2, ttft_ms=120.0, cached_tokens=1_100, prompt_tokens=1_204, saved_ms=860.4
    )
    assert text == (
        "213 tokens · 31 tok/s · first after 120 ms · read 1,204 tokens, 1,100 from the cache, 860 ms saved"
    )


def test_it_says_nothing_of_a_cache_that_had_nothing_and_no_time_that_is_not_known():
    assert footer(tokens=2, tok_s=0.0, prompt_tokens=1_204) == "2 tokens"
    kept = footer(tokens=2, tok_s=0.0, cached_tokens=32, prompt_tokens=40)
    assert kept == "2 tokens · read 40 tokens, 32 from the cache"
