"""Estimates of what a judge would cost, without sending anything.

In: a judge, groups of siblings, the price of the model, its cached responses. Out: an `Estimate`.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.requests import Generate
from stepladder.core.trace import Action, ActionKind, Author, Node, Question, Segment, Step, Trajectory, Tree, Usage
from stepladder.engines.spend.budget import TEMPLATE_PER_MESSAGE, max_usage
from stepladder.engines.spend.prices import Price
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.llm.prompts import FIELD_LIMIT, repair_prompt

#: Typical characters per token of English text, and typical tokens of a verdict with its reason.
CHARACTERS_PER_TOKEN, TOKENS_PER_VERDICT = 4, 80

#: The maximum in UTF-8.
_BYTES_PER_CHARACTER = 4

#: Maximum tokens that a repair reads beyond the first prompt and its reply.
_REPAIR = len(repair_prompt("?" * 1_000).encode()) + 2 * TEMPLATE_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class Estimate:
    """The calls of a judge and their cost; dollars only if the model has a price."""

    #: Distinct prompts to send, and those whose responses are cached.
    calls: int
    cached: int
    #: Expected tokens.
    tokens: Usage
    #: Upper bound: one token per byte, replies of maximum length, every one repaired. Calls that a server loses and
    #: that are sent again are not included; only a budget bounds those.
    tokens_at_most: Usage
    usd: float | None
    usd_at_most: float | None


def estimate(
    judge: LLMJudge,
    groups: Iterable[tuple[Tree, Sequence[Node]]],
    price: Price | None = None,
    known: Container[Generate] = (),
) -> Estimate:
    """The cost of `judge.prefer` on groups of siblings. `known`: requests whose responses are cached."""
    calls, cached, expected, upper_bound = 0, 0, Usage(), Usage()
    seen: set[int] = set()  # hashes: the prompts of many trees may not fit into memory
    for request in (request for tree, siblings in groups for request in judge.requests(tree, siblings)):
        if hash(request) in seen:
            continue
        seen.add(hash(request))
        if request in known:
            cached += 1
        else:
            calls += 1
            expected += _expected(request)
            upper_bound += _with_repair(max_usage(request))
    return _estimate(calls, cached, expected, upper_bound, price)


def estimate_tree_search(judge: LLMJudge, trees: int, simulations: int, price: Price | None = None) -> Estimate:
    """The cost of grading the leaves of future trees: at most one new leaf per simulation.

    The length of their histories is unknown: half of the maximum is expected.
    """
    calls = trees * simulations
    nothing = Step((), Segment(Author.POLICY, ""), Action(ActionKind.QUERY, ""))
    (bare,) = judge.score_requests(Trajectory(Question("", "", ()), "", (nothing,)))
    expected, upper_bound = _expected(bare), max_usage(bare)
    expected += Usage(read=judge.history // 2 // CHARACTERS_PER_TOKEN)
    upper_bound += Usage(read=_BYTES_PER_CHARACTER * (judge.history + 4 * FIELD_LIMIT))  # question, answer, step
    return _estimate(calls, 0, _times(calls, expected), _times(calls, _with_repair(upper_bound)), price)


def _estimate(calls: int, cached: int, expected: Usage, upper_bound: Usage, price: Price | None) -> Estimate:
    return Estimate(
        calls=calls,
        cached=cached,
        tokens=expected,
        tokens_at_most=upper_bound,
        usd=None if price is None else float(price.of(expected)),
        usd_at_most=None if price is None else float(price.of(upper_bound)),
    )


def _with_repair(once: Usage) -> Usage:
    return once + once + Usage(read=once.written + _REPAIR)


def _times(number: int, usage: Usage) -> Usage:
    return Usage(number * usage.read, number * usage.written)


def _expected(request: Generate) -> Usage:
    characters = sum(len(segment.text) for segment in request.context)
    return Usage(-(-characters // CHARACTERS_PER_TOKEN), min(TOKENS_PER_VERDICT, request.sampling.max_tokens))
