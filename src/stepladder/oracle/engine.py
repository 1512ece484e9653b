"""The oracle engine: replays the gold decomposition of a question in the format of an agent, as an upper bound.

In: requests with their trajectory. Out: the text that a perfect policy would write next. The oracle sees the next
sub-question, but no more evidence than was retrieved: it gives a sub-answer only if a gold passage of the hop was
found, and "unknown" otherwise. Its mistakes are therefore retrieval errors. Evidence is the sub-question with its
answer. Without a decomposition it searches with the question itself and needs every gold passage. For agents that
cannot search it gives the gold answer. With a seed, its thoughts are worded in varied ways, for training data.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepladder.agents.base import Agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Action, ActionKind, Author, Passage, Question, Segment, Step, Trajectory
from stepladder.engines.base import Engine, EngineOptions
from stepladder.oracle.decomposition import answerable, fill_references, hop_answers, is_conclusion, supports

UNKNOWN = "unknown"

#: The wordings of thoughts. They are training data: changing a word changes every run.
_PLAN = ("Plan: {}", "I need to know: {}", "Steps: {}", "To find out: {}")
_NEXT = ("Now {}.", "Next is {}.", "On to {}.", "Step {}.")
_READ = ("[{}] tells it.", "[{}] says so.", "It is in [{}].", "I see it in [{}].")
_NOT_THERE = ("The passages do not tell.", "It is not there.", "Nothing here says it.")
_DONE = ("That was the last.", "All is known.", "Nothing is left to find.", "So that is it.")
_GIVE_UP = ("What I needed was not found.", "The search did not find it.")


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The thoughts before each action: first the plan, then the position in the plan.

    Plans that list the sub-questions make SFT far more sample-efficient than bare actions; varied wordings, drawn from
    the random generator, keep a model from memorizing one of them. Without a generator the first is used.
    """

    rng: random.Random | None = None

    def _pick(self, wordings: Sequence[str]) -> str:
        return self.rng.choice(wordings) if self.rng is not None else wordings[0]

    def plan(self, questions: Sequence[str]) -> str:
        """Before the first search: every sub-question, in order.

        >>> Thoughts().plan(["Who designed Orm Tower?", "Where was #1 born?"])
        'Plan: 1. Who designed Orm Tower? 2. Where was #1 born?'
        """
        listed = " ".join(f"{number}. {question}" for number, question in enumerate(questions, start=1))
        return self._pick(_PLAN).format(listed)

    def next(self, number: int) -> str:
        """Before a later search: the number of the sub-question in the plan."""
        return self._pick(_NEXT).format(number)

    def read(self, number: int | None) -> str:
        """Before a sub-answer: the number of the passage that states it, or that none does."""
        return self._pick(_NOT_THERE) if number is None else self._pick(_READ).format(number)

    def conclude(self, conclusion: str, answerable: bool) -> str:
        """Before the answer: the conclusion from the sub-answers, if the question has one."""
        if not answerable:
            return self._pick(_GIVE_UP)
        return conclusion or self._pick(_DONE)


class OracleEngine(Engine):
    """Writes the next step of the gold decomposition, in the format of one agent."""

    name = "oracle"
    max_batch = 4096

    def __init__(self, agent: Agent, seed: int | None = None) -> None:
        """`seed`: draw the wording of the thoughts, anew for every step; without one it is always the same."""
        self.agent = agent
        self.seed = seed

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """One gold step per request."""
        return [self._next_step(request) for request in requests]

    def _next_step(self, request: Generate) -> Generation | BackendError:
        if request.trajectory is None:
            return BackendError("the oracle engine needs the trajectory of a request; this one has none")
        trajectory, thoughts = request.trajectory, Thoughts()
        if self.seed is not None:
            step = seed_of(self.seed, trajectory.question.id, trajectory.seed, len(trajectory.steps))
            thoughts = Thoughts(random.Random(step))
        action = gold_action(
            trajectory,
            self.agent.kinds,
            has_opening_query=self.agent.opening_query(trajectory.question) is not None,
            repeats_plan=not self.agent.remembers_thoughts,
            thoughts=thoughts,
        )
        text = self.agent.write(action, trajectory)
        return Generation(request.context, Segment(Author.POLICY, text), text, Finish.STOP)


def build(options: EngineOptions) -> OracleEngine:
    """The oracle in the format of the agent in the options."""
    if options.model or options.base_url:
        raise StepladderError("the oracle engine has no model: leave out --model and --base-url, or choose an engine")
    return OracleEngine(options.agent)


def gold_action(
    trajectory: Trajectory,
    kinds: frozenset[ActionKind],
    *,
    has_opening_query: bool = False,
    repeats_plan: bool = False,
    thoughts: Thoughts = Thoughts(),  # noqa: B008 - frozen
) -> Action:
    """The next action of a perfect policy, among the kinds of action it has.

    `has_opening_query`: it was given passages. `repeats_plan`: it does not see its earlier thoughts, so every search
    starts with the whole plan.
    """
    question, answers = trajectory.question, hop_answers(trajectory.question)
    if ActionKind.QUERY not in kinds:
        known = not has_opening_query or answerable(question, trajectory.given)
        # Every sub-question with its answer: the reasoning of an agent that cannot search.
        recollection = [f"{fill_references(hop.question, answers)} {hop.answer}." for hop in question.hops]
        return _answer(question, known, thoughts, " ".join(recollection))

    plan = _plan(trajectory)
    extraction = _required_extraction(trajectory, kinds)
    if extraction is not None:
        last = next(step for step in reversed(trajectory.steps) if step.action.kind is ActionKind.QUERY)
        asked = next((each for each in plan if _same_query(each.query, last.action.content)), None)
        number = next((n for n, each in enumerate(last.passages, start=1) if asked and asked.supports((each,))), None)
        if extraction is ActionKind.EVIDENCE:
            evidence = f"{asked.query} {asked.answer}." if asked and number is not None else "Nothing helps."
            return Action(extraction, evidence, thoughts.read(number))
        answer = asked.answer if asked and asked.found else UNKNOWN
        return Action(extraction, answer, thoughts.read(number if answer != UNKNOWN else None))
    if any(each.found is False for each in plan):
        return _answer(question, False, thoughts)
    if plan and plan[-1].found is None:
        search = plan[-1]
        planned = thoughts.plan([hop.question for hop in question.hops] or [question.text])
        states_plan = repeats_plan or not trajectory.queries
        return Action(ActionKind.QUERY, search.query, planned if states_plan else thoughts.next(search.number))
    # A conclusion after all searches, such as which of two numbers is greater.
    concludes = question.hops and is_conclusion(question.hops[-1], question)
    conclusion = fill_references(question.hops[-1].question, answers) if concludes else ""
    return _answer(question, True, thoughts, conclusion)


@dataclass(frozen=True, slots=True)
class _Search:
    """A sub-question of the gold decomposition with its references filled in."""

    #: Its number in the decomposition, from 1.
    number: int
    query: str
    supports: Callable[[Sequence[Passage]], bool]
    answer: str
    #: Whether the search found the answer; None if it was not made yet.
    found: bool | None


def _plan(trajectory: Trajectory) -> list[_Search]:
    """The searches of the gold decomposition that the trajectory has made, and the next one."""
    question = trajectory.question
    made = [step for step in trajectory.steps if step.action.kind is ActionKind.QUERY]
    if not question.hops:
        return [_search(1, question.text, question.answers, lambda found: answerable(question, found), made)]
    plan: list[_Search] = []
    answers: dict[int, str] = {}
    for number, hop in enumerate(question.hops, start=1):
        if is_conclusion(hop, question):
            answers[number] = hop.answer
            continue
        query = fill_references(hop.question, answers)
        plan.append(_search(number, query, (hop.answer,), lambda found, hop=hop: supports(hop, found), made))  # type: ignore[misc]
        if not plan[-1].found:
            break
        answers[number] = hop.answer
    return plan


def _search(
    number: int, query: str, answers: Sequence[str], supports: Callable[[Sequence[Passage]], bool], made: Sequence[Step]
) -> _Search:
    results = [step.passages for step in made if _same_query(step.action.content, query)]
    found = bool(answers) and any(map(supports, results)) if results else None
    return _Search(number, query, supports, answers[0] if answers else UNKNOWN, found)


def _same_query(a: str, b: str) -> bool:
    """Whether two queries are equal except for whitespace and brackets, which agents may have neutralized."""
    return a.replace("<", "‹").split() == b.replace("<", "‹").split()


def _required_extraction(trajectory: Trajectory, kinds: frozenset[ActionKind]) -> ActionKind | None:
    """The kind of extraction step that must follow a query, for agents that have one."""
    last = trajectory.steps[-1].action.kind if trajectory.steps else None
    if last is ActionKind.QUERY and ActionKind.EVIDENCE in kinds:
        return ActionKind.EVIDENCE
    if last in (ActionKind.QUERY, ActionKind.EVIDENCE) and ActionKind.SUB_ANSWER in kinds:
        return ActionKind.SUB_ANSWER
    return None


def _answer(question: Question, found: bool, thoughts: Thoughts, conclusion: str = "") -> Action:
    known = found and bool(question.answers)
    return Action(
        ActionKind.ANSWER, question.written_answer if known else UNKNOWN, thoughts.conclude(conclusion, known)
    )
