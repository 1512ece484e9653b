"""Charts as SVG: where their parts are, read off the picture."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element


class Picture:
    """The parts of a chart. Nothing in it may load or run anything."""

    def __init__(self, svg: str) -> None:
        assert not re.search(r'href="(?!#)|url\(|@import|<script|<metadata|\son\w+=', svg)
        self.svg = svg
        self.root = ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", svg, count=1))

    @property
    def size(self) -> tuple[float, float]:
        width, height = self.root.attrib["viewBox"].split()[2:]
        return float(width), float(height)

    @property
    def texts(self) -> list[str]:
        return [each.text or "" for each in self.root.iter("text")]

    @property
    def tooltips(self) -> list[str]:
        return [each.text or "" for each in self.root.iter("title")]

    def at(self, words: str) -> tuple[float, float]:
        """Where some words stand."""
        (found,) = (each for each in self.root.iter("text") if each.text == words)
        return float(found.attrib["x"]), float(found.attrib["y"])

    def marked(self, tooltip: str) -> Element:
        """The element with this tooltip."""
        (found,) = (each for each in self.root.iter() if each.findtext("title") == tooltip)
        return found

    def dot(self, tooltip: str) -> tuple[float, float]:
        """The center of the dot with this tooltip."""
        (found,) = self.marked(tooltip).iter("use")
        return float(found.attrib["x"]), float(found.attrib["y"])

    def box(self, tooltip: str) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the bar with this tooltip."""
        (found,) = self.marked(tooltip).iter("path")
        corners = points(found)
        return (*map(min, zip(*corners)), *map(max, zip(*corners)))

    def lines(self, kind: str) -> list[list[tuple[float, float]]]:
        """The corners of all lines of a color, such as "series0"; ticks, leaders and outlines of dots too."""
        return [points(each) for each in self.root.iter("path") if f"stroke-{kind}" in each.get("class", "").split()]

    def across(self, low: str, high: str, value: float) -> float:
        """The x of a value, read off two numbers of the axis."""
        return _between(low, high, self.at(low)[0], self.at(high)[0], value)

    def up(self, low: str, high: str, value: float) -> float:
        """The distance in pixels of a value above the lower of two numbers of the axis."""
        return _between(low, high, 0.0, self.at(low)[1] - self.at(high)[1], value)


def points(path: Element) -> list[tuple[float, float]]:
    """The corners of a path."""
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])]


def _between(low: str, high: str, start: float, end: float, value: float) -> float:
    first, last = (float(each.replace("−", "-")) for each in (low, high))
    return start + (value - first) / (last - first) * (end - start)
