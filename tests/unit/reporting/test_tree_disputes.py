"""Which steps of a tree the search, the gold judge and the reward model disagree about."""

from stepladder.core.trace import Action, ActionKind, Author, Node, Segment, Step, Tree
from stepladder.oracle.step_verdicts import Fault, Verdict
from stepladder.reporting.report.tree_disputes import Disputes, disputes_of
from tests.support.samples import QUESTION

GOOD, WRONG, DERIVED = Verdict(None), Verdict(Fault.WRONG), Verdict(Fault.DERIVED)


def tree(*values: float) -> Tree:
    """The question with one step per value."""
    step = Step((), Segment(Author.POLICY, "Who?"), Action(ActionKind.QUERY, "Who?"))
    root = Node(0, None, None, visits=9, value=0.5)
    return Tree(QUESTION, "prorag", (root, *(Node(n, 0, step, 1, value) for n, value in enumerate(values, start=1))))


Verdicts = list[Verdict | None]


def disputed(values: tuple[float, ...], verdicts: Verdicts, prm: dict[int, float] | None = None) -> Disputes:
    return disputes_of(tree(*values), [None, *verdicts], prm or {})


def test_a_faulty_step_with_a_higher_value_than_a_good_sibling_is_disputed() -> None:
    assert disputed((0.8, 0.3), [WRONG, GOOD]).values == {1}
    assert disputed((0.3, 0.8), [WRONG, GOOD]).values == set()
    assert disputed((0.35, 0.3), [WRONG, GOOD]).values == set(), "nearly the same"
    assert disputed((0.8, 0.3), [DERIVED, GOOD]).values == set(), "an earlier step is to blame"
    assert disputed((0.8, 0.3), [None, None]).values == set(), "not judged"


def test_siblings_that_the_search_and_the_reward_model_order_differently_are_disputed() -> None:
    assert disputed((0.8, 0.3), [None, None], {1: 0.2, 2: 0.9}).values == {1}
    assert disputed((0.8, 0.3), [None, None], {1: 0.9, 2: 0.2}).values == set()


def test_the_reward_model_is_against_gold_where_it_is_on_the_other_side_of_one_half() -> None:
    assert disputed((0.5, 0.5, 0.5), [WRONG, GOOD, WRONG], {1: 0.9, 2: 0.1, 3: 0.55}).prm == {1, 2}
    assert disputed((0.5, 0.5), [DERIVED, None], {1: 0.9, 2: 0.1}).prm == set()
