"""Three policies in the Gymnasium environment: noise, random actions in the right format, and the oracle.

    python examples/gym_random_and_oracle.py --episodes 1000

Prints the mean reward, the episodes per second and the stop reasons of each policy. On Atlas, a generated world that
no model has seen, noise is malformed at the first step, random actions get almost no reward, and the oracle, which
replays the gold decomposition, fails only if the search misses a gold passage.
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

#: The next action as text. A language model would read the observation; these policies read the state.
Policy = Callable[[Trajectory], str]


def random_policy(agent: Agent, rng: random.Random) -> Policy:
    """A random action in the agent's format, with words of the question and of the passages."""
    kinds = sorted(agent.kinds)

    def write(state: Trajectory) -> str:
        words = " ".join([state.question.text, *(passage.text for passage in state.found)]).split()
        content = " ".join(rng.choices(words, k=3))
        return agent.write(Action(rng.choice(kinds), content, thought="Why not?"), state)

    return write


def oracle_policy(agent: Agent) -> Policy:
    """The next action of the gold decomposition."""
    engine = OracleEngine(agent)

    def write(state: Trajectory) -> str:
        (reply,) = engine.generate([Generate((), trajectory=state)])
        assert isinstance(reply, Generation), reply
        return reply.text

    return write


def run_episodes(env: gymnasium.Env[str, str], policy: Policy, episodes: int) -> tuple[list[float], Counter[str]]:
    """The reward of each episode, and how many episodes ended for which reason."""
    rewards: list[float] = []
    stops: Counter[str] = Counter()
    for number in range(episodes):
        _, info = env.reset(seed=number)
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, info = env.step(policy(info["trajectory"]))
            total += float(reward)
            done = terminated or truncated
        rewards.append(total)
        stops[info["stop"].value] += 1
    return rewards, stops


def main() -> None:
    """Run episodes and print one line per policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1000, help="per policy")
    parser.add_argument("--agent", default="prorag")
    parser.add_argument("--data", default="atlas-small")
    parser.add_argument("--reward", default="outcome", choices=("outcome", "process", "both"))
    options = parser.parse_args()
    env: gymnasium.Env[str, str] = gymnasium.make(
        "stepladder.gym:stepladder/Search-v0", agent=options.agent, data=options.data, reward=options.reward
    )
    env.action_space.seed(0)
    agent = make_agent(options.agent)
    policies: dict[str, Policy] = {
        "noise": lambda _: env.action_space.sample(),
        "random": random_policy(agent, random.Random(0)),
        "oracle": oracle_policy(agent),
    }
    for name, policy in policies.items():
        started = time.perf_counter()
        rewards, stops = run_episodes(env, policy, options.episodes)
        rate = options.episodes / (time.perf_counter() - started)
        reasons = ", ".join(f"{stop} {count}" for stop, count in stops.most_common())
        print(f"{name:7} mean reward {sum(rewards) / len(rewards):.3f}   {rate:6.0f} episodes/s   {reasons}")
    env.close()


if __name__ == "__main__":
    main()
