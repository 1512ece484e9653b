"""Shows an episode to a person, step by step, as it happens.

In: the growing trajectory, as often as one likes. Out: text on a console; what was shown is not shown again.
"""

from rich.console import Console
from rich.markup import escape

from stepladder.core.trace import ActionKind, Passage, Question, Step, Trajectory

_LABELS = {
    ActionKind.QUERY: "[bold cyan]search[/]  ",
    ActionKind.EVIDENCE: "[bold blue]evidence[/]",
    ActionKind.SUB_ANSWER: "[bold blue]found[/]   ",
    ActionKind.ANSWER: "[bold green]answer[/]  ",
    ActionKind.MALFORMED: "[bold red]malformed[/]",
}
#: Characters of a passage that are shown.
_SHOWN = 100


class TracePrinter:
    """Prints the steps of one trajectory that it has not printed yet."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.told = 0
        self.ended = False

    def question(self, question: Question) -> None:
        """Announce the question."""
        self._line(f"[bold]question[/] {printable(question.text)}")

    def show(self, trajectory: Trajectory) -> None:
        """Print what is new; at the end also how the episode ended and what the answer should have been."""
        if trajectory.given and not trajectory.steps:
            self._passages(trajectory.given)
        for step in trajectory.steps[self.told :]:
            self._step(step)
        self.told = len(trajectory.steps)
        if trajectory.stop is not None and not self.ended:
            self.ended = True
            expected = trajectory.question.answers
            gold = f", accepted: {printable(' | '.join(expected[:3]))}" if expected else ""
            count = len(trajectory.steps)
            self._line(f"[dim]{trajectory.stop.value} after {count} step{'s' if count != 1 else ''}{gold}[/]")

    def _step(self, step: Step) -> None:
        action = step.action
        if action.thought:
            self._line(f"[dim]thought  {printable(action.thought)}[/]")
        if action.kind is ActionKind.MALFORMED:
            self._line(f"{_LABELS[action.kind]} {printable(action.content[:_SHOWN])}")
            self._line(f"         [red]{printable(action.problem)}[/]")
        else:
            self._line(f"{_LABELS[action.kind]} {printable(action.content)}")
        if action.kind is ActionKind.QUERY:
            self._passages(step.passages)

    def _passages(self, passages: tuple[Passage, ...]) -> None:
        for passage in passages:
            text = " ".join(passage.text.split())
            text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
            self._line(f"         [dim]{printable(passage.title)}: {printable(text)}[/]")
        if not passages:
            self._line("         [dim]nothing was found[/]")

    def _line(self, markup: str) -> None:
        self.console.print(markup, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Text as it may be put into markup for a terminal: brackets escaped, control characters made visible.

    Documents and untrained models write what a terminal would obey: colours, titles, a cleared screen.
    """
    return escape("".join(character if character.isprintable() else "·" for character in text))
