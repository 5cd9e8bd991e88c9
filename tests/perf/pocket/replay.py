"""What a new built-in model is held to: messages of all kinds, from open conversations and from rules.

python -m tests.perf.pocket.replay --data FOLDER [FOLDER ...] --out replay.txt

Each folder has files `*.jsonl.xz` with {"messages": [{"role", "content"}, ...]} a line.
"""

import argparse
import itertools
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

_MOST_CHARACTERS = 220
_NAMES = ("Anna", "Tom", "Maria", "Ben", "Clara", "Jonas", "Sofia", "Paul", "Lena", "Oscar", "Mia", "Felix")
_PETS = ("cat", "dog", "hamster", "rabbit", "parrot", "horse", "goldfish", "turtle")
_JOBS = ("nurse", "teacher", "baker", "carpenter", "pilot", "farmer", "doctor", "student", "cook", "driver")
_TOWNS = ("Berlin", "Lisbon", "Nairobi", "Oslo", "Lima", "Toronto", "Kyoto", "Madrid", "Athens", "Dublin")
_COUNTRIES = (
    "Kenya", "Italy", "Mongolia", "Portugal", "Japan", "Peru", "Norway", "Egypt", "Chile", "Cuba",
    "Ghana", "Austria", "Uganda", "Ethiopia", "Canada", "India", "Iran", "Ireland", "Greece", "Hungary",
    "Poland", "Brazil", "Morocco", "Nigeria", "Finland", "Denmark", "Sweden", "Turkey", "Vietnam",
    "Thailand", "France", "Spain", "Germany", "Belgium", "the Netherlands", "Switzerland",
    "the Czech Republic", "Slovakia", "Romania", "Bulgaria", "Croatia", "Serbia", "Albania", "Ukraine",
    "Russia", "Iceland", "Scotland", "Wales", "Argentina", "Bolivia", "Colombia", "Ecuador", "Uruguay",
    "Paraguay", "Venezuela", "Mexico", "Guatemala", "Panama", "Jamaica", "Haiti", "Algeria", "Tunisia",
    "Libya", "Sudan", "Senegal", "Mali", "Tanzania", "Zambia", "Zimbabwe", "Angola", "Namibia",
    "South Africa", "Madagascar", "Iraq", "Syria", "Lebanon", "Israel", "Saudi Arabia", "Pakistan",
    "Afghanistan", "Bangladesh", "Nepal", "Sri Lanka", "China", "South Korea", "the Philippines",
    "Indonesia", "Malaysia", "Australia", "New Zealand", "the United States", "Cambodia",
)  # fmt: skip
_NOUNS = (
    "river",
    "volcano",
    "dictionary",
    "planet",
    "computer",
    "verb",
    "castle",
    "engine",
    "mirror",
    "glacier",
    "magnet",
    "desert",
    "triangle",
    "museum",
    "telescope",
    "democracy",
    "battery",
    "shadow",
    "fossil",
    "spider",
    "whale",
    "virus",
    "bridge",
    "satellite",
    "lemon",
    "novel",
    "orchestra",
    "compass",
    "earthquake",
    "bee",
    "microscope",
    "island",
    "pyramid",
    "thermometer",
    "molecule",
    "election",
    "robot",
    "password",
    "recipe",
)
_WORDS = (
    "hot",
    "big",
    "happy",
    "old",
    "dark",
    "early",
    "strong",
    "rich",
    "clean",
    "quiet",
    "empty",
    "heavy",
    "fast",
    "wet",
    "brave",
    "polite",
    "near",
    "open",
    "tall",
    "cheap",
    "child",
    "mouse",
    "foot",
    "leaf",
    "city",
    "knife",
)
_WHYS = (
    "do birds sing",
    "is the sea salty",
    "do leaves fall",
    "do cats purr",
    "is ice slippery",
    "do we dream",
    "do stars twinkle",
    "is sleep important",
    "do people laugh",
    "does bread rise",
    "do dogs bark",
    "do we yawn",
    "does iron rust",
    "do trees have rings",
    "is exercise healthy",
    "do bees make honey",
    "does the moon shine",
)
_KINDS = (
    "fruits",
    "vegetables",
    "animals",
    "colours",
    "cities in Europe",
    "rivers",
    "birds",
    "flowers",
    "sports",
    "musical instruments",
    "planets",
    "tools",
    "seasons",
    "languages",
    "things in a kitchen",
    "board games",
)
_MATTERS = (
    "the heating is broken", "I am sick today", "I will be late tomorrow", "I forgot your birthday",
    "the dishes are still dirty", "the street lamp is broken", "I cannot come to the party",
    "I need a day off", "the music is too loud", "I lost my key", "the package has not arrived",
    "I would like a refund", "the meeting is moved to Friday", "thank you for the lovely evening",
)  # fmt: skip
_READERS = ("my landlord", "my boss", "my neighbour", "my teacher", "my brother", "the town hall", "a friend")
_THINGS = (
    "rain", "my garden", "the sea", "an old clock", "winter", "a mountain lake", "my bicycle", "the moon",
    "a lighthouse", "penguins", "autumn leaves", "a train", "coffee", "my grandfather's watch", "a cat",
)  # fmt: skip


_HEROES = (
    "a dragon", "a brave mouse", "a lost kitten", "a lighthouse keeper", "a little robot", "two friends",
    "an old sailor", "a talking tree", "a fox", "a snowman", "a baker", "a princess", "a wizard", "the moon",
    "a knight", "a small bear", "a bird that could not fly", "a magic key", "my grandmother", "a driver",
)  # fmt: skip


def by_rule() -> Iterator[str]:
    """Things told and asked for, capitals, letters, poems."""
    for name in _NAMES:
        for told in ("My name is {}.", "I'm {}.", "Hi, I am {}", "call me {}"):
            for asked in ("What is my name?", "what's my name", "Do you remember my name?", "Who am I?"):
                yield f"{told.format(name)}\t{asked}"
    for pet, name in itertools.product(_PETS, _NAMES):
        yield f"I have a {pet} called {name}.\tWhat is my {pet}'s name?"
        yield f"My {pet} is called {name}.\tWhat is my {pet} called?"
    for job in _JOBS:
        yield f"I work as a {job}.\tWhat is my job?"
        yield f"I am a {job}\tWhat do I do for a living?"
    for town in _TOWNS:
        yield f"I live in {town}.\tWhere do I live?"
        yield f"I'm from {town}\tWhich city am I from?"
    for country in _COUNTRIES:
        yield f"What is the capital of {country}?"
        yield f"Which city is the capital of {country}?"
        yield f"What is the capital of France?\tAnd of {country}?"
        yield f"capital of {country.removeprefix('the ')}"
        yield f"Which continent is {country} on?"
    yield from _short_questions()
    for reader, matter, kind in itertools.product(_READERS, _MATTERS, ("a message", "an email", "a letter")):
        yield f"Write {kind} to {reader} that {matter}"
    for thing, kind in itertools.product(_THINGS, ("a haiku", "a poem", "a short poem", "a short story")):
        yield f"Write {kind} about {thing}"
    for hero, kind in itertools.product(_HEROES, ("a story", "a short story", "a bedtime story")):
        yield from (f"Tell me {kind} about {hero}", f"Write {kind} about {hero}", f"{kind} about {hero}")


def _short_questions() -> Iterator[str]:
    """Of school: sums, words, reasons, kinds of things."""
    for one, other in itertools.product(range(1, 16), range(1, 16)):
        yield f"What is {one} plus {other}?"
        if (one + other) % 3 == 0:
            yield f"{one} * {other}"
            yield f"What is {one + other} minus {other}?"
    for noun in _NOUNS:
        an = "an" if noun[0] in "aeiou" else "a"
        yield from (f"What is {an} {noun}?", f"Explain what {an} {noun} is.", f"Tell me about {an} {noun}.")
    for word in _WORDS:
        yield from (f"What is the opposite of {word}?", f"Use the word {word} in a sentence.")
        yield from (f"What is another word for {word}?", f"What is the plural of {word}?")
    for why in _WHYS:
        yield from (f"Why {why}?", f"Can you tell me why {why}?")
    for kind in _KINDS:
        yield from (f"Name three {kind}.", f"Give me five {kind}", f"List some {kind}.")


def users(path: Path) -> Iterator[str]:
    """The user's messages of every conversation."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            turns = [turn["content"] for turn in json.loads(line)["messages"] if turn["role"] == "user"]
            short = [" ".join(turn.split()) for turn in turns[:3]]
            if short and all(1 < len(turn) <= _MOST_CHARACTERS for turn in short):
                yield "\t".join(short)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=800, help="of a file")
    args = parser.parse_args()
    rng, lines = random.Random(0), list(by_rule())
    for folder in args.data:
        for path in sorted(folder.glob("*.jsonl.xz")):
            found = list(dict.fromkeys(users(path)))
            lines += rng.sample(found, min(len(found), args.most))
    lines = list(dict.fromkeys(lines))
    rng.shuffle(lines)
    args.out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(f"{len(lines)} chats")


if __name__ == "__main__":
    main()
