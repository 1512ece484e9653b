"""The layout of a search tree diagram.

In: a `Tree`. Out: one `Box` per node: its position, and its content wrapped to fit. The tree grows from left to right,
one column per step. The most visited child comes first, at the height of its parent, so that the most visited path is a
straight line at the top. Boxes never overlap.
"""

from dataclasses import dataclass

from stepladder.core.trace import ActionKind, Node, Tree
from stepladder.explore.values import depths_of
from stepladder.reporting.charts.svg_text import fit_text, text_width

#: Target width of a diagram.
WIDTH = 1280
#: Distances: around the diagram, between columns, between boxes, inside a box.
MARGIN, GAP, BETWEEN, PAD = 20, 28, 7, 10
#: Font size and line height of the content.
FONT, LINE = 12.5, 15
#: Heights: a box with one line of content, the root, an unvisited node.
HEIGHT, ROOT_HEIGHT, UNVISITED_HEIGHT = 53, 72, 22
ROOT_WIDTH = 66
#: Limits of the column width; the lower one leaves room for the numbers of a node.
_MAX_COLUMN, _MIN_COLUMN = 236, 139
#: Maximum lines of content; malformed text gets one.
_MAX_LINES, _MAX_LINES_MALFORMED = 3, 1


@dataclass(frozen=True, slots=True)
class Box:
    """The position of a node, and the lines of its content that fit."""

    node: Node
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]

    @property
    def port(self) -> float:
        """Height at which edges connect: the same for a node and its first child."""
        return self.y + min(self.height, HEIGHT) / 2


def layout(tree: Tree, top: float = 0.0) -> list[Box]:
    """One box per node, ordered by node id. `top`: y of the first box."""
    depths, children_by_node, widths = depths_of(tree), ordered_children(tree), _column_widths(tree)
    boxes: dict[int, Box] = {}

    def place(node: Node, y: float) -> float:
        """Place a node and its subtree. Returns the next free y."""
        depth = depths[node.id]
        x = MARGIN + sum(widths[:depth]) + GAP * depth
        lines = fit_text(content_of(node), widths[depth] - 2 * PAD, _max_lines(node), FONT)
        height = ROOT_HEIGHT if node.step is None else HEIGHT + LINE * (len(lines) - 1)
        if is_unvisited(node):
            height = UNVISITED_HEIGHT
        boxes[node.id] = Box(node, x, y, widths[depth], height, lines)
        end = y
        for child in children_by_node[node.id]:
            end = place(child, end)
        return max(end, y + height + BETWEEN)

    place(tree.nodes[0], top)
    return [boxes[node.id] for node in tree.nodes]


def ordered_children(tree: Tree) -> list[list[Node]]:
    """The children of every node, indexed by node id: most visited first, ties by value."""
    return [sorted(family, key=lambda node: (-node.visits, -node.value, node.id)) for family in tree.children_by_node()]


def most_visited_path(tree: Tree) -> list[int]:
    """Node ids of the path with the most visits, from the root down: the one the search considers best."""
    children = ordered_children(tree)
    path = [0]
    while children[path[-1]] and not is_unvisited(children[path[-1]][0]):
        path.append(children[path[-1]][0].id)
    return path


def is_unvisited(node: Node) -> bool:
    """Whether a node was expanded but never visited by a simulation."""
    return node.visits == 0 and node.step is not None


def content_of(node: Node) -> str:
    """The content of a node's step on one line; empty for the root."""
    return "" if node.step is None else " ".join(node.step.action.content.split()) or "(nothing)"


def _column_widths(tree: Tree) -> list[float]:
    """Column widths, the root's first. The widest columns shrink until all fit, down to `_MIN_COLUMN`."""
    depths = depths_of(tree)
    needed = [float(_MIN_COLUMN)] * max(depths)
    for node in tree.nodes[1:]:
        if node.visits and _max_lines(node) > 1:  # other content is truncated instead
            column = depths[node.id] - 1
            needed[column] = max(needed[column], text_width(content_of(node), FONT) + 2 * PAD + 1)
    available = WIDTH - 2 * MARGIN - ROOT_WIDTH - GAP * len(needed)
    limit = _MAX_COLUMN
    while limit > _MIN_COLUMN and sum(min(each, limit) for each in needed) > available:
        limit -= 1
    return [ROOT_WIDTH, *(min(each, limit) for each in needed)]


def _max_lines(node: Node) -> int:
    """Maximum lines of content of a node."""
    if is_unvisited(node):
        return 1
    malformed = node.step is not None and node.step.action.kind is ActionKind.MALFORMED
    return _MAX_LINES_MALFORMED if malformed else _MAX_LINES
