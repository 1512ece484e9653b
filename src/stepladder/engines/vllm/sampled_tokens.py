"""Reads the sampled tokens from vLLM's scheduler, step by step, instead of vLLM's outputs.

In: the running rows. Out: their tokens and log-probs; which of them have ended, and which wrote a stop string and have
to be aborted.

vLLM's own way cost a third of its speed (docs/gpu.md): for every token of every row, it makes an object of the
log-prob with the token's text, and matches stop strings on text that it decodes token by token. Here, the log-probs of
a step are one list, nothing is decoded unless a token can end a stop string (`closing_tokens_of`), and a stop string is
matched as in the other engines.

This needs vLLM's scheduler in this process, and its method `update_from_output`, which is the same in vLLM 0.26 and
0.32. Without it `attach` returns None, and vLLM's outputs are used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from stepladder.core.requests import Finish
from stepladder.engines.transformers.token_sampler import Row


@dataclass(slots=True, eq=False)
class RunningRow:
    """A row in vLLM's scheduler."""

    row: Row
    #: The tokens after which its text is checked for stop strings.
    closing: frozenset[int]


class SampledTokens:
    """The tokens of all rows that run in one vLLM."""

    def __init__(self, scheduler: Any, finish_of: Callable[[Row], Finish | None]) -> None:
        """`finish_of`: why a row ends after its last token, or None."""
        self._update = scheduler.update_from_output
        self._finish_of = finish_of
        self.running: dict[str, RunningRow] = {}
        #: Requests that ended since they were last taken, each with vLLM's reason, or "" for a stop string.
        self.ended: dict[str, str] = {}
        scheduler.update_from_output = self._update_and_read

    @classmethod
    def attach(cls, llm_engine: Any, finish_of: Callable[[Row], Finish | None]) -> Self | None:
        """Read the tokens of this vLLM; None if its scheduler is in another process or has another interface."""
        core = getattr(getattr(llm_engine, "engine_core", None), "engine_core", None)
        scheduler = getattr(core, "scheduler", None)
        return cls(scheduler, finish_of) if callable(getattr(scheduler, "update_from_output", None)) else None

    def add(self, name: str, row: Row, closing: frozenset[int]) -> None:
        """Read the tokens of a request from now on."""
        self.running[name] = RunningRow(row, closing)

    def _update_and_read(self, scheduler_output: Any, model_output: Any) -> Any:
        """vLLM's update after a step; its outputs carry no log-probs."""
        if not self.running:
            return self._update(scheduler_output, model_output)
        logprobs, model_output.logprobs = model_output.logprobs, None
        outputs = self._update(scheduler_output, model_output)
        self._read(outputs, model_output.req_id_to_index, logprobs)
        return outputs

    def _read(self, outputs: Any, places: dict[str, int], logprobs: Any) -> None:
        # The first column has the sampled token. Without any, no row has a new token.
        values: list[float] = [] if logprobs is None else logprobs.logprobs[:, 0].tolist()
        starts: list[int] | None = None if logprobs is None else logprobs.cu_num_generated_tokens
        running = self.running
        for client in outputs.values():
            for output in client.outputs:
                name: str = output.request_id
                found = running.get(name)
                if found is None:  # it stopped in the step before
                    continue
                row, tokens, stopped = found.row, output.new_token_ids, False
                first = places[name] if tokens else 0
                if starts is not None and tokens:  # rows may have several tokens per step
                    first = starts[first]
                for number, token in enumerate(tokens, first):
                    row.tokens.append(token)
                    row.logprobs.append(values[number])
                    if token in found.closing and self._finish_of(row) is Finish.STOP:
                        stopped = True
                        break
                reason = output.finish_reason
                if stopped or reason is not None:
                    del running[name]
                    self.ended[name] = "" if reason is None else str(reason)

    def take_ended(self) -> dict[str, str]:
        """The requests that ended since the last call, with vLLM's reason; "": by a stop string, to be aborted."""
        ended, self.ended = self.ended, {}
        return ended
