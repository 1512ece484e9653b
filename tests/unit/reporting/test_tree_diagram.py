"""Looking at a tree: the picture, the boxes it is made of, and the command that shows both."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from stepladder.cli.reports import find_tree, most_instructive_tree, print_tree, tree_command
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import loads
from stepladder.core.trace import Action, ActionKind, Author, Node, Question, Rollout, Segment, Step, StopReason, Tree
from stepladder.explore.tree_store import TreeFile
from stepladder.oracle.step_judge import Fault, judge, judge_tree
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.reporting.charts.svg_text import fit_text, text_width
from stepladder.reporting.charts.tree_diagram import tree_svg
from stepladder.reporting.charts.tree_layout import WIDTH, Box, layout, most_visited_path
from tests.support.samples import PASSAGES, QUESTION

SVG = "{http://www.w3.org/2000/svg}"
QUERY, FOUND, ANSWER, BROKEN = ActionKind.QUERY, ActionKind.SUB_ANSWER, ActionKind.ANSWER, ActionKind.MALFORMED


def step(kind: ActionKind, content: str, thought: str = "") -> Step:
    found = PASSAGES[:2] if kind is QUERY else ()
    return Step((), Segment(Author.POLICY, content), Action(kind, content, thought), found)


def small_tree(question: Question = QUESTION) -> Tree:
    """Two first searches; the better one leads to a right answer, a wrong one, and one that nobody visited."""
    played = (Rollout(1.0, 2, StopReason.ANSWERED, "Velm"),)
    return Tree(
        question,
        "prorag",
        (
            Node(0, None, None, visits=8, value=0.6),
            Node(
                1, 0, step(QUERY, "Where is the river Oss?"), 1, 0.0, rollouts=(Rollout(0.0, 1, StopReason.MALFORMED),)
            ),
            Node(2, 0, step(QUERY, "Who designed Orm Tower?", "First the architect."), 6, 0.8, rollouts=played),
            Node(3, 2, step(FOUND, "Ada Tarn"), 5, 0.8, rollouts=played),
            Node(4, 3, step(ANSWER, "Velm"), 3, 1.0, stop=StopReason.ANSWERED, reward=1.0),
            Node(5, 3, step(ANSWER, "Oss"), 1, 0.0, stop=StopReason.ANSWERED, reward=0.0),
            Node(6, 3, step(BROKEN, "<b>&\x00</answer>"), stop=StopReason.MALFORMED, reward=0.0),
        ),
    )


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def overlap(one: Box, other: Box) -> bool:
    beside = one.x + one.width <= other.x or other.x + other.width <= one.x
    return not beside and not (one.y + one.height <= other.y or other.y + other.height <= one.y)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees of any shape, with any text in them."""
    nodes = [Node(0, None, None, visits=draw(st.integers(0, 40)))]
    for number in range(1, draw(st.integers(1, 40))):
        what = step(draw(st.sampled_from(ActionKind)), draw(st.text(max_size=120)), draw(st.text(max_size=20)))
        visits, reward = draw(st.integers(0, 40)), draw(st.none() | st.floats(0, 1))
        parent = draw(st.integers(0, number - 1))
        nodes.append(Node(number, parent, what, visits, draw(st.floats(-1, 2)), reward=reward))
    return Tree(Question("q", draw(st.text(max_size=300)), ("x",)), "prorag", tuple(nodes))


@settings(max_examples=40)
@given(trees())
def test_no_two_boxes_overlap_and_every_picture_is_well_formed(tree: Tree) -> None:
    boxes = layout(tree, top=100)
    assert [box.node.id for box in boxes] == [node.id for node in tree.nodes]
    assert not any(overlap(one, other) for one, other in combinations(boxes, 2))
    picture = ElementTree.fromstring(tree_svg(tree))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    assert all(box.x >= 0 and box.x + box.width <= width and box.y + box.height <= height for box in boxes)
    assert len([each for each in picture.iter(f"{SVG}path") if "C" in each.attrib["d"]]) == len(tree.nodes) - 1


def test_a_child_is_right_of_its_parent_and_the_most_visited_at_its_height() -> None:
    boxes = layout(small_tree())
    for box in boxes[1:]:
        assert box.node.parent is not None
        parent = boxes[box.node.parent]
        assert box.x > parent.x + parent.width
    assert [boxes[number].y for number in most_visited_path(small_tree())] == [0.0] * 4
    assert boxes[1].y > boxes[2].y, "the less visited search stands below"


def test_the_best_way_is_where_most_simulations_went_and_ends_where_none_did() -> None:
    assert most_visited_path(small_tree()) == [0, 2, 3, 4]
    untouched = Tree(QUESTION, "prorag", small_tree().nodes[:1])
    assert most_visited_path(untouched) == [0]


def test_as_many_columns_as_a_search_usually_has_fit_the_width() -> None:
    nodes = [Node(0, None, None, visits=1)]
    nodes += [Node(n, n - 1, step(QUERY, "Which university was attended by #1? " * 3), 1, 0.5) for n in range(1, 8)]
    deepest = layout(Tree(QUESTION, "prorag", tuple(nodes)))[-1]
    assert deepest.x + deepest.width <= WIDTH


def test_the_picture_tells_what_each_node_is_worth() -> None:
    shown = texts(tree_svg(small_tree()))
    assert shown[0] == QUESTION.text
    assert {"Who designed Orm Tower?", "Ada Tarn", "wrong"} <= set(shown)
    assert "N 6 · Q 0.80 · S 0.55" in shown, "three of four answers were right, after three steps: 3/4 * 0.9**3"
    assert "N 3 · F1 1.00 · S 0.73" in shown
    assert "F1 0.00" in shown, "an end that nobody visited has its F1, too"


def test_edges_are_as_wide_as_they_were_visited() -> None:
    curves = [each.attrib for each in ElementTree.fromstring(tree_svg(small_tree())).iter(f"{SVG}path")]
    widths = sorted(float(each["stroke-width"]) for each in curves if "C" in each["d"])
    assert widths == [1.3, 2.0, 2.0, 6.0, 10.0, 12.0]  # unvisited, then 1, 1, 3, 5 and 6 of 8 simulations


def test_text_that_is_cut_is_whole_in_the_tooltip() -> None:
    long = "Which city is the twin of the city where the architect of " + "the tower of " * 20 + "Orm was born?"
    tree = Tree(QUESTION, "prorag", (Node(0, None, None, 1), Node(1, 0, step(QUERY, long, "I wonder."), 1)))
    picture = ElementTree.fromstring(tree_svg(tree))
    tooltips = [each.text or "" for each in picture.iter(f"{SVG}title")]
    assert long in tooltips[1]
    assert "I wonder." in tooltips[1]
    assert long not in texts(tree_svg(tree))
    assert any(text.endswith("…") for text in texts(tree_svg(tree)))


@given(st.text(max_size=200), st.integers(60, 300), st.integers(1, 4))
def test_fitted_text_fits(text: str, width: int, lines: int) -> None:
    made = fit_text(text, width, lines, 12.5)
    assert 1 <= len(made) <= lines
    assert all(text_width(line, 12.5) <= width for line in made)


def test_verdicts_are_those_of_the_gold_judge() -> None:
    tree = small_tree()
    assert judge_tree(tree) == [None, *(judge(tree.trajectory(node))[-1] for node in tree.nodes[1:])]
    found = [verdict.fault for verdict in judge_tree(tree)[1:] if verdict is not None]
    assert found == [Fault.WRONG, None, None, None, Fault.WRONG, Fault.MALFORMED]


# --- the command ------------------------------------------------------------------------------------------------


def other_tree() -> Tree:
    """A tree without an answer."""
    return Tree(Question("q2", "Who?", ("Ada",)), "prorag", (Node(0, None, None), Node(1, 0, step(QUERY, "Who?"))))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose exploration is done: two trees, of which the second is the telling one."""
    folder = RunFolder(tmp_path / "run")
    recipe = Recipe.read({"name": "trees", "stages": {"explore": {"kind": "explore"}}}, "recipe")
    stage = folder.path / "explore"
    stage.mkdir(parents=True)
    folder.add_session({})
    folder.write_recipe(recipe)
    with TreeFile(stage / "trees.jsonl.gz") as trees:
        trees.add(other_tree())
        trees.add(small_tree())
    folder.finish(StageRecord("explore", "explore", "", {}, {}, outputs={"trees": "trees.jsonl.gz"}))
    return folder.path


def test_the_terminal_shows_a_node_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_command(run, "q1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [QUESTION.text, "q1; answer: Velm | Velm City"]
    assert [" ".join(line.split()) for line in lines[3:11]] == [
        "step N Q SPRE F1 gold judge",
        "* question 8 0.60 0.47",
        "├ * search Who designed Orm Tower? 6 0.80 0.55 good",
        "│ └ * found Ada Tarn 5 0.80 0.55 good",
        "│ ├ * answer Velm 3 1.00 0.73 1.00 good",
        "│ ├ answer Oss 1 0.00 0.00 0.00 wrong",
        "│ └ malformed <b>&·</answer> 0 0.00 0.00 malformed",  # what a terminal would obey is made visible
        "└ search Where is the river Oss? 1 0.00 0.00 wrong",
    ]


def test_without_an_id_the_tree_with_right_and_wrong_answers_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree_command(run)
    assert QUESTION.text in capsys.readouterr().out
    assert most_instructive_tree(run / "explore" / "trees.jsonl.gz") == small_tree()


def test_json_is_the_record(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_command(run, "q2", as_json=True)
    assert loads(capsys.readouterr().out.strip(), Tree) == other_tree()


def test_a_picture_is_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_command(run, "q1", svg=tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").read_text(encoding="utf-8") == tree_svg(small_tree())
    assert "the tree of q1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "hint"), [("q11", "Did you mean 'q1'?"), ("2", "Did you mean 'q2'?"), ("zz", "One of them is q2")]
)
def test_an_unknown_id_gets_the_nearest(run: Path, asked: str, hint: str) -> None:
    with pytest.raises(StepladderError, match=re.escape(hint)):
        find_tree(run / "explore" / "trees.jsonl.gz", asked)


def test_a_run_without_trees_says_how_to_make_them(run: Path) -> None:
    (run / "explore" / "stage.json").unlink()
    with pytest.raises(StepladderError, match="stepladder explore --run"):
        tree_command(run)


def test_a_question_without_gold_data_is_shown_without_verdicts() -> None:
    console = Console(width=100)
    with console.capture() as shown:
        print_tree(console, small_tree(Question("q3", "Where?", ())))
    assert "good" not in shown.get()
    assert "search Who designed Orm Tower?" in shown.get()
    assert tree_svg(small_tree(Question("q3", "Where?", ())))
