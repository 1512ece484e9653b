"""Print an episode to the console step by step, while it runs.

In: the trajectory, after each step. Out: console text for the steps that are new.
"""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from stepladder.core.trace import ActionKind, Pair, Passage, Question, Step, Trajectory

_LABELS = {
    ActionKind.QUERY: "[bold cyan]search[/]  ",
    ActionKind.EVIDENCE: "[bold blue]evidence[/]",
    ActionKind.SUB_ANSWER: "[bold blue]found[/]   ",
    ActionKind.ANSWER: "[bold green]answer[/]  ",
    ActionKind.MALFORMED: "[bold red]malformed[/]",
}
#: Characters printed per passage.
_MAX_CHARACTERS = 100


@dataclass
class TracePrinter:
    """Prints the new steps of one trajectory."""

    console: Console
    printed: int = 0
    ended: bool = False

    def question(self, question: Question) -> None:
        """Print the question."""
        self._line(f"[bold]question[/] {printable(question.text)}")
        for letter, option in zip(question.letters, question.options):
            self._line(f"         {letter}. {printable(option)}")

    def show(self, trajectory: Trajectory) -> None:
        """Print the new steps and, at the end, the stop reason and the accepted answers."""
        if trajectory.given and not trajectory.steps:
            self._passages(trajectory.given)
        for step in trajectory.steps[self.printed :]:
            self._step(step)
        self.printed = len(trajectory.steps)
        if trajectory.stop is not None and not self.ended:
            self.ended = True
            expected = trajectory.question.shown_answers
            gold = f", accepted: {printable(' | '.join(expected[:3]))}" if expected else ""
            count = len(trajectory.steps)
            self._line(f"[dim]{trajectory.stop.value} after {count} step{'s' if count != 1 else ''}{gold}[/]")

    def _step(self, step: Step) -> None:
        action = step.action
        if action.thought:
            self._line(f"[dim]thought  {printable(action.thought)}[/]")
        if action.kind is ActionKind.MALFORMED:
            self._line(f"{_LABELS[action.kind]} {printable(action.content[:_MAX_CHARACTERS])}")
            self._line(f"         [red]{printable(action.problem)}[/]")
        else:
            self._line(f"{_LABELS[action.kind]} {printable(action.content)}")
        if action.kind is ActionKind.QUERY:
            self._passages(step.passages)

    def _passages(self, passages: tuple[Passage, ...]) -> None:
        for passage in passages:
            text = " ".join(passage.text.split())
            text = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
            self._line(f"         [dim]{printable(passage.title)}: {printable(text)}[/]")
        if not passages:
            self._line("         [dim]no results[/]")

    def _line(self, markup: str) -> None:
        self.console.print(markup, highlight=False, soft_wrap=True)


def print_trajectory(console: Console, trajectory: Trajectory) -> None:
    """Print a whole trajectory."""
    printer = TracePrinter(console)
    printer.question(trajectory.question)
    printer.show(trajectory)


def print_pair(console: Console, pair: Pair) -> None:
    """Print the two steps of a pair, the preferred one first."""
    reason = f": {printable(pair.reason)}" if pair.reason else ""
    console.print(f"[bold]{printable(pair.question_id)}[/], after {pair.depth} steps, judge {pair.judge}{reason}")
    for label, side in (("[green]chosen  [/]", pair.chosen), ("[red]rejected[/]", pair.rejected)):
        console.print(f"{label} {printable(side.written.text.strip())}", highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Text that is safe in terminal markup: brackets escaped, control characters replaced.

    Documents and model output may contain terminal escape codes (colors, titles, clear screen).
    """
    return escape("".join(character if character.isprintable() else "·" for character in text))
