from engine.api.request import Request
from engine.scheduler.sequence import Sequence


def test_tokens_chase_a_target():
    request = Request((5, 6, 7), max_tokens=4)
    sequence = Sequence(1, 0, request, arrival=0.0)
    assert (sequence.num_target, sequence.remaining, sequence.num_generated) == (3, 3, 0)
    sequence.num_computed = 3
    sequence.token_ids.append(9)
    assert (sequence.num_target, sequence.remaining, sequence.num_generated) == (4, 1, 1)
    assert request.prompt_ids == (5, 6, 7)
    assert not sequence.finished
