"""What forking a chat costs before its new tab is drawn: `python -m tests.perf.fork_cost [--json]`.

A conversation of `--tokens` tokens in `--turns` turns is copied and handed to the history, as the chat
screen does it. Bar: 5 ms at 16,000 tokens. No KV is taken: the engine hears of a fork with its next turn.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from app.chat.conversation import Conversation
from app.history.store import HistoryStore


def conversation_of(tokens: int, turns: int) -> Conversation:
    conversation = Conversation(title="Long")
    each = tokens // (2 * turns)
    for number in range(turns):
        conversation.add_user(" ".join(["word"] * each))
        node = conversation.begin_answer("model")
        conversation.append(node.id, " ".join(["answer"] * each), range(number, number + each))
        conversation.finish(node.id)
    return conversation


def measure(tokens: int, turns: int, repeat: int) -> dict[str, float]:
    """Return processor milliseconds of the calling thread: median and worst of `repeat` forks."""
    with tempfile.TemporaryDirectory() as folder:
        history = HistoryStore(Path(folder) / "history.db")
        conversation = conversation_of(tokens, turns)
        history.save(conversation)
        history.flush()
        costs = []
        for _ in range(repeat):
            started = time.thread_time()
            copy = conversation.fork()
            history.save(copy)
            costs.append(1000 * (time.thread_time() - started))
            history.flush()
        history.close()
    return {
        "tokens": tokens,
        "messages": 2 * turns,
        "fork_ms_p50": statistics.median(costs),
        "fork_ms_max": max(costs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.tokens, args.turns, args.repeat)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<14}{value:>10.2f}")


if __name__ == "__main__":
    main()
