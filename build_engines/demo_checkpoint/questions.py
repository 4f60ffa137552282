"""Questions and answers about one or two scenes, in several phrasings; each answer holds one asked fact."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from build_engines.demo_checkpoint.pictures import Scene, Thing
from build_engines.demo_checkpoint.vocabulary import COLOURS, COUNTS, KINDS, PLACES, PLURAL_OR_MASS, SHAPES

ORDINALS = ("first", "second")
_AT = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"} | {
    "middle": "in the middle"
}
_CHOICES = {"colour": tuple(COLOURS), "kind": KINDS, "place": PLACES, "count": COUNTS, "which": ORDINALS}


@dataclass(frozen=True)
class Question:
    """One question with its answer; `fact` is the word that must be right, `group` what kind of word it is."""

    skill: str
    text: str
    answer: str
    fact: str
    group: str

    def is_right(self, reply: str) -> bool:
        """Whether a reply names the asked fact and no other of its kind."""
        words = re.findall(r"\w+", reply.lower())
        if self.group == "text":
            return bool(words) and words[-1] == self.fact
        return {word for word in words if word in _CHOICES[self.group]} == {self.fact}


def name_of(thing: Thing, article: str = "a") -> str:
    """A thing as an answer names it: "a red circle", "an apple", "glasses"."""
    words = f"{thing.colour} {thing.kind}" if thing.colour else thing.kind
    if article == "the":
        return f"the {words}"
    if thing.kind in PLURAL_OR_MASS:
        return words
    return f"an {words}" if words[0] in "aeiou" and not words.startswith("uni") else f"a {words}"


def plural(kind: str) -> str:
    """The plural used in "How many ... are there?"."""
    if kind in PLURAL_OR_MASS or kind == "fish":
        return kind
    special = {"mouse": "mice", "wolf": "wolves", "leaf": "leaves", "knife": "knives", "foot": "feet", "tooth": "teeth"}
    if kind in special:
        return special[kind]
    if kind.endswith("y") and kind[-2] not in "aeiou":
        return kind[:-1] + "ies"
    return kind + ("es" if kind.endswith(("s", "x", "ch", "sh")) else "s")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _one(options: list[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def ask(scenes: list[Scene], rng: np.random.Generator) -> list[Question]:
    """Every question that one phrasing each can ask about one or two pictures, in random order."""
    questions = []
    for index, scene in enumerate(scenes):
        for question in _about(scene, rng):
            if len(scenes) == 1:
                questions.append(question)
            else:
                text = _placed(question.text, ORDINALS[index], rng)
                questions.append(Question(question.skill, text, question.answer, question.fact, question.group))
    if len(scenes) == 2:
        questions += _which(scenes, rng)
    order = rng.permutation(len(questions))
    return [questions[i] for i in order]


def _placed(text: str, ordinal: str, rng: np.random.Generator) -> str:
    if rng.random() < 0.5:
        return f"In the {ordinal} picture, {text[0].lower()}{text[1:]}"
    return f"{text[:-1]} in the {ordinal} picture{text[-1]}"


def _about(scene: Scene, rng: np.random.Generator) -> list[Question]:
    if scene.lines:
        return [_about_text(scene, rng)]
    same = len(scene.things) > 1 and len({thing.kind for thing in scene.things}) == 1
    questions = [_about_count(scene, same, rng)]
    if same:
        thing = scene.things[0]
        if thing.colour:
            text = _one(["What colour are the {0}?", "What color are the {0}?", "Which colour do the {0} have?"], rng)
            answer = f"They are {thing.colour}."
            questions.append(Question("colour", text.format(plural(thing.kind)), answer, thing.colour, "colour"))
        return questions
    for thing in scene.things:
        questions += _about_thing(thing, len(scene.things) == 1, rng)
    return questions


def _about_text(scene: Scene, rng: np.random.Generator) -> Question:
    text = scene.lines[0].text.lower()
    if text.isdigit():
        options = ["What is the number?", "Which number do you see?", "Read the number.", "What number is shown?"]
        return Question("number", _one([*options, "What does it say?"], rng), f"The number is {text}.", text, "text")
    options = ["What does it say?", "What is the word?", "Read the word.", "Which word is printed?", "What is written?"]
    return Question("word", _one(options, rng), f"It says {text}.", text, "text")


def _about_count(scene: Scene, same: bool, rng: np.random.Generator) -> Question:
    number = COUNTS[len(scene.things) - 1]
    options = ["How many things are there?", "How many things do you see?", "Count the things."]
    if same:
        kinds = plural(scene.things[0].kind)
        options = [*options, f"How many {kinds} are there?", f"How many {kinds} do you see?", f"Count the {kinds}."]
    answer = "There is one." if number == "one" else f"There are {number}."
    return Question("count", _one(options, rng), answer, number, "count")


def _about_thing(thing: Thing, alone: bool, rng: np.random.Generator) -> list[Question]:
    kind, colour, place = thing.kind, thing.colour, thing.place
    if place is None:
        raise ValueError("questions: a thing that is asked about needs a place")
    skill = "shape" if kind in SHAPES else "object"
    text = _one(["Where is the {0}?", "Where do you see the {0}?", "Where can I find the {0}?"], rng).format(kind)
    questions = [Question("position", text, f"The {kind} is {_AT[place]}.", place, "place")]
    text = _one(["What is {0}?", "What do you see {0}?", "What can be seen {0}?"], rng).format(_AT[place])
    questions.append(Question(skill, text, f"It is {name_of(thing)}.", kind, "kind"))
    if alone:
        options = ["What is this?", "What is shown?", "What do you see?", "What is it?", "What can you see?"]
        questions.append(Question(skill, _one(options, rng), f"It is {name_of(thing)}.", kind, "kind"))
    if colour:
        options = ["What colour is the {0}?", "What color is the {0}?", "Which colour does the {0} have?"]
        text = _one(options, rng).format(kind)
        questions.append(Question("colour", text, f"The {kind} is {colour}.", colour, "colour"))
        text = _one(["Which shape is {0}?", "What shape is {0}?", "What is the {0} shape?"], rng).format(colour)
        questions.append(Question("shape", text, f"It is {name_of(thing)}.", kind, "kind"))
    return questions


def _names(scene: Scene) -> set[str]:
    if scene.lines:
        text = scene.lines[0].text.lower()
        return {f"the {'number' if text.isdigit() else 'word'} {text}"}
    return {f"the {thing.kind}" for thing in scene.things} | {name_of(thing, "the") for thing in scene.things}


def _which(scenes: list[Scene], rng: np.random.Generator) -> list[Question]:
    questions = []
    both = [_names(scene) for scene in scenes]
    for index, ordinal in enumerate(ORDINALS):
        own = sorted(both[index] - both[1 - index])
        # Plural pictures are asked about by number below.
        if own and len({thing.kind for thing in scenes[index].things}) in (0, len(scenes[index].things)):
            name = _one(own, rng)
            options = [
                f"Which picture shows {name}, the first or the second?",
                f"Which picture shows {name}?",
                f"Is {name} in the first or the second picture?",
                f"In which picture do you see {name}?",
            ]
            # The ordinal comes first: the prompt's last token says it, where a LoRA adapter still acts.
            answer = f"{_capital(ordinal)} picture."
            questions.append(Question("which picture", _one(options, rng), answer, ordinal, "which"))
    return questions
