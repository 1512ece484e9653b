"""Where the nodes of a search tree stand in a picture of it.

In: a `Tree`. Out: a `Box` a node: its place, and its content in as many lines as fit. It reads from left to right, a
column a step. The most visited child comes first and stands at its parent's height, so that the way where most
simulations went is a straight line at the top. No two boxes overlap.
"""

import unicodedata
from dataclasses import dataclass

from stepladder.core.trace import ActionKind, Node, Tree
from stepladder.explore.values import depths_of

#: The width that a picture keeps to where its columns allow it.
WIDTH = 1280
#: Around the picture, between columns, between boxes, inside a box.
MARGIN, GAP, BETWEEN, PAD = 20, 28, 7, 10
#: Size of the font of the content, and height of its lines.
FONT, LINE = 12.5, 15
#: Heights of a box with one line of content, of the root's, and of one that no simulation visited.
HEIGHT, ROOT_HEIGHT, UNVISITED_HEIGHT = 53, 72, 22
ROOT_WIDTH = 66
#: Columns are as wide as their content, but no wider than this, and no narrower than the numbers of a node.
_WIDEST, _NARROWEST = 236, 139
#: Lines of content; of text in no format, which may be anything, one is enough.
_LINES, _LINES_OF_MALFORMED = 3, 1


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node stands, and its content as far as it fits, line by line."""

    node: Node
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]

    @property
    def port(self) -> float:
        """Where lines come in and go out: at the same height for a node and its first child."""
        return self.y + min(self.height, HEIGHT) / 2


def layout(tree: Tree, top: float = 0.0) -> list[Box]:
    """A box for every node, by its id; the first one at the top."""
    depths, children_by_node, widths = depths_of(tree), ordered_children(tree), _column_widths(tree)
    boxes: dict[int, Box] = {}

    def place(node: Node, y: float) -> float:
        """Put a node and all below it. Returns where there is room again."""
        depth = depths[node.id]
        x = MARGIN + sum(widths[:depth]) + GAP * depth
        lines = fit(content_of(node), widths[depth] - 2 * PAD, _lines(node))
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
    """The children of every node, by its id: the most visited first, of equals the better one."""
    return [sorted(family, key=lambda node: (-node.visits, -node.value, node.id)) for family in tree.children_by_node()]


def most_visited_way(tree: Tree) -> list[int]:
    """The nodes where most simulations went, from the root down: what the search holds to be best."""
    children_by_node = ordered_children(tree)
    way = [0]
    while children_by_node[way[-1]] and not is_unvisited(children_by_node[way[-1]][0]):
        way.append(children_by_node[way[-1]][0].id)
    return way


def is_unvisited(node: Node) -> bool:
    """Whether a node was made, but no simulation went there."""
    return node.visits == 0 and node.step is not None


def content_of(node: Node) -> str:
    """What a node's step says, in one line; nothing for the root."""
    return "" if node.step is None else " ".join(node.step.action.content.split()) or "(nothing)"


def fit(text: str, width: float, lines: int, font: float = FONT) -> tuple[str, ...]:
    """Text in at most so many lines of so many pixels; what is left over becomes an ellipsis.

    >>> fit("Who designed the Zenusi Bridge?", 120, lines=2), fit("Who designed the Zenusi Bridge?", 120, lines=1)
    (('Who designed the', 'Zenusi Bridge?'), ('Who designed th…',))
    """
    if lines == 1 or length(text, font) <= width:
        return (_cut(text, width, font),)
    words, taken = text.split(" "), 1
    while taken < len(words) and length(" ".join(words[: taken + 1]), font) <= width:
        taken += 1
    rest = " ".join(words[taken:])
    return (_cut(" ".join(words[:taken]), width, font), *(fit(rest, width, lines - 1, font) if rest else ()))


def length(text: str, font: float) -> float:
    """How long text becomes, about: by the letters of a wide font, so that it fits in others as well."""
    return font * sum(map(_letter, text))


def _cut(text: str, width: float, font: float) -> str:
    if length(text, font) <= width:
        return text
    end = len(text)
    while end and length(f"{text[:end]}…", font) > width:
        end -= 1
    return f"{text[:end].rstrip()}…"


def _letter(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in " .,:;'|!()[]/·ijltfrI":
        return 0.36
    if letter in "mwMW@%…<>=+#&_":
        return 0.95
    return 0.66 if letter.isupper() or letter.isdigit() else 0.6


def _column_widths(tree: Tree) -> list[float]:
    """The widths of the columns, the root's first; the widest give way until all fit, or are as narrow as can be."""
    depths = depths_of(tree)
    needed = [float(_NARROWEST)] * max(depths)
    for node in tree.nodes[1:]:
        if node.visits and _lines(node) > 1:  # others are cut instead
            column = depths[node.id] - 1
            needed[column] = max(needed[column], length(content_of(node), FONT) + 2 * PAD + 1)
    room = WIDTH - 2 * MARGIN - ROOT_WIDTH - GAP * len(needed)
    most = _WIDEST
    while most > _NARROWEST and sum(min(each, most) for each in needed) > room:
        most -= 1
    return [ROOT_WIDTH, *(min(each, most) for each in needed)]


def _lines(node: Node) -> int:
    """How many lines of content a node may have."""
    if is_unvisited(node):
        return 1
    malformed = node.step is not None and node.step.action.kind is ActionKind.MALFORMED
    return _LINES_OF_MALFORMED if malformed else _LINES
