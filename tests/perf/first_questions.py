"""First questions to the built-in model, or to another: all answers, and whether they end by themselves.

python -m tests.perf.first_questions                        # greedy, all lists
python -m tests.perf.first_questions --times 3              # sampled as the app does by default

What was answered and how a reader judged it stands in `results/first_questions.md`.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.chat.answers.repetition import RepetitionWatch
from app.models.builtin import builtin_model_path
from app.models.recommended import recommended_for
from engine import Engine, Finished, Message, Request, SamplingParams, TextDelta
from engine.engine import Model
from tests.perf.later_questions import FRESH, FRESH_NEAR, FRESH_OTHERS, LATER_NEAR, NATURAL, ODDER

MOST_TOKENS = 400
GREEDY = SamplingParams(temperature=0.0)
KNOWN: Sequence[Sequence[str]] = (
    ("Hi",),
    ("How are you?",),
    ("Who are you?",),
    ("What can you do?",),
    ("What is the capital of Italy?",),
    ("What is the capital of Mongolia?",),
    ("Write a haiku about rain",),
    ("Write a short poem about a lighthouse",),
    ("Explain photosynthesis",),
    ("Explain gravity to a child",),
    ("Give me three fruits",),
    ("List five animals",),
    ("How do I open a new tab here?",),
    ("How do I stop an answer?",),
    ("How do I use another model?",),
    ("2+2",),
    ("What is 17 + 25?",),
    ("7 times 8",),
    ("Write a python function that reverses a string",),
    ("Write a python function that returns the largest of three numbers",),
    ("Why is the sky blue?",),
    ("How many planets are there?",),
    ("Who wrote Romeo and Juliet?",),
    ("Who was Albert Einstein?",),
    ("What is a computer?",),
    ("Tell me a joke",),
    ("Tell me a short story about a dragon",),
    ("Give me tips for sleeping better",),
    ("How do I cook rice?",),
    ("What should I cook tonight?",),
    ("I'm sad",),
    ("Thank you",),
    ("What is the opposite of cold?",),
    ("Translate 'good morning' to French",),
    ("What's the weather today?",),
    ("Recommend a book",),
    ("Write a short email to my boss that I am sick",),
    ("What is the meaning of life?",),
    (
        "My name is Anna.",
        "What is my name?",
    ),
    (
        "What is the capital of France?",
        "And of Spain?",
    ),
)
"""Many of them, or variants, are among what the built-in model was trained on."""
OTHERS: Sequence[Sequence[str]] = (
    ("Hey, what's happening?",),
    ("Which company built you?",),
    ("Can you explain what this program does?",),
    ("What can I do with you?",),
    ("What's the capital of Portugal?",),
    ("Which city is the capital of Kenya?",),
    ("Write a haiku about a mountain lake",),
    ("Write a poem about my old bicycle",),
    ("Explain how vaccines work",),
    ("What is inflation, in simple words?",),
    ("Name four vegetables",),
    ("List three musical instruments",),
    ("How can I get rid of the current tab?",),
    ("Which keyboard shortcut shows me all my conversations?",),
    ("I want darker colors, how?",),
    ("How can I copy what you just said?",),
    ("What's 45 minus 18?",),
    ("Write a python function that checks whether a year is a leap year",),
    ("Tell me something funny",),
    ("Tell me a story about a lost kitten",),
    ("Give me some advice for a job interview",),
    ("What could I eat for breakfast?",),
    ("I feel stressed",),
    ("What is another word for happy?",),
    ("What's the date today?",),
    ("Which film should I watch?",),
    ("Write a message to my landlord that the heating is broken",),
    ("Is there life after death?",),
    ("How far away is the moon?",),
    ("What's the largest ocean?",),
    ("What should I give my mother for her birthday?",),
    ("What's the fastest animal?",),
    ("How long should I cook pasta?",),
    ("Explain what a black hole is to me",),
    ("What is 144 divided by 12?",),
    ("What do you get when you add 34 and 9?",),
    ("Python code that counts how often each word occurs in a text",),
    ("How many strings has a violin got?",),
    ("Who was Cleopatra, briefly?",),
    (
        "I have a cat called Milo.",
        "What is my cat's name?",
    ),
)
"""None of them but one stands in the training's data word for word."""
KEYS: Sequence[Sequence[str]] = (
    ("How do I open a new tab here?",),
    ("What do I press for a new tab?",),
    ("i need a second tab, how",),
    ("How do I stop an answer?",),
    ("Which key makes you stop writing?",),
    ("how to stop the answer now",),
    ("How do I use another model?",),
    ("How can I change to a different model?",),
    ("where can I choose the model",),
    ("How do I quit the program?",),
    ("what key do I press to leave",),
    ("how do I exit tui-chat",),
    ("Where can I find my old chats?",),
    ("how do I get back to a chat from yesterday",),
    ("How can I list all my chats?",),
    ("How do I find a word in this chat?",),
    ("search inside the chat",),
    ("Which key searches this chat?",),
    ("How do I copy the last answer?",),
    ("what is the key to copy your answer",),
    ("copying an answer, how?",),
    ("How do I close this tab?",),
    ("Which key closes the tab?",),
    ("how can i close the tab i am in",),
    ("Where are the settings?",),
    ("How do I open the settings?",),
    ("which key opens settings",),
    ("How do I get another answer to my question?",),
    ("How can I regenerate your answer?",),
    ("key to regenerate",),
    ("How do I open another tab?",),
    ("key to stop you while you are writing",),
    ("where do i pick a different model",),
    ("How can I see all my old chats?",),
    ("which key quits this program",),
    ("How do I search for a word in this conversation?",),
    ("I'd like to change a setting, how?",),
    ("copy your last answer to the clipboard: which key?",),
    ("how to start over with a new answer to the same question",),
    ("How do I put two chats next to each other to compare them?",),
    ("how can i download a model",),
    ("How do I give another program access to the model over HTTP?",),
)
"""Ten things that the program does, in three wordings each, and twelve more wordings."""
ODD: Sequence[Sequence[str]] = (
    ("might a further tab be conjured up?",),
    ("I fancy a parallel chat next to this one",),
    ("you ramble on, make it end",),
    ("cut the answer short: which key would do?",),
    ("I'm fed up with Pocket, let me have another brain",),
    ("how is the LLM exchanged?",),
    ("get me out of tui-chat",),
    ("what's the proper way to end this program?",),
    ("the talk we had last Tuesday, how do I see it again",),
    ("overview of every chat I've had?",),
    ("spot the word budget in this chat",),
    ("is there something like grep for this conversation",),
    ("your reply should land in my clipboard",),
    ("how would I take your last reply over into another document",),
    ("discard the tab I'm looking at",),
    ("how do I shut just this chat",),
    ("where does one adjust things in this app",),
    ("preferences window?",),
    ("could you answer that one anew",),
    ("I'd prefer a different response, what key",),
    ("with what sort of creature am I chatting",),
    ("say, what are you anyway?",),
    ("what's this software called and what is it for",),
    ("who stands behind you?",),
)
"""The same ten things and what the program and its model are, in far-off wordings. They were written after a
first training; who wrote the material of the present one knew them, and kept them out of it word for word."""
FOLLOWING: Sequence[Sequence[str]] = (
    (
        "How do I open a new tab?",
        "and what closes it?",
    ),
    (
        "How do I stop an answer?",
        "and if I want the rest after all?",
    ),
    (
        "Who are you?",
        "and who came up with you?",
    ),
    (
        "How do I copy an answer?",
        "and if I only need the code?",
    ),
    (
        "Where are my old chats?",
        "and how do I throw one away?",
    ),
    (
        "How do I choose another model?",
        "and where would I get one from?",
    ),
    (
        "How do I quit?",
        "will my chats still be there?",
    ),
    (
        "What is the capital of Japan?",
        "and how do I open a new tab here?",
    ),
)
"""A second question that leans on the first, known to the writer of the material like those above."""
NEAR: Sequence[Sequence[str]] = (
    ("How do I open a can of beans?",),
    ("how can I stop biting my nails",),
    ("close the window, it's cold",),
    ("what is a tab in a bar?",),
    ("copy machine is broken",),
    ("find me a nice name for a cat",),
    ("who was the first model?",),
    ("how do I quit drinking coffee",),
    ("what is the history of Japan?",),
    ("settings of a washing machine",),
    ("how to fork a bicycle",),
    ("my room is too dark",),
)
"""Words of the program's with another meaning, known to the writer of the material too: an answer that names
a key is wrong."""

LATE: Sequence[Sequence[str]] = (
    ("my wife wants to ask you something as well, can she have her own space beside mine?",),
    ("gimme a brand new convo, this one stays put",),
    ("Kindly furnish me with an unused page for a separate matter.",),
    ("whoa whoa whoa, zip it",),
    ("You're producing a novel; I need only the first sentence. How might I curtail it?",),
    ("hit the brakes on that reply, which button?",),
    ("I downloaded Mistral. How do I make it take your seat?",),
    ("who else could take over from you in here?",),
    ("upgrade ur brain how",),
    ("I have a train to catch. Where's the door?",),
    ("bring me back to my desktop prompt, I'm finished with tui-chat for good today",),
    ("adios, how do I bail from this program",),
    ("last Thursday you helped me with a cover letter. I need that thread again.",),
    ("can I rummage around in the stuff I asked weeks ago?",),
    ("where has our conversation about sourdough gone",),
    ("somewhere in this endless wall of text I mentioned a phone number, how can I jump there?",),
    ("ctrl-f equivalent for the messages on my screen?",),
    ("Whereabouts in this chat did the word 'rent' occur? I'd like to look it up.",),
    ("I must hand your last answer to my colleague by mail, so how do I lift it out of here?",),
    ("nab that reply for me, I wanna paste it in slack",),
    ("How does one transfer the response into a text editor?",),
    ("this conversation has served its purpose; how do I bin the tab?",),
    ("my row of tabs is cluttered, let me ditch this one",),
    ("x out of the current tab",),
    ("under which shortcut are the app's knobs and switches hidden?",),
    ("I'd like to tinker with the defaults of tui-chat",),
    ("Wo sind die... I mean, where did you put the options screen?",),
    ("that was rubbish, roll the dice again",),
    ("I would appreciate an alternative phrasing of your last answer.",),
    ("Please take another stab at my question.",),
    ("somebody left this running on the lab machine, what on earth am I looking at?",),
    ("Before I type anything private: who exactly am I corresponding with?",),
    ("give me the elevator pitch for tui-chat",),
)
"""The same ten things in three wordings each, and what the program and its model are in three. They were
written after an earlier training; who wrote the later material knew them, none stands in it."""
LATE_NEAR: Sequence[Sequence[str]] = (
    ("how do I close a Word document without losing it",),
    ("Which button on the remote stops the recording?",),
    ("where has Krita hidden its preferences?",),
    ("she ran off with another model",),
    ("how do I get out of a parking fine?",),
    ("pick up the tab for dinner, who should?",),
    ("can you copy someone's accent?",),
    ("how do pigeons find their way home?",),
    ("where do I find the history books in the library",),
    ("new tabs for my guitar songbook please",),
    ("Stop the presses! Where does that saying come from?",),
    ("how do you answer when someone asks for your salary?",),
    ("which model of lawn mower is quiet",),
    ("leave a voicemail, what do I say?",),
    ("how do I search all my notes in Evernote",),
)
"""Questions on other programs and things, written and known like those: an answer with a key of the program's
is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `ended`: by itself; `looped`: it repeated itself."""

    turns: Sequence[str]
    text: str
    ended: bool
    looped: bool


def talk(model: Model, turns: Sequence[str], sampling: SamplingParams) -> Answer:
    """Ask the turns one after the other; return the last answer."""
    messages: list[Message] = []
    answer = Answer(turns, "", False, False)
    for turn in turns:
        messages.append(Message("user", turn))
        answer = _answer(model, turns, messages, sampling)
        messages.append(Message("assistant", answer.text))
    return answer


def _answer(
    model: Model, turns: Sequence[str], messages: Sequence[Message], sampling: SamplingParams
) -> Answer:
    prompt = tuple(model.template.encode(messages))
    watch, text, looped, ended = RepetitionWatch(), "", False, False
    for event in model.submit(Request(prompt, sampling, max_tokens=MOST_TOKENS)).events():
        if isinstance(event, TextDelta):
            text += event.text
            looped = watch.take(event.token_ids, event.text) or looped
        elif isinstance(event, Finished):
            ended = event.reason == "stop"
    return Answer(turns, text, ended, looped)


def asked(
    model: Model, lists: Sequence[Sequence[Sequence[str]]], sampling: SamplingParams
) -> Iterator[Answer]:
    """The answers to all questions of some lists."""
    for questions in lists:
        for turns in questions:
            yield talk(model, turns, sampling)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--times", type=int, default=0, help="sampled as the app does, so often; 0: greedy")
    args = parser.parse_args()
    default = recommended_for(args.model).applied(SamplingParams(), ())
    lists = (KNOWN, OTHERS, KEYS, ODD, FOLLOWING, NEAR, LATE, LATE_NEAR, NATURAL, ODDER, LATER_NEAR)
    lists += (FRESH, FRESH_NEAR, FRESH_OTHERS)
    answers = []
    with Engine() as engine:
        model = engine.load(args.model)
        for _ in range(max(1, args.times)):
            for answer in asked(model, lists, default if args.times else GREEDY):
                print(f"- {' / '.join(answer.turns)}\n  {answer.text!r}", flush=True)
                answers.append(answer)
    ended, looped = sum(a.ended for a in answers), sum(a.looped for a in answers)
    print(f"{len(answers)} answers, {ended} ended by themselves, {looped} repeated themselves")


if __name__ == "__main__":
    main()
