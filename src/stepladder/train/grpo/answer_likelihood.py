"""The probability of the gold answer in every state of an episode, under the policy in training (IGPO's signal).

In: episodes with token ids. Out: for each state, before each step, the mean log-prob of the gold answer's tokens, as if
the policy had to answer there; and how many tokens were read for it. Each row is a state, the beginning of an answer in
the agent's format with an empty thought, and the first accepted answer. The rows of all episodes are read together;
equal rows, such as the questions of a group, are read once.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from stepladder.agents.base import Agent
from stepladder.core.trace import Action, ActionKind, Author, Segment, Trajectory
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.train.transcripts.selected_logits import token_logps

#: Appended to an answer to find where an agent writes it: a short answer may also occur in a tag.
_MARK = " 7c1e9"
#: A row, and how many of its last tokens are the answer.
_Row = tuple[tuple[int, ...], int]


class AnswerLikelihood:
    """Log-probs of gold answers."""

    def __init__(
        self,
        model: Any,
        engine: InProcessEngine,
        agent: Agent,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """`engine`: for its tokenizer, and the length of its context. `autocast`: the precision of the model."""
        self.model, self.engine, self.agent, self.autocast = model, engine, agent, autocast

    def __call__(self, trajectories: Sequence[Trajectory]) -> tuple[list[list[float | None]], int]:
        """Per episode and state the mean log-prob per token, None where it does not fit; and the tokens read."""
        rows = [[self._row(each, state) for state in range(len(each.steps))] for each in trajectories]
        unique = list(dict.fromkeys(row for own in rows for row in own if row is not None))
        known = dict(zip(unique, self._logps(unique), strict=True)) if unique else {}
        found = [[None if row is None else known[row] for row in own] for own in rows]
        return found, sum(len(tokens) for tokens, _ in unique)

    def _row(self, trajectory: Trajectory, state: int) -> _Row | None:
        """What the policy read before a step, and the answer; None if it is not known or too long."""
        if not trajectory.question.answers:
            return None
        context = trajectory.consumed(state)
        opening, answer = self._answer(trajectory)
        tokens = [token for segment in (*context, opening) for token in segment.tokens]
        tokens += answer.tokens
        if not answer.tokens or len(tokens) > self.engine.context_limit:
            return None
        return tuple(tokens), len(answer.tokens)

    def _answer(self, trajectory: Trajectory) -> tuple[Segment, Segment]:
        """What the policy would write before the gold answer, and the answer."""
        answer = trajectory.question.written_answer
        text, marked = (
            self.agent.write(Action(ActionKind.ANSWER, each), trajectory) for each in (answer, f"{answer}{_MARK}")
        )
        opening = marked.partition(f"{answer}{_MARK}")[0]
        if not text.startswith(opening + answer):  # the format writes it in another way
            opening, answer = "", text
        encoded = (self.engine.encode(Segment(Author.POLICY, part)) for part in (opening, answer))
        before, after = encoded
        return before, after

    @torch.no_grad()
    def _logps(self, rows: Sequence[_Row]) -> list[float]:
        """The mean log-prob of the last tokens of each row."""
        device = next(self.model.parameters()).device
        lengths_B = torch.tensor([len(tokens) for tokens, _ in rows], device=device)
        answers_B = torch.tensor([count for _, count in rows], device=device)
        ids_BT = pad_sequence([torch.tensor(tokens) for tokens, _ in rows], batch_first=True).to(device)
        places_T = torch.arange(1, ids_BT.shape[1], device=device)  # the first token is predicted by nothing
        mask_BT = (places_T < lengths_B[:, None]) & (places_T >= (lengths_B - answers_B)[:, None])
        logps_BT, _ = token_logps(self.model, ids_BT, lengths_B, mask_BT, 1.0, self.autocast)
        means: list[float] = (logps_BT.double().sum(dim=1) / answers_B).tolist()
        return means
