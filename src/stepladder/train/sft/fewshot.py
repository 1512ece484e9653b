"""Few-shot prompts, for models that have not been trained on an agent's format yet.

In: any agent. Out: `FewShot`, the same agent with demonstrations before its prompt, to generate with; and `strip`,
which removes them from a trajectory, so that training sees the agent's own prompt. The demonstrations are episodes of
the oracle, rendered by the agent, over a corpus of a few invented passages.
"""

from dataclasses import replace

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, Author, Hop, Passage, Question, Segment, Step, Trajectory
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.transcripts.tokenized import split_contexts

_PASSAGES = (
    Passage("d1", "The Glass Orchard", "The Glass Orchard is a novel by Ilse Varn, first printed in 1931."),
    Passage("d2", "Ilse Varn", "Ilse Varn was a novelist. She was born in the harbour town of Pellam."),
    Passage("d3", "Pellam", "Pellam is a harbour town on the Grey Coast. Its lighthouse is 41 metres high."),
    Passage("d4", "Mount Teal", "Mount Teal is a mountain in Orrin. Its summit is 2,310 metres above the sea."),
    Passage("d5", "Mount Sorrow", "Mount Sorrow is a mountain in Orrin. Its summit is 1,874 metres above the sea."),
)
_QUESTIONS = (
    Question(
        "demonstration 1",
        "Where was the author of The Glass Orchard born?",
        ("Pellam",),
        (Hop("Who wrote The Glass Orchard?", "Ilse Varn", ("d1",)), Hop("Where was #1 born?", "Pellam", ("d2",))),
        (("d1",), ("d2",)),
    ),
    Question(
        "demonstration 2",
        "Which is higher, Mount Teal or Mount Sorrow?",
        ("Mount Teal",),
        (
            Hop("How high is Mount Teal?", "2,310 metres", ("d4",)),
            Hop("How high is Mount Sorrow?", "1,874 metres", ("d5",)),
            Hop("Which is more, #1 or #2?", "Mount Teal"),
        ),
        (("d4",), ("d5",)),
    ),
    Question(
        "demonstration 3",
        "How high is the lighthouse of Pellam?",
        ("41 metres",),
        (Hop("How high is the lighthouse of Pellam?", "41 metres", ("d3",)),),
        (("d3",),),
    ),
)


def demonstrations(agent: Agent) -> str:
    """Three answered questions in the agent's format, as one text."""
    driver = Driver(OracleEngine(agent), BM25Index.from_passages(_PASSAGES))
    settings = EpisodeConfig(max_steps=20, k=2)
    jobs = [lambda question=question: episode(agent, question, settings, seed=0) for question in _QUESTIONS]
    texts: list[str] = []
    for outcome in driver.run(jobs):
        if outcome.value is None or outcome.value.answer is None:
            why = outcome.failure.reason if outcome.failure is not None else "it did not reach an answer"
            raise StepladderError(f"the oracle cannot demonstrate agent '{agent.name}': {why}")
        texts += ["".join(segment.text for segment in context).strip() for context in split_contexts(outcome.value)]
    return "Here are worked examples.\n\n" + "\n\n".join(texts) + "\n\nNow it is your turn.\n\n"


class FewShot(Agent):
    """Wraps an agent and adds demonstrations before its prompt."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.demonstrations = demonstrations(agent)
        # Instance attributes, because they are those of the wrapped agent.
        self.name, self.summary = agent.name, agent.summary  # type: ignore[misc]
        self.kinds, self.stops = agent.kinds, agent.stops  # type: ignore[misc]
        self.remembers_thoughts = agent.remembers_thoughts  # type: ignore[misc]

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The agent's context; a prompt that starts a new context gets the demonstrations."""
        context = self.agent.render(trajectory)
        known = trajectory.context()
        if known and context[: len(known)] == known:
            return context
        return tuple(
            replace(segment, text=self.demonstrations + segment.text) if segment.author is Author.PROMPT else segment
            for segment in context
        )

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """As the wrapped agent."""
        return self.agent.parse(text, trajectory)

    def write(self, action: Action, trajectory: Trajectory) -> str:
        """As the wrapped agent."""
        return self.agent.write(action, trajectory)

    def opening_query(self, question: Question) -> str | None:
        """As the wrapped agent."""
        return self.agent.opening_query(question)

    @property
    def searches(self) -> bool:
        """As the wrapped agent."""
        return self.agent.searches

    def strip(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory without demonstrations.

        Policy and environment segments keep their token ids. Prompts lose theirs and are tokenized again; log-probs are
        dropped, because they belong to another context.
        """
        return replace(trajectory, steps=tuple(self._strip_step(step) for step in trajectory.steps))

    def _strip_step(self, step: Step) -> Step:
        read = tuple(
            Segment(Author.PROMPT, segment.text.removeprefix(self.demonstrations))
            if segment.author is Author.PROMPT
            else segment
            for segment in step.read
        )
        return replace(step, read=read, written=replace(step.written, logprobs=()))
