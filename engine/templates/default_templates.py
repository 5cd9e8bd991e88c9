"""Templates of our own, for files without one or with one that fails."""

from collections.abc import Mapping

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + '\\n' }}"
    "{% else %}{{ 'User: ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def default_template(control_tokens: Mapping[str, int]) -> tuple[str, str]:
    """(name for people, source): ChatML when the vocabulary has its tokens, else plain text."""
    if "<|im_start|>" in control_tokens and "<|im_end|>" in control_tokens:
        return "ChatML", CHATML
    return "plain User:/Assistant: text", PLAIN
