"""A search tree as an SVG diagram with light and dark styles.

In: a `Tree`. Out: one self-contained SVG, laid out by tree_layout.py. Box color: Q. Edge width: number of simulations.
Mark: the gold judge's verdict on the step. Content that does not fit is truncated; the tooltip of the box has the full
text and further facts about the node.
"""

from collections.abc import Iterator
from importlib.resources import files

from stepladder.core.trace import ActionKind, Node, Tree
from stepladder.explore.values import spre
from stepladder.oracle.step_judge import judge_tree
from stepladder.oracle.step_verdicts import Fault, Verdict
from stepladder.reporting.charts.svg_text import escape_xml, fit_text, text, text_width
from stepladder.reporting.charts.tree_layout import (
    GAP,
    LINE,
    MARGIN,
    PAD,
    Box,
    is_unvisited,
    layout,
    most_visited_path,
    ordered_children,
)

#: Display name of each kind of action.
KIND_LABELS = {
    ActionKind.QUERY: "search",
    ActionKind.EVIDENCE: "evidence",
    ActionKind.SUB_ANSWER: "found",
    ActionKind.ANSWER: "answer",
    ActionKind.MALFORMED: "malformed",
}

_STYLE = files("stepladder.reporting.charts") / "tree.css"
#: Minimum width, for the legend.
_MIN_WIDTH = 960
#: Font sizes, as in tree.css.
_HEADLINE, _SMALL, _DIMMED = 18.0, 10.5, 11.0
#: Width of an edge that all simulations visited; minimum width.
_MAX_EDGE, _MIN_EDGE = 16.0, 1.3
#: Number of colors of Q from 0 to 1, in tree.css.
_SHADES = 6


def tree_svg(tree: Tree) -> str:
    """The diagram of a tree."""
    headline = fit_text(" ".join(tree.question.text.split()), _MIN_WIDTH - 2 * MARGIN, 2, _HEADLINE)
    best = most_visited_path(tree)
    boxes = layout(tree, top=66 + 24 * len(headline))
    width = max(_MIN_WIDTH, *(box.x + box.width + MARGIN for box in boxes))
    bottom = max(box.y + box.height for box in boxes)
    size = f'width="{width:g}" height="{bottom + 58:g}"'
    facts = zip(boxes, judge_tree(tree), spre(tree), strict=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {bottom + 58:g}" {size} role="img" '
        f'aria-label="{escape_xml(f"Search tree: {tree.question.text}")}">',
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style>",
        f'<rect class="paper" {size}/>',
        *(text(MARGIN, 36 + 24 * row, line, "headline") for row, line in enumerate(headline)),
        text(MARGIN, 36 + 24 * len(headline), _summary(tree), "summary"),
        *_edges(tree, boxes, best),
        *(_node(box, verdict, shortest, box.node.id in best) for box, verdict, shortest in facts),
        *_legend(bottom + 34),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _summary(tree: Tree) -> str:
    answer = [f"answer: {tree.question.shown_answers[0]}"] if tree.question.answers else []
    numbers = f"{tree.nodes[0].visits:,} simulations", f"{len(tree.nodes):,} nodes"
    return " · ".join([*answer, *numbers, tree.question.id])


def _edges(tree: Tree, boxes: list[Box], best: list[int]) -> Iterator[str]:
    """Edges from every node to its children, side by side where they leave the node."""
    most = max(tree.nodes[0].visits, 1)
    for parent, family in zip(boxes, ordered_children(tree)):
        widths = [max(_MAX_EDGE * child.visits / most, _MIN_EDGE) for child in family]
        start = parent.port - sum(widths) / 2
        for child, width in zip(family, widths):
            box = boxes[child.id]
            x, y, middle = parent.x + parent.width, start + width / 2, box.x - GAP / 2
            curve = f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {box.port:.1f} {box.x:.1f} {box.port:.1f}"
            kind = f"edge {_shade(child)}{_state(child, child.id in best)}"
            yield f'<path class="{kind}" d="{curve}" stroke-width="{width:.1f}"/>'
            start += width


def _node(box: Box, verdict: Verdict | None, shortest: float | None, best: bool) -> str:
    """A node: kind, content, numbers and the gold judge's verdict."""
    node, left, right = box.node, box.x + PAD, box.x + box.width - PAD
    position = f'x="{box.x:.1f}" y="{box.y:.1f}"'
    tooltip = escape_xml(_tooltip(node, verdict, shortest))
    parts = [
        f'<g class="node {_shade(node)}{_state(node, best)}"><title>{tooltip}</title>',
        f'<rect class="box" {position} width="{box.width:.1f}" height="{box.height:.1f}" rx="5"/>',
        f'<rect class="bar" {position} width="5" height="{box.height:.1f}" rx="2.5"/>',
    ]
    numbers = _numbers(node, shortest)
    if node.step is None:
        parts.append(text(left, box.y + 16, "question", "small"))
        parts += [text(left, box.y + 32 + 14 * row, each, "small") for row, each in enumerate(numbers)]
    elif is_unvisited(node):
        reward = "" if node.reward is None else f"F1 {node.reward:.2f}"
        width = right - 16 - text_width(reward, _SMALL) - left
        parts.append(text(left, box.y + 15, fit_text(box.lines[0], width, 1, _DIMMED)[0], "dimmed"))
        parts.append(text(right - 12, box.y + 15, reward, "small end"))
        parts += _mark(verdict, right - 1, box.y + 11)
    else:
        parts.append(text(left, box.y + 15, KIND_LABELS[node.step.action.kind], "small"))
        parts += [text(left, box.y + 30 + LINE * row, line, "content") for row, line in enumerate(box.lines)]
        parts.append(text(left, box.y + box.height - 8, " · ".join(numbers), "small"))
        if verdict is not None and verdict.fault is not None and node.step.action.kind is not ActionKind.MALFORMED:
            parts.append(text(right - 12, box.y + 15, verdict.fault.value, "small end fault"))
        parts += _mark(verdict, right - 1, box.y + 11.5)
    return "".join([*parts, "</g>"])


def _legend(y: float) -> Iterator[str]:
    x = MARGIN + 28
    yield text(MARGIN, y, "Q 0", "small")
    for number in range(_SHADES):
        yield f'<g class="v{number}"><rect class="bar" x="{x + 18 * number}" y="{y - 9:g}" width="18" height="10"/></g>'
    yield text(x + 114, y, "to 1", "small")
    yield f'<path class="edge v5 best" d="M{x + 158} {y - 4:g}h26" stroke-width="7"/>'
    yield text(x + 192, y, "N: visits", "small")
    for start, kind, words in ((372, "v5 best", "most visited"), (508, "vn unvisited", "not visited")):
        box = f'<rect class="box" x="{x + start}" y="{y - 11:g}" width="24" height="14" rx="3"/>'
        yield f'<g class="node {kind}">{box}</g>{text(x + start + 32, y, words, "small")}'
    marks = (Verdict(None), Verdict(Fault.WRONG), Verdict(Fault.DERIVED))
    yield "".join(part for number, verdict in enumerate(marks) for part in _mark(verdict, x + 632 + 16 * number, y - 4))
    yield text(x + 676, y, "gold judge", "small")
    yield text(x + 752, y, "S: shortest-path reward", "small")


def _mark(verdict: Verdict | None, x: float, y: float) -> list[str]:
    """A check mark, a cross or, for a step that follows from an earlier error, an arrow in a circle."""
    if verdict is None:
        return []
    name, sign = ("good", "m-3 .3l2.2 2.3l3.8-4.8") if verdict.good else ("faulty", "m-2.4-2.4l4.8 4.8m0-4.8l-4.8 4.8")
    if verdict.derived:
        name, sign = "derived", "m-3 0h6m-2.2-2.2l2.2 2.2l-2.2 2.2"
    return [
        f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>',
        f'<path class="sign" d="M{x:.1f} {y:.1f}{sign}"/>',
    ]


def _numbers(node: Node, shortest: float | None) -> list[str]:
    """Visits, value and shortest-path reward. A leaf shows F1, since its Q is only the discounted F1."""
    value = f"Q {node.value:.2f}" if node.reward is None else f"F1 {node.reward:.2f}"
    return [f"N {node.visits:,}", value, *([] if shortest is None else [f"S {shortest:.2f}"])]


def _tooltip(node: Node, verdict: Verdict | None, shortest: float | None) -> str:
    lines = [f"node {node.id}: {', '.join(_numbers(node, shortest))}"]
    if node.step is not None:
        action = node.step.action
        lines += [f"thought: {action.thought}"] if action.thought else []
        lines += [f"{KIND_LABELS[action.kind]}: {action.content}", *([action.problem] if action.problem else [])]
        lines += [f"passage: {passage.title}" for passage in node.step.passages]
    if verdict is not None:
        lines.append(f"gold judge: {verdict.fault or 'good'}, {verdict.reason}")
    for rollout in node.rollouts:
        ending = rollout.answer or rollout.stop.value
        lines.append(f"rollout: F1 {rollout.reward:.2f} after {rollout.steps} steps: {ending}")
    return "\n".join(lines)


def _shade(node: Node) -> str:
    """The CSS class of a node's color."""
    value = node.value if node.visits else node.reward
    return "vn" if value is None else f"v{round(min(max(value, 0.0), 1.0) * (_SHADES - 1))}"


def _state(node: Node, best: bool) -> str:
    return " best" if best else " unvisited" if is_unvisited(node) else ""
