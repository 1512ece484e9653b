"""`show()` for results: text in a terminal, HTML in a notebook.

In: an object. Out: what its printer writes to a `rich` console, or the same as HTML. Printers are registered by class
name and imported on first use, so that the core types stay free of presentation code.
"""

import io
from pkgutil import resolve_name

from rich.console import Console

#: By class name: a function (console, object) that prints it.
PRINTERS = {
    "Trajectory": "stepladder.core.trace_printer:print_trajectory",
    "Tree": "stepladder.reporting.tree_text:print_tree",
    "Pair": "stepladder.core.trace_printer:print_pair",
    "Evaluation": "stepladder.reporting.eval_table:print_evaluation",
    "RunComparison": "stepladder.reporting.compare.compare_table:print_comparison",
}
#: By class name: a function of the object that returns HTML, where that is more than the printed text.
PICTURES = {"Tree": "stepladder.reporting.charts.tree_diagram:tree_svg"}
_WIDTH = 120


class Showable:
    """A mixin with `show()` and the HTML representation that notebooks use."""

    __slots__ = ()

    def show(self) -> None:
        """Print to the terminal, or display HTML in a notebook."""
        if Console().is_jupyter:
            from IPython.display import display

            display(self)  # type: ignore[no-untyped-call]
        else:
            self._print(Console())

    def _print(self, console: Console) -> None:
        resolve_name(PRINTERS[type(self).__name__])(console, self)

    def _repr_html_(self) -> str:
        if (name := type(self).__name__) in PICTURES:
            return str(resolve_name(PICTURES[name])(self))
        recorder = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False)
        self._print(recorder)
        return recorder.export_html(inline_styles=True, code_format='<pre style="line-height:1.3">{code}</pre>')


def shortened(text: str, length: int = 60) -> str:
    """The text in quotes, cut for use in a `repr`."""
    return repr(text if len(text) <= length else text[: length - 1] + "…")
