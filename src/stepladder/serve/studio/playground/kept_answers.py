"""The newest answers of the playground, with the token ids of their steps, to continue from.

In: trajectories, as they grow. Out: the trajectory of an id, or an `HTTPError` if it is no longer kept.
"""

from collections import OrderedDict
from secrets import token_hex

from stepladder.core.trace import Trajectory
from stepladder.serve.http.http_errors import HTTPError

#: Answers that are kept. The oldest are dropped.
MAX_KEPT = 64


class KeptAnswers:
    """Trajectories by id. Used on the event loop only."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[object, Trajectory]] = OrderedDict()

    def keep(self, policy: object, trajectory: Trajectory, name: str = "") -> str:
        """Keep an answer of a policy, or its newer state under the same id; returns the id."""
        name = name or token_hex(8)
        self._kept[name] = policy, trajectory
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return name

    def find(self, policy: object, name: str, steps: int) -> Trajectory:
        """The answer of this policy with this id, if it has so many steps."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != policy:
            raise HTTPError(410, "this answer is no longer kept by the server: ask the question again")
        if steps > len(kept[1].steps):
            raise HTTPError(422, f"steps is {steps}, but this answer has {len(kept[1].steps)}")
        return kept[1]
