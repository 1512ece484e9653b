"""Distances in Atlas's graph of facts."""

from dataclasses import replace

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Hop
from stepladder.data.atlas import Atlas, generate_atlas
from stepladder.data.atlas.entity_graph import answer_articles, distances_to_answer, is_from_atlas
from tests.support.samples import QUESTION


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return generate_atlas("small", seed=3)


def test_the_article_that_states_the_answer_is_at_its_end_and_earlier_ones_are_farther(atlas: Atlas) -> None:
    chains = [each for each in atlas.questions["train"] if each.kind == "bridge" and len(each.hops) == 2][:100]
    total = [0, 0]
    for question in chains:
        distances = distances_to_answer(question)
        first, last = (distances[hop.passages[0]][0] for hop in question.hops)
        assert last == 0
        assert first is not None
        assert first >= 1, "no article answers two hops"
        total[0] += first
        total[1] += sum(each[0] or 0 for each in distances.values()) / len(distances)
    assert total[0] < 0.6 * total[1], "the way to the answer is nearer to it than other articles are"


def test_distances_are_numbers_of_facts(atlas: Atlas) -> None:
    """By another search: the articles at a distance are the neighbors of those one nearer that are not nearer."""
    question = next(each for each in atlas.questions["dev"] if each.kind == "single")
    near = {int(each.rsplit("-", 1)[1]) for each in question.hops[-1].passages}
    distances = distances_to_answer(question)
    facts, known = atlas.world.facts, set[int]()
    for distance in range(3):
        at = {int(each.rsplit("-", 1)[1]) for each, found in distances.items() if found == (distance,)}
        assert at == near
        known |= near
        outward = {target for each in near for target in facts[each].values() if isinstance(target, int)}
        inward = {
            index for index, own in enumerate(facts) if near & {each for each in own.values() if type(each) is int}
        }
        near = (outward | inward) - known


def test_a_comparison_has_two_parts(atlas: Atlas) -> None:
    question = next(each for each in atlas.questions["train"] if each.kind == "comparison" and len(each.hops) == 3)
    one, other, conclusion = question.hops
    assert not conclusion.passages
    assert answer_articles(question) == (one.passages, other.passages)
    distances = distances_to_answer(question)
    assert distances[one.passages[0]][0] == distances[other.passages[0]][1] == 0
    assert {len(each) for each in distances.values()} == {2}


def test_names_do_not_matter(atlas: Atlas) -> None:
    renamed = generate_atlas("small", seed=3, avoid=atlas.name_words).world
    pairs = [
        [{name: target for name, target in own.items() if isinstance(target, int)} for own in world.facts]
        for world in (atlas.world, renamed)
    ]
    assert pairs[0] == pairs[1]


def test_other_questions_have_no_graph() -> None:
    assert not is_from_atlas(QUESTION)
    assert not is_from_atlas(replace(QUESTION, id="atlas-2000-0-train-00001", hops=(Hop("Who?", "Ada"),)))
    with pytest.raises(StepladderError, match="'q1' is not one of Atlas's"):
        distances_to_answer(QUESTION)
