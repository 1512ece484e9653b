"""In-process generation with vLLM: the fastest engine on a GPU for models of about one billion parameters and more.

In: `Generate` requests. Out: `Generation`s with the token ids and log-probs of vLLM's sampler. Supports continuous
batching (`open_session`), vLLM's prefix cache, switching LoRA adapters (`use_adapter`) and weight sync from a trainer
(`load_weights`).

Log-probs are those of the model at temperature 1 without top-p; of a request with a grammar, renormalized over the
tokens that it allows, since vLLM masks the logits before all else. vLLM's batch shapes vary, so logits differ by
rounding from run to run.
"""

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.extras import install_command
from stepladder.core.grammars.grammar import Constraint, Grammar
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.engines.base import EngineOptions, Replies, Session
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.transformers.token_sampler import GREEDY_BELOW, Row
from stepladder.models.adapters import is_adapter
from stepladder.models.gpu_memory import gpu_share
from stepladder.models.loading import NO_CODE, context_limit_of, end_tokens, reason_of, wrap_library_errors
from stepladder.models.resolve import resolve_full_model, resolve_model

#: Set before vLLM is imported: the engine core stays in this process (its weights are accessible), no telemetry.
_ENV_DEFAULTS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: Batch sizes captured as CUDA graphs. Nothing is compiled: that would take minutes.
_CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}
#: The maximum ranks of adapters that vLLM supports.
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class VLLMEngine(InProcessEngine):
    """A causal language model in vLLM."""

    name = "vllm"

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        max_batch: int = 1024,
        gpu_memory_utilization: float = 0.85,
        context_limit: int | None = None,
        adapter: str | Path | None = None,
        max_lora_rank: int | None = None,
        seeded: bool = True,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: a folder, a GGUF file, a hub name, a built-in name, or an adapter (which names its base model).

        `max_batch`: maximum number of running requests. `gpu_memory_utilization`: the fraction of the GPU's memory, or
        of our share of it, for weights and KV cache. `adapter`: a LoRA folder to start with. `max_lora_rank`: the
        highest rank of adapters loaded later. `seeded`: sampling depends on the request's seed alone; without it,
        sampling also depends on the batch and large batches are faster. `tokenizer`: replaces the model's own; must
        have the same ids. `chat`, `chat_template_kwargs`: as in `TransformersEngine`. `options` override the arguments
        of `vllm.LLM`.
        """
        vllm = _import_vllm()
        path = resolve_model(model)
        tokenizer_source = None
        if isinstance(path, Path) and is_adapter(path):
            if adapter is not None:
                raise StepladderError(f"{path} is itself an adapter: pass its base model, or leave out adapter")
            tokenizer_source = str(path) if (path / "tokenizer_config.json").is_file() else None
            adapter, path = path, resolve_full_model(path)
        if adapter is not None:
            max_lora_rank = max(max_lora_rank or 0, _lora_rank(Path(adapter)))
        name = str(path)
        with wrap_library_errors(lambda e: StepladderError(f"model '{model}' could not be loaded: {reason_of(e)}")):
            config = AutoConfig.from_pretrained(name, **NO_CODE).get_text_config()
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(tokenizer_source or name, **NO_CODE)
        self.context_limit = context_limit or context_limit_of(config)
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
            rank = next((each for each in _LORA_RANKS if each >= max_lora_rank), max_lora_rank)
            arguments |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
        try:
            self.llm: Any = vllm.LLM(name, **(arguments | dict(options or {})))
        except (RuntimeError, ValueError) as error:
            raise BackendDown(f"vLLM could not load '{model}': {error}") from error
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

    def _submit(self, row: Row) -> str:
        """Submit a row to vLLM; returns its request id."""
        sampled = row.sampling.temperature >= GREEDY_BELOW
        sampling_params = self._sampling_params(
            temperature=row.sampling.temperature if sampled else 0.0,
            top_p=row.sampling.top_p if sampled else 1.0,
            max_tokens=row.max_new_tokens,
            seed=row.seed % 2**63 if sampled and self.seeded else None,
            stop=list(row.stops) or None,
            stop_token_ids=sorted(self.end_tokens),
            ignore_eos=True,  # stop_token_ids has all of them
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            logprobs=0,
            output_kind=self._output_kind,
            **({"structured_outputs": self._structured_outputs(regex=row.regex)} if row.regex else {}),
        )
        self._num_requests += 1
        name = str(self._num_requests)
        prompt = {"prompt_token_ids": row.prompt_tokens}
        try:
            self.llm.llm_engine.add_request(name, prompt, sampling_params, lora_request=self._lora_request)
        except ValueError as error:
            if not row.regex:
                raise
            raise BackendDown(f"vLLM refuses the grammar of format: constrained ({error}); use lenient") from error
        return name

    def constrain(self, row: Row, grammar: Grammar) -> None:
        """Allow a row only what a grammar allows: vLLM enforces a regular expression."""
        constraint = Constraint(grammar, row.max_new_tokens, "characters")
        row.grammar, row.regex = constraint.dumps(), constraint.regex

    def _reply_from(self, row: Row, output: Any) -> Generation | BackendError:
        """The reply of a finished row."""
        (written,) = output.outputs
        if written.finish_reason in ("abort", "error"):
            if row.grammar:
                raise BackendDown("vLLM cannot compile the grammar of format: constrained (see its log); use lenient")
            return BackendError(f"vLLM ended the request without a reply ({written.finish_reason})")
        row.tokens = list(written.token_ids)
        row.logprobs = [min(at[token].logprob, 0.0) for token, at in zip(row.tokens, written.logprobs)]
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
        """Replace the model's weights; names are those of the checkpoint."""
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        with torch.no_grad(), _without_lora_wrappers(runner.model) as model:
            for weight in weights:
                model.load_weights([weight])
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Drop cached prefixes."""
        if not self.llm.llm_engine.reset_prefix_cache():
            raise BackendDown("vLLM still has running requests: its prefix cache can only be reset between requests")

    def close(self) -> None:
        """Free the GPU's memory."""
        engine = getattr(self.llm, "llm_engine", None)
        shutdown = getattr(getattr(engine, "engine_core", None), "shutdown", None)
        if shutdown is not None:
            shutdown()


def build(options: EngineOptions) -> VLLMEngine:
    """The engine for the options."""
    if options.model is None:
        raise StepladderError("the vllm engine needs a model: --model FOLDER or a hub name")
    return VLLMEngine(
        options.model, dtype=options.dtype, max_batch=options.max_batch, chat_template_kwargs=options.chat_options
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
            self.rows[self.engine._submit(row)] = row

    def step(self) -> Replies:
        """Run until at least one request finishes."""
        replies, self.ready = self.ready, {}
        while not replies and self.rows:
            for output in self.engine.llm.llm_engine.step():
                row = self.rows.pop(output.request_id, None) if output.finished else None
                if row is not None:  # otherwise it belongs to an abandoned session
                    replies[row.key] = self.engine._reply_from(row, output)
        return replies


@contextmanager
def _without_lora_wrappers(model: torch.nn.Module) -> Iterator[Any]:
    """The model without vLLM's LoRA wrappers, so that weights have their checkpoint names."""
    wrapped = [
        (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(getattr(layer, "base_layer", None), torch.nn.Module)
    ]
    for parent, name, layer in wrapped:
        setattr(parent, name, layer.base_layer)
    try:
        yield model
    finally:
        for parent, name, layer in wrapped:
            setattr(parent, name, layer)


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


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:  # no generation_config.json
        return None


def _lora_rank(adapter: Path) -> int:
    from peft import PeftConfig

    rank = getattr(PeftConfig.from_pretrained(str(adapter)), "r", None)
    if not isinstance(rank, int):
        raise StepladderError(f"{adapter} is not a LoRA adapter; vLLM supports no other kind")
    return rank
