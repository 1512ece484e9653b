"""Three policies in the Gymnasium environment: noise, random actions in the right format, and the gold decomposition.

    python examples/gym_random_and_gold.py --episodes 1000

Prints for each what an episode earned, how episodes ended and how many were played a second. On Atlas, a generated
world that nobody can know, noise is malformed at once, random actions earn next to nothing, and the gold policy fails
only where the search did not find what it asked for.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable

import gymnasium

from stepladder.agents import Agent, make_agent
from stepladder.core.requests import Generate, Generation
from stepladder.core.trace import Action, Trajectory
from stepladder.oracle.engine import OracleEngine

#: What to write next. A language model would be given the observation; these look at the state.
Policy = Callable[[Trajectory], str]


def random_actions(agent: Agent, chance: random.Random) -> Policy:
    """Any action of the agent's format, about words of the question or of what was found."""
    kinds = sorted(agent.kinds)

    def write(state: Trajectory) -> str:
        words = " ".join([state.question.text, *(passage.text for passage in state.found)]).split()
        content = " ".join(chance.choices(words, k=3))
        return agent.write(Action(chance.choice(kinds), content, thought="Why not?"), state)

    return write


def gold(agent: Agent) -> Policy:
    """What the gold decomposition of the question wants next."""
    engine = OracleEngine(agent)

    def write(state: Trajectory) -> str:
        (reply,) = engine.generate([Generate((), trajectory=state)])
        assert isinstance(reply, Generation), reply
        return reply.text

    return write


def play(env: gymnasium.Env[str, str], policy: Policy, episodes: int) -> tuple[list[float], Counter[str]]:
    """What each episode earned, and how episodes ended."""
    earned: list[float] = []
    ends: Counter[str] = Counter()
    for number in range(episodes):
        _, info = env.reset(seed=number)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, info = env.step(policy(info["trajectory"]))
            total += float(reward)
            over = terminated or truncated
        earned.append(total)
        ends[info["stop"].value] += 1
    return earned, ends


def main() -> None:
    """Play, and print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1000, help="of each policy")
    parser.add_argument("--agent", default="prorag")
    parser.add_argument("--data", default="atlas-small")
    parser.add_argument("--reward", default="outcome", choices=("outcome", "process", "both"))
    asked = parser.parse_args()
    env: gymnasium.Env[str, str] = gymnasium.make(
        "stepladder.gym:stepladder/Search-v0", agent=asked.agent, data=asked.data, reward=asked.reward
    )
    env.action_space.seed(0)
    agent = make_agent(asked.agent)
    policies: dict[str, Policy] = {
        "noise": lambda _: env.action_space.sample(),
        "random": random_actions(agent, random.Random(0)),
        "gold": gold(agent),
    }
    for name, policy in policies.items():
        began = time.perf_counter()
        earned, ends = play(env, policy, asked.episodes)
        rate = asked.episodes / (time.perf_counter() - began)
        ended = ", ".join(f"{stop} {count}" for stop, count in ends.most_common())
        print(f"{name:7} mean reward {sum(earned) / len(earned):.3f}   {rate:6.0f} episodes/s   {ended}")
    env.close()


if __name__ == "__main__":
    main()
