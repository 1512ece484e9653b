"""Values of a small tree, worked out by hand."""

import pytest

from stepladder.core.trace import Action, ActionKind, Author, Node, Question, Rollout, Segment, Step, StopReason, Tree
from stepladder.explore.values import depths_of, monte_carlo, spre

STEP = Step((), Segment(Author.POLICY, "s"), Action(ActionKind.QUERY, "q"))
ENDED = StopReason.ANSWERED


def tree() -> Tree:
    """root -> a -> right answer (visited 3 times) | wrong answer (once);  root -> b (one roll-out, F1 0.5 in 2 steps);
    root -> c, an end nobody visited;  root -> d, of which nothing is known."""
    return Tree(
        Question("q", "?", ("x",)),
        "agent",
        (
            Node(0, None, None, visits=6),
            Node(1, 0, STEP, visits=5, rollouts=(Rollout(0.0, 1, ENDED),)),
            Node(2, 1, STEP, visits=3, stop=ENDED, reward=1.0),
            Node(3, 1, STEP, visits=1, stop=ENDED, reward=0.0),
            Node(4, 0, STEP, visits=1, rollouts=(Rollout(0.5, 2, ENDED),)),
            Node(5, 0, STEP, stop=ENDED, reward=0.25),
            Node(6, 0, STEP),
        ),
    )


def test_depths() -> None:
    assert depths_of(tree()) == [0, 1, 2, 2, 1, 1, 1]


def test_monte_carlo_is_the_mean_of_all_simulations_below() -> None:
    a = (0.0 + 3 * 1.0 + 1 * 0.0) / 5
    assert monte_carlo(tree()) == pytest.approx([(5 * a + 0.5) / 6, a, 1.0, 0.0, 0.5, 0.25, None])


def test_spre_decays_with_the_length_of_the_way_and_weighs_by_visits() -> None:
    a = (3 * 0.81 + 1 * 0.0) / 4
    b = 0.5 * 0.9**3
    assert spre(tree(), 0.9) == pytest.approx([(5 * a + 1 * b) / 6, a, 0.81, 0.0, b, 0.25 * 0.9, None])


def test_spre_prefers_the_shorter_of_two_right_ways() -> None:
    nodes = (
        Node(0, None, None, visits=2),
        Node(1, 0, STEP, visits=1, rollouts=(Rollout(1.0, 1, ENDED),)),
        Node(2, 0, STEP, visits=1, rollouts=(Rollout(1.0, 5, ENDED),)),
    )
    values = spre(Tree(Question("q", "?", ("x",)), "agent", nodes))
    assert values[1] is not None
    assert values[2] is not None
    assert values[1] > values[2]
    assert monte_carlo(Tree(Question("q", "?", ("x",)), "agent", nodes))[1:] == [1.0, 1.0]
