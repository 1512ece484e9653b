"""What a browser sends to the playground.

POST /playground/ask        AskRequest: a question, the policy, how to sample
POST /playground/continue   ContinueRequest: a kept answer, how many of its steps stay, and a step of the user's own
POST /playground/example    PolicyRequest: a question of the data that the policy would be asked about
"""

from typing import Annotated, Literal

from pydantic import Field

from stepladder.core.requests import Sampling
from stepladder.core.trace import Action, ActionKind
from stepladder.serve.http.api import WHOLE, RequestBody

_Text = Annotated[str, Field(max_length=2000)]
#: Characters of a thought or an action that a user writes.
_MOST_WRITTEN = 20_000
_Seed = Annotated[int, Field(ge=0, lt=2**53), WHOLE]


class PolicyRequest(RequestBody):
    """A policy and what it searches, as typed. Empty fields are left to the run, or to the defaults."""

    #: A run, a model, `oracle`, or the URL of an OpenAI-compatible server.
    policy: _Text
    #: Of a run: the stage. Of a server: the name of the model.
    stage: _Text = ""
    model: _Text = ""
    agent: _Text = ""
    #: An index folder, the URL of a search server, or the name of a data set whose passages are searched.
    index: _Text = ""
    #: A reward model that scores the steps: a folder, or a run with one; `none` for no scores.
    reward: _Text = ""


class SamplingRequest(RequestBody):
    """How to sample."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: _Seed = 0

    def sampling(self, limits: Sampling) -> Sampling:
        """These parameters, with the token limit of the policy."""
        return Sampling(self.temperature, limits.top_p, limits.max_tokens)


class AskRequest(SamplingRequest):
    """A question."""

    policy: PolicyRequest
    question: str


class WrittenStep(RequestBody):
    """A step in the user's words."""

    kind: Literal["query", "evidence", "sub_answer", "answer"]
    content: Annotated[str, Field(min_length=1, max_length=_MOST_WRITTEN)]
    thought: Annotated[str, Field(max_length=_MOST_WRITTEN)] = ""

    def action(self) -> Action:
        """The step as an action."""
        return Action(ActionKind(self.kind), self.content.strip(), self.thought.strip())


class ContinueRequest(SamplingRequest):
    """Continue a kept answer after its first steps, with a step of the user's own or without."""

    policy: PolicyRequest
    #: The id of the answer, from the event `start`.
    answer: _Text
    #: How many of its steps stay as they are.
    steps: Annotated[int, Field(ge=0), WHOLE]
    step: WrittenStep | None = None
