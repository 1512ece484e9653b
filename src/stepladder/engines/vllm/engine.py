"""In-process generation with vLLM: the fastest engine on a GPU for models of about one billion parameters and more.

In: `Generate` requests. Out: `Generation`s with the token ids and log-probs of vLLM's sampler. Supports continuous
batching (`open_session`), vLLM's prefix cache, switching LoRA adapters (`use_adapter`), several GPUs per model and
weight sync from a trainer (`load_weights`).

Log-probs are those of the model at temperature 1 without top-p; of a request with a grammar, renormalized over the
tokens that it allows, since vLLM masks the logits before all else. vLLM's batch shapes vary, so logits differ by
rounding from run to run.

Seeds are cheap with vLLM's second model runner, the default of dense models: it draws Gumbel noise from a hash of the
request's seed and the position, for all rows in one kernel. The first one has a torch generator for each seeded row and
calls them one by one.
"""

import gc
import logging
import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.extras import install_command
from stepladder.core.grammars.grammar import Constraint, Grammar
from stepladder.core.io import launch
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.trace import Author
from stepladder.engines.base import EngineOptions, Replies, Session
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.transformers.token_sampler import GREEDY_BELOW, Row
from stepladder.engines.vllm.lora import LORA_RANKS, lora_rank, without_lora_wrappers
from stepladder.engines.vllm.sampled_tokens import SampledTokens
from stepladder.engines.vllm.settings import VLLMConfig, check_fits, loading_advice
from stepladder.models.adapters import is_adapter
from stepladder.models.gpu_memory import gpu_share
from stepladder.models.loading import NO_CODE, context_limit_of, end_tokens, reason_of, wrap_library_errors
from stepladder.models.resolve import resolve_full_model, resolve_model

log = logging.getLogger(__name__)

#: Set before vLLM is imported: the engine core stays in this process (its scheduler and its weights are accessible),
#: no telemetry.
_ENV_DEFAULTS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: Batch sizes captured as CUDA graphs. Nothing is compiled: that would take minutes.
_CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}


class VLLMEngine(InProcessEngine):
    """A causal language model in vLLM."""

    name = "vllm"
    join_share = 1_000_000  # vLLM takes in requests at every step

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        max_batch: int = 1024,
        max_model_len: int | None = None,
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = VLLMConfig().gpu_memory_utilization,
        adapter: str | Path | None = None,
        max_lora_rank: int | None = None,
        seeded: bool = True,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: a folder, a GGUF file, a hub name, a built-in name, or an adapter (which names its base model).

        `max_batch`: maximum number of running requests. `max_model_len`: the context length, by default the model's.
        `tensor_parallel_size`: GPUs that share the layers. `gpu_memory_utilization`: the fraction of the GPU's memory,
        or of our share of it, for weights and KV cache. `adapter`: a LoRA folder to start with. `max_lora_rank`: the
        highest rank of adapters loaded later. `seeded`: sampling depends on the request's seed alone; without it,
        sampling also depends on the batch. `tokenizer`: replaces the model's own; must have the same ids. `chat`,
        `chat_template_kwargs`: as in `TransformersEngine`. `options` override the arguments of `vllm.LLM`.
        """
        settings = VLLMConfig(
            max_model_len=max_model_len,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
        )
        vllm = _import_vllm()
        path = resolve_model(model)
        tokenizer_source = None
        if isinstance(path, Path) and is_adapter(path):
            if adapter is not None:
                raise StepladderError(f"{path} is itself an adapter: pass its base model, or leave out adapter")
            tokenizer_source = str(path) if (path / "tokenizer_config.json").is_file() else None
            adapter, path = path, resolve_full_model(path)
        if adapter is not None:
            max_lora_rank = max(max_lora_rank or 0, lora_rank(Path(adapter)))
        name = str(path)
        with wrap_library_errors(lambda e: StepladderError(f"model '{model}' could not be loaded: {reason_of(e)}")):
            config = AutoConfig.from_pretrained(name, **NO_CODE).get_text_config()
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(tokenizer_source or name, **NO_CODE)
        self.model_context = context_limit_of(config)
        check_fits(name, config, settings, self.model_context, torch.cuda.device_count())
        self.context_limit = max_model_len or self.model_context
        self.tensor_parallel_size = tensor_parallel_size
        self.max_batch = max_batch
        self.seeded = seeded
        self.end_tokens = end_tokens(_generation_config(name), tokenizer)
        self.set_tokenizer(tokenizer, chat, chat_template_kwargs)
        self._sampling_params: Any = vllm.SamplingParams
        self._structured_outputs: Any = vllm.sampling_params.StructuredOutputsParams
        self._output_kind: Any = vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        self._lora_request: Any = None
        self._lora_ids: dict[tuple[Any, ...], int] = {}
        self._num_requests = 0
        arguments: dict[str, Any] = {
            "tokenizer": tokenizer_source or name,
            **NO_CODE,
            "dtype": _DTYPES[dtype],
            "max_model_len": self.context_limit,
            "max_num_seqs": max_batch,
            "tensor_parallel_size": tensor_parallel_size,
            "gpu_memory_utilization": gpu_memory_utilization * gpu_share(),
            "enable_prefix_caching": True,
            "generation_config": "vllm",  # ignore sampling defaults (top-p, top-k, penalties) of the checkpoint
            "logprobs_mode": "raw_logprobs",
            "compilation_config": {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [rows for rows in _CAPTURE_SIZES if rows <= max_batch] or [1],
            },
            "disable_log_stats": True,
        }
        if max_lora_rank is not None:
            rank = next((each for each in LORA_RANKS if each >= max_lora_rank), max_lora_rank)
            arguments |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
        _free_cached_memory()  # of a training before: vLLM counts what is free
        try:
            self.llm: Any = vllm.LLM(name, **(arguments | dict(options or {})))
        except (RuntimeError, ValueError) as error:
            problem = str(error).rstrip(".")
            raise BackendDown(f"vLLM could not load '{model}': {problem}{loading_advice(problem)}") from error
        self.sampled_tokens = SampledTokens.attach(self.llm.llm_engine, self.finish_of)
        if self.sampled_tokens is None:
            log.warning(
                "vLLM's scheduler is not accessible in this process: log-probs and stop strings are vLLM's own, which "
                "is slower (is VLLM_ENABLE_V1_MULTIPROCESSING set?)"
            )
        if adapter is not None:
            self.use_adapter(adapter)

    # --- generation

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Generate a reply to every request, in order."""
        session = _Session(self)
        session.add(dict(enumerate(requests)))
        replies: Replies = {}
        while len(replies) < len(requests):
            replies |= session.step()
        return [replies[index] for index in range(len(requests))]

    def open_session(self) -> "Session":
        """A session for continuous batching."""
        return _Session(self)

    def prepare(self, requests: Mapping[Hashable, Generate]) -> tuple[list[Row], Replies]:
        """The rows to generate, and the replies to requests that need no generation or cannot run."""
        rows, replies = super().prepare(requests)
        if self.context_limit < self.model_context:
            for key, reply in replies.items():
                if not isinstance(reply, Generation) or any(each.author is Author.POLICY for each in reply.context):
                    continue
                length = sum(len(segment.tokens) for segment in reply.context)
                replies[key] = BackendError(
                    f"a prompt of {length:,} tokens does not fit max_model_len {self.context_limit:,}: raise it (the "
                    f"model's context is {self.model_context:,} tokens)"
                )
        return rows, replies

    def submit_row(self, row: Row) -> str:
        """Submit a row to vLLM; returns its request id."""
        sampled = row.sampling.temperature >= GREEDY_BELOW
        sampling_params = self._sampling_params(
            temperature=row.sampling.temperature if sampled else 0.0,
            top_p=row.sampling.top_p if sampled else 1.0,
            max_tokens=row.max_new_tokens,
            seed=row.seed % 2**63 if sampled and self.seeded else None,
            stop_token_ids=sorted(self.end_tokens),
            ignore_eos=True,  # stop_token_ids has all of them
            logprobs=0,
            output_kind=self._output_kind,
            **({"structured_outputs": self._structured_outputs(regex=row.regex)} if row.regex else {}),
            **({"detokenize": False} if self.sampled_tokens is not None else _stop_options(row)),
        )
        self._num_requests += 1
        name = str(self._num_requests)
        prompt = {"prompt_token_ids": row.prompt_tokens}
        try:
            own = self.llm.llm_engine.add_request(name, prompt, sampling_params, lora_request=self._lora_request)
        except ValueError as error:
            if not row.regex:
                raise
            raise BackendDown(f"vLLM refuses the grammar of format: constrained ({error}); use lenient") from error
        if self.sampled_tokens is None:
            return name
        self.sampled_tokens.add(own, row, self.closing_tokens_of(row.stops) if row.stops else frozenset())
        return str(own)

    def step(self) -> Mapping[str, Any]:
        """Run one step of vLLM. By request id, what has ended: vLLM's reason, or vLLM's output with the tokens."""
        outputs = self.llm.llm_engine.step()
        if self.sampled_tokens is None:
            return {output.request_id: output for output in outputs if output.finished}
        ended = self.sampled_tokens.take_ended()
        if stopped := [name for name, reason in ended.items() if not reason]:
            self.llm.llm_engine.abort_request(stopped, internal=True)
        return ended

    def constrain(self, row: Row, grammar: Grammar) -> None:
        """Allow a row only what a grammar allows: vLLM enforces a regular expression."""
        constraint = Constraint(grammar, row.max_new_tokens, "characters")
        row.grammar, row.regex = constraint.dumps(), constraint.regex

    def reply_from(self, row: Row, ended: Any) -> Generation | BackendError:
        """The reply of a row that has ended; `ended`: vLLM's reason, or vLLM's output with the tokens."""
        reason = ended
        if not isinstance(ended, str):
            (written,) = ended.outputs
            reason = written.finish_reason
            row.tokens = list(written.token_ids)
            row.logprobs = [at[token].logprob for token, at in zip(row.tokens, written.logprobs or ())]
        if reason in ("abort", "error"):
            if row.grammar:
                raise BackendDown("vLLM cannot compile the grammar of format: constrained (see its log); use lenient")
            return BackendError(f"vLLM ended the request without a reply ({reason})")
        if any(math.isnan(value) for value in row.logprobs):
            return BackendError("the model's logits are NaN: its weights are corrupt, or its dtype is too narrow")
        row.logprobs = [min(value, 0.0) for value in row.logprobs]
        row.finish = (self.finish_of(row) if row.tokens else None) or Finish.END
        return self.reply_of(row)

    # --- weights

    def use_adapter(self, folder: str | Path | None) -> None:
        """Use this LoRA adapter for new requests, or none. Running requests keep theirs."""
        if folder is None:
            self._lora_request = None
            return
        from vllm.lora.request import LoRARequest  # type: ignore[import-not-found, unused-ignore]

        path = Path(folder).expanduser().absolute()
        # vLLM caches adapters by name and id, so every folder, and every new version of its files, needs its own.
        files = tuple(sorted((each.name, each.stat().st_mtime_ns) for each in path.glob("adapter_*")))
        lora_id = self._lora_ids.setdefault((path, files), len(self._lora_ids) + 1)
        self._lora_request = LoRARequest(f"{lora_id} {path}", lora_id, str(path))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights of the model, in memory; names are those of the checkpoint."""
        if self.tensor_parallel_size > 1:
            raise StepladderError("weights in training cannot be sent to a vLLM with tensor_parallel_size above 1")
        self._finish_steps()
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        with torch.no_grad(), without_lora_wrappers(runner.model) as model:
            model.load_weights(weights)
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Drop cached prefixes."""
        self._finish_steps()
        if not self.llm.llm_engine.reset_prefix_cache():
            raise BackendDown("vLLM still has running requests: its prefix cache can only be reset between requests")

    def _finish_steps(self) -> None:
        """Take in the step that vLLM has begun ahead of time for rows that were aborted since."""
        if self.sampled_tokens is None or self.sampled_tokens.running:
            return
        while getattr(self.llm.llm_engine.engine_core.engine_core, "batch_queue", None):
            self.llm.llm_engine.step()

    def close(self) -> None:
        """Give back the GPU's memory, to a training or to another vLLM in this process."""
        engine = getattr(self.llm, "llm_engine", None)
        shutdown = getattr(getattr(engine, "engine_core", None), "shutdown", None)
        if shutdown is not None:
            shutdown()
        self.llm = self.sampled_tokens = None
        _leave_process_groups()
        _drop_graph_pool()
        _free_cached_memory()


def build(options: EngineOptions) -> VLLMEngine:
    """The engine for the options."""
    if options.model is None:
        raise StepladderError("the vllm engine needs a model: --model FOLDER or a hub name")
    return VLLMEngine(
        options.model,
        dtype=options.dtype,
        max_batch=options.max_batch,
        chat_template_kwargs=options.chat_options,
        **dict(options.vllm or {}),
    )


class _Session(Session):
    """Requests running in vLLM's scheduler."""

    def __init__(self, engine: VLLMEngine) -> None:
        self.engine = engine
        self.rows: dict[str, Row] = {}
        #: Replies that need no generation.
        self.ready: Replies = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Submit requests."""
        rows, replies = self.engine.prepare(requests)
        self.ready |= replies
        for row in rows:
            self.rows[self.engine.submit_row(row)] = row

    def step(self) -> Replies:
        """Run until at least one request finishes."""
        replies, self.ready = self.ready, {}
        while not replies and self.rows:
            for name, ended in self.engine.step().items():
                row = self.rows.pop(name, None)
                if row is not None:  # otherwise it belongs to an abandoned session
                    replies[row.key] = self.engine.reply_from(row, ended)
        return replies


def _stop_options(row: Row) -> dict[str, Any]:
    """vLLM's own stop strings, on text with special tokens."""
    return {
        "stop": list(row.stops) or None,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def _import_vllm() -> Any:
    for name, value in _ENV_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise StepladderError(
            f"the vllm engine needs vLLM, which is not installed ({error}): {install_command('vllm')} on a machine "
            "with an NVIDIA GPU, or use the transformers engine"
        ) from error
    return vllm


def _leave_process_groups() -> None:
    """End vLLM's process groups, and torch's if vLLM made it: a training afterwards would join it."""
    from vllm.distributed import parallel_state  # type: ignore[import-not-found, unused-ignore]

    parallel_state.destroy_model_parallel()
    if launch.world_size() == 1:
        parallel_state.destroy_distributed_environment()


def _drop_graph_pool() -> None:
    """Let the next vLLM of this process make its own memory pool for CUDA graphs. vLLM keeps one for all, which torch
    refuses to capture into once the graphs of the closed one are gone and some of its memory is not.
    """
    from vllm.platforms import current_platform  # type: ignore[import-not-found, unused-ignore]

    type(current_platform)._global_graph_pool = None


def _free_cached_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:  # no generation_config.json
        return None
