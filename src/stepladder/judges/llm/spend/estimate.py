"""What a judge would cost, before anything is paid.

In: a judge, groups of siblings, the price of the model, the replies at hand. Out: an `Estimate`. Nothing is sent.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.requests import Generate
from stepladder.core.trace import Action, ActionKind, Author, Node, Question, Segment, Step, Trajectory, Tree, Usage
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.llm.prompts import FIELD_LIMIT, repair_prompt
from stepladder.judges.llm.spend.budget import TEMPLATE_PER_MESSAGE, max_usage
from stepladder.judges.llm.spend.prices import Price

#: Characters of English text that make a token, and tokens of a verdict with its reason: what is usual.
CHARACTERS_PER_TOKEN, TOKENS_PER_VERDICT = 4, 80

#: Of UTF-8, at most.
_BYTES_PER_CHARACTER = 4

#: What a repair reads beyond the first prompt and its reply, at most.
_REPAIR = len(repair_prompt("?" * 1_000).encode()) + 2 * TEMPLATE_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Estimate:
    """The calls of a judge and what they cost; dollars only where the model has a price."""

    #: Different prompts to be sent, and those whose replies are at hand.
    calls: int
    cached: int
    #: Tokens as they usually come out.
    tokens: Usage
    #: Every token a byte, every reply as long as it may be, and every one of them repaired. Not reckoned with: calls
    #: that a server loses and that are sent again. Only a budget bounds those.
    tokens_at_most: Usage
    usd: float | None
    usd_at_most: float | None


def estimate(
    judge: LLMJudge,
    groups: Iterable[tuple[Tree, Sequence[Node]]],
    price: Price | None = None,
    known: Container[Generate] = (),
) -> Estimate:
    """What `judge.prefer` would cost on these groups of siblings. `known`: requests that cost nothing any more."""
    calls, cached, usual, most = 0, 0, Usage(), Usage()
    seen: set[int] = set()  # hashes, because the prompts of many trees may be more than memory holds
    for request in (request for tree, siblings in groups for request in judge.requests(tree, siblings)):
        if hash(request) in seen:
            continue
        seen.add(hash(request))
        if request in known:
            cached += 1
        else:
            calls += 1
            usual += _usual(request)
            most += _with_repair(max_usage(request))
    return _estimate(calls, cached, usual, most, price)


def estimate_tree_search(judge: LLMJudge, trees: int, simulations: int, price: Price | None = None) -> Estimate:
    """What grading the leaves of trees that do not exist yet would cost: a new leaf a simulation, at most.

    How long their histories will be is not known either. Usual is half of what a prompt may show of one.
    """
    calls = trees * simulations
    nothing = Step((), Segment(Author.POLICY, ""), Action(ActionKind.QUERY, ""))
    (bare,) = judge.score_requests(Trajectory(Question("", "", ()), "", (nothing,)))
    usual, most = _usual(bare), max_usage(bare)
    usual += Usage(read=judge.history // 2 // CHARACTERS_PER_TOKEN)
    most += Usage(read=_BYTES_PER_CHARACTER * (judge.history + 3 * FIELD_LIMIT))  # question, thought, action
    return _estimate(calls, 0, _times(calls, usual), _times(calls, _with_repair(most)), price)


def _estimate(calls: int, cached: int, usual: Usage, most: Usage, price: Price | None) -> Estimate:
    return Estimate(
        calls=calls,
        cached=cached,
        tokens=usual,
        tokens_at_most=most,
        usd=None if price is None else float(price.of(usual)),
        usd_at_most=None if price is None else float(price.of(most)),
    )


def _with_repair(once: Usage) -> Usage:
    return once + once + Usage(read=once.written + _REPAIR)


def _times(number: int, usage: Usage) -> Usage:
    return Usage(number * usage.read, number * usage.written)


def _usual(request: Generate) -> Usage:
    characters = sum(len(segment.text) for segment in request.context)
    return Usage(-(-characters // CHARACTERS_PER_TOKEN), min(TOKENS_PER_VERDICT, request.sampling.max_tokens))
