"""The demo checkpoint's pictures and questions: reproducible, labelled rightly, and split without overlap."""

from __future__ import annotations

import numpy as np
import pytest

from build_engines.demo_checkpoint.facts import FACTS, GROUPS, IGNORED, scene_facts
from build_engines.demo_checkpoint.pictures import GRID, Scene, Thing, draw, draw_labelled
from build_engines.demo_checkpoint.questions import Question, ask
from build_engines.demo_checkpoint.scenes import is_held_out, random_scene
from build_engines.demo_checkpoint.vocabulary import COLOURS, KINDS

SHAPE_SKILLS = ("shape", "two shapes", "count shapes")  # no emoji font is needed for these


def scene(skill: str, seed: int, held_out: bool = False) -> Scene:
    return random_scene(skill, np.random.default_rng(seed), held_out)


@pytest.mark.parametrize("skill", SHAPE_SKILLS)
def test_same_seed_gives_the_same_picture_and_another_seed_another(skill: str) -> None:
    pictures = [draw(scene(skill, seed), 160, np.random.default_rng(seed)).tobytes() for seed in (1, 1, 2)]
    assert pictures[0] == pictures[1] != pictures[2]


def test_patches_are_labelled_by_what_covers_them() -> None:
    drawn = Scene("shape", (Thing("square", "blue", 0.25, 0.5, 0.5, 0.0, "left"),))
    picture, labels = draw_labelled(drawn, 128, np.random.default_rng(0))
    assert picture.size == (128, 128)
    assert labels.kind.shape == labels.colour.shape == (GRID, GRID)
    inside = labels.kind[3:5, 1:3]
    assert (inside == 1 + KINDS.index("square")).all()
    assert (labels.colour[3:5, 1:3] == 1 + list(COLOURS).index("blue")).all()
    assert (labels.kind[:, 5:] == 0).all()


@pytest.mark.parametrize("skill", ["shape", "object", "two objects", "count objects", "word", "number"])
def test_held_out_scenes_never_come_in_training(skill: str) -> None:
    rng = np.random.default_rng(5)
    assert all(not is_held_out(random_scene(skill, rng)) for _ in range(100))
    assert all(is_held_out(random_scene(skill, rng, held_out=True)) for _ in range(20))


@pytest.mark.parametrize("skill", ["shape", "two shapes", "count objects", "word", "number", "object"])
def test_every_answer_is_right_by_its_own_rule_and_the_facts_hold_it(skill: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(30):
        drawn = random_scene(skill, rng)
        values = scene_facts(drawn)
        said = {GROUPS[group][value] for group, value in zip(FACTS, values, strict=True) if value > 0}
        for question in ask([drawn], rng):
            assert question.is_right(question.answer), question
            assert question.group == "text" or question.fact in said, question


def test_large_things_that_only_teach_are_in_no_place_that_is_asked_about() -> None:
    rng = np.random.default_rng(7)
    sizes = []
    for _ in range(100):
        drawn = random_scene("object off places", rng)
        (thing,) = drawn.things
        sizes.append(thing.size)
        assert min(abs(thing.x - 0.5), abs(thing.y - 0.5)) >= 0.08  # no place has both so far from the middle
        assert not is_held_out(drawn)
        values = dict(zip(FACTS[:5], scene_facts(drawn)[:5].tolist(), strict=True))
        assert values["place"] == IGNORED
        assert GROUPS["kind"][values["kind"]] == thing.kind
    assert max(sizes) > 0.85


def test_question_about_two_pictures_names_the_right_one() -> None:
    red = Scene("shape", (Thing("circle", "red", place="middle"),))
    blue = Scene("shape", (Thing("square", "blue", place="middle"),))
    which = [q for q in ask([red, blue], np.random.default_rng(3)) if q.skill == "which picture"]
    assert {q.fact for q in which} == {"first", "second"}
    for question in which:
        assert ("circle" in question.text or "red" in question.text) == (question.fact == "first")


@pytest.mark.parametrize(
    ("reply", "right"),
    [("The circle is red.", True), ("Red", True), ("It is blue.", False), ("It is red or blue.", False), ("", False)],
)
def test_reply_is_right_when_it_names_the_fact_and_no_other_of_its_kind(reply: str, right: bool) -> None:
    question = Question("colour", "What colour is the circle?", "The circle is red.", "red", "colour")
    assert question.is_right(reply) is right
