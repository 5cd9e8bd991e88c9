"""Teach the built-in model more wordings, held to what it says of everything else.

python -m tests.perf.pocket.finetune --replay FILE --held-out t01.tsv --out DIR

FILE has a chat a line, the user's messages with tabs between (`replay` makes it); what the present model
answers to the last of them is what the new one is held to (Kullback-Leibler divergence), beside the wordings,
which get their topics' answers. Written to DIR are the weights, in pieces, for `make_file`.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from app.models.builtin import builtin_model_path
from engine.tokenizer.tokenizer import Tokenizer
from tests.perf.pocket.network import Network
from tests.perf.pocket.topics import CORE, DECLINES, NEAR, OF_PROGRAM, TOPICS, is_right

_PREFIXES = ("hi, ", "hey ", "Hello! ", "quick question: ", "sorry, ", "ok so ", "and ", "uh, ", "btw ")
_SUFFIXES = (" please", " thanks", " in tui-chat", " here", " in this program", " pls", " now")
_END = 2
MOST = 200
"""Tokens of an answer that is held to."""

Example = tuple[list[int], list[int]]
"""Tokens of a conversation up to its last answer, and those of that answer with its end."""


class Chats:
    """ChatML as token ids."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer.from_file(path)

    def prompt(self, turns: Sequence[str]) -> list[int]:
        """User and assistant by turns."""
        text, ids = self.tokenizer, []
        for number, turn in enumerate(turns):
            ids += text.encode(f"<|im_start|>{('user', 'assistant')[number % 2]}\n", special=True)
            ids += [*text.encode(turn), *text.encode("<|im_end|>\n", special=True)]
        return ids + text.encode("<|im_start|>assistant\n", special=True)

    def example(self, turns: Sequence[str], answer: str) -> Example:
        """What is to be learnt."""
        return self.prompt(turns), [*self.tokenizer.encode(answer), _END]


def varied(text: str, rng: random.Random) -> str:
    """The same as somebody else may type it."""
    if rng.random() < 0.25:
        text = text.lower()
    if rng.random() < 0.25:
        text = text.rstrip("?.! ")
    elif rng.random() < 0.1:
        text += rng.choice("?!.")
    if rng.random() < 0.15:
        text = rng.choice(_PREFIXES) + text
    if rng.random() < 0.1:
        text += rng.choice(_SUFFIXES)
    words = text.split(" ")
    if rng.random() < 0.2:
        at = rng.randrange(len(words))
        if len(words[at]) > 3:
            cut = rng.randrange(len(words[at]) - 1)
            word = words[at]
            swapped = word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :]
            words[at] = rng.choice((swapped, word[:cut] + word[cut + 1 :]))
    if rng.random() < 0.15 and len(words) > 5:
        del words[rng.randrange(len(words))]
    return " ".join(words)


@torch.inference_mode()
def answers(model: Network, prompts: Sequence[list[int]], most: int, rows: int = 1024) -> list[list[int]]:
    """Greedy tokens without their end; shorter prompts of a batch have hidden tokens before them."""
    made: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), rows):
        some = order[start : start + rows]
        length = len(prompts[some[-1]])
        missing = [length - len(prompts[i]) for i in some]
        ids = [[0] * count + prompts[i] for count, i in zip(missing, some, strict=True)]
        given = torch.tensor(ids, device=model.cos.device), torch.tensor(missing, device=model.cos.device)
        for i, row in zip(some, _continued(model, *given, most).tolist(), strict=True):
            made[i] = row[: row.index(_END)] if _END in row else row
    return made


def _continued(model: Network, ids: Tensor, missing: Tensor, most: int) -> Tensor:
    """[rows, up to most] after ids [rows, T], of which the first `missing` [rows] are hidden."""
    rows, length = ids.shape
    cache, made = model.new_cache(rows, length + most), []
    places = torch.arange(length + most, device=ids.device)
    given = places[None, :] >= missing[:, None]
    own = places[:length]
    # What is hidden sees itself: a softmax over nothing would be no number.
    seen = (own <= own[:, None]) & given[:, None, :length] | (own == own[:, None])
    token = model(ids, cache, 0, seen[:, None])[:, -1].argmax(-1)
    done = torch.zeros(rows, dtype=torch.bool, device=ids.device)
    for step in range(most):
        made.append(token)
        done |= token == _END
        if step % 16 == 15 and bool(done.all()):
            break
        at = length + step
        seen = (given & (places <= at))[:, None, None]
        token = model(token[:, None], cache, at, seen)[:, -1].argmax(-1)
    return torch.stack(made, 1)


def padded(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids [rows, T], targets [rows, T], -100 where nothing is to be learnt)."""
    length = max(len(prompt) + len(answer) for prompt, answer in examples) - 1
    ids = torch.zeros(len(examples), length, dtype=torch.int64)
    targets = torch.full((len(examples), length), -100)
    for row, (prompt, answer) in enumerate(examples):
        whole = torch.tensor(prompt + answer)
        ids[row, : len(whole) - 1] = whole[:-1]
        targets[row, len(prompt) - 1 : len(whole) - 1] = whole[len(prompt) :]
    return ids.to(device), targets.to(device)


def read_wordings(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """(topic, wording) of every line."""
    lines = [line.split("\t", 1) for path in paths for line in path.read_text("utf-8").splitlines()]
    return [(topic, wording.strip()) for topic, wording in lines if topic in TOPICS or topic == NEAR]


class Lessons:
    """All that is learnt from, drawn anew for every step."""

    def __init__(self, chats: Chats, wordings: Sequence[tuple[str, str]], teacher: Network,
                 replay: Sequence[str], seed: int = 0) -> None:  # fmt: skip
        """Ask the teacher for its answers, to all that was said until then."""
        self.chats, self.rng, self.wordings = chats, random.Random(seed), list(wordings)
        said = [turns.split("\t") for turns in replay]
        said += [[wording] for topic, wording in wordings if topic == NEAR]
        talks: list[list[str]] = [[] for _ in said]
        for number in range(max(map(len, said))):
            going = [i for i, turns in enumerate(said) if len(turns) > number]
            for i in going:
                talks[i].append(said[i][number])
            given = answers(teacher, [chats.prompt(talks[i]) for i in going], MOST)
            for i, ids in zip(going, given, strict=True):
                talks[i].append(chats.tokenizer.decode(ids))
        self.talks = talks[: len(replay)]
        self.near = {talk[0]: talk[1] for talk in talks[len(replay) :]}

    def wording(self, topic: str, wording: str) -> Example:
        """One with its answer, now and then behind something else."""
        if topic == NEAR:
            answer = self.near[wording]
            if OF_PROGRAM.search(answer):
                answer = self.rng.choice(DECLINES)
        else:
            answer = self.rng.choice(TOPICS[topic].answers)
        turns = [varied(wording, self.rng)]
        if self.rng.random() < 0.2:
            turns = [*self.rng.choice(self.talks)[:2], *turns]
        return self.chats.example(turns, answer)

    def replayed(self, count: int) -> list[Example]:
        """Messages with the teacher's answers."""
        return [self.chats.example(talk[:-1], talk[-1]) for talk in self.rng.choices(self.talks, k=count)]


def teach(teacher: Network, lessons: Lessons, rounds: float, rate: float, rows: int = 256) -> Network:
    """A new model that has met every wording `rounds` times."""
    model, device = copy.deepcopy(teacher).requires_grad_(True), teacher.cos.device
    steps = math.ceil(rounds * len(lessons.wordings) / rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    pool: list[tuple[str, str]] = []
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        if len(pool) < rows:
            pool += lessons.rng.sample(lessons.wordings, len(lessons.wordings))
        some, pool = pool[:rows], pool[rows:]
        ids, targets = padded([lessons.wording(*one) for one in some], device)
        loss = F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten(), ignore_index=-100)
        loss.backward()
        ids, targets = padded(lessons.replayed(rows), device)
        held = divergence(model, teacher, ids, targets)
        held.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            losses = f"loss {loss.item():.3f}, held {held.item():.4f}, gradient {norm:.2f}"
            print(f"step {step} of {steps}: {losses}, {time.perf_counter() - began:.0f} s", flush=True)
    return model.requires_grad_(False)


def divergence(model: Network, teacher: Network, ids: Tensor, targets: Tensor) -> Tensor:
    """KL(teacher || model) of a token of the answers."""
    chosen = targets != -100
    with torch.no_grad():
        wanted = teacher(ids)[chosen].float().log_softmax(-1)
    got = model(ids)[chosen].float().log_softmax(-1)
    return F.kl_div(got, wanted, reduction="batchmean", log_target=True)


def judged(
    model: Network, chats: Chats, wordings: Sequence[tuple[str, str]], name: str, show: int = 0
) -> float:
    """Print the share of right answers; return that of the core topics."""
    given = answers(model, [chats.prompt([wording]) for _, wording in wordings], 64)
    right: dict[str, list[bool]] = {"core": [], "others": [], "near": []}
    for (topic, wording), ids in zip(wordings, given, strict=True):
        kind = "core" if topic in CORE else topic if topic == NEAR else "others"
        right[kind].append(is_right(topic, chats.tokenizer.decode(ids)))
        if show and not right[kind][-1]:
            show -= 1
            print(f"  {topic}: {wording!r} -> {chats.tokenizer.decode(ids)!r}")
    shares = {kind: sum(own) / max(1, len(own)) for kind, own in right.items()}
    print(
        f"{name}: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in shares.items()), flush=True
    )
    return shares["core"]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    folder = Path(__file__).parent / "wordings"
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--wordings", type=Path, default=folder)
    parser.add_argument("--replay", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=["8:3e-4"], help="rounds:rate; the first list decides")
    parser.add_argument("--most", type=int, default=0, help="of each material, for a trial")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chats, teacher = Chats(args.model), Network(args.model).to(device).requires_grad_(False)
    most = args.most or None
    wordings = read_wordings(sorted(args.wordings.glob("w*.tsv")))
    random.Random(0).shuffle(wordings)
    wordings = wordings[:most]
    replay = list(dict.fromkeys(args.replay.read_text("utf-8").splitlines()))[:most]
    held_out = {path.stem: read_wordings([path])[:most] for path in args.held_out}
    for name, lines in held_out.items():
        judged(teacher, chats, lines, f"present model, {name}")
    began = time.perf_counter()
    lessons = Lessons(chats, wordings, teacher, replay)
    print(f"{len(wordings)} wordings, {len(replay)} others, answered in {time.perf_counter() - began:.0f} s")
    best = -1.0
    for run in args.runs:
        rounds, rate = map(float, run.split(":"))
        made = teach(teacher, lessons, rounds, rate)
        shares = [judged(made, chats, lines, f"{run}, {name}", 12) for name, lines in held_out.items()]
        judged(made, chats, wordings[:2000], f"{run}, of those learnt")
        if not shares or shares[0] > best:
            best = shares[0] if shares else best
            _write(made, args.out, run)


def _write(model: Network, out: Path, run: str) -> None:
    """In pieces that travel: int8 in blocks of 32 with their scales, as Q8_0 has them."""
    kept, sizes = [dict[str, object]() for _ in range(4)], [0] * 4
    for name, value in model.tensors().items():
        at = sizes.index(min(sizes))
        sizes[at] += value.numel()
        if value.dim() == 1:
            kept[at][name] = value.cpu()
            continue
        blocks = value.detach().float().view(-1, 32)
        scales = blocks.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        kept[at][name] = ((blocks / scales).round().to(torch.int8).cpu(), scales.half().cpu(), value.shape)
    for number, piece in enumerate(kept):
        torch.save({"run": run, "tensors": piece}, out / f"weights{number}.pt")


if __name__ == "__main__":
    main()
