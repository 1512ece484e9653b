"""Generation in process with vLLM: for models from about a billion parameters on, the fastest way to write on a GPU.

In: `Generate` requests. Out: `Generation`s with the token ids and log-probs of vLLM's own sampler. Requests come and go
one by one (`open`), what was read before is not read again (vLLM's prefix cache), adapters are changed without a
restart (`use_adapter`), and a trainer hands over its weights as they become (`load_weights`).

Log-probs are those of the model itself, at temperature 1 and without top-p. vLLM computes in batches of changing shape,
so logits, and with them close calls, differ by rounding from one run to the next.
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
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.engines.base import Session
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.transformers.sampling import GREEDY_BELOW, Row
from stepladder.models.adapters import is_adapter
from stepladder.models.gpu_memory import gpu_share
from stepladder.models.loading import context_limit_of, end_tokens, quiet_libraries
from stepladder.models.resolve import place_of, whole_model

#: Set before vLLM is imported: it works in this process, where its weights can be reached, and calls nobody.
_ENV_DEFAULTS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: Passes of these many rows are recorded (CUDA graphs); nothing is compiled, which would take minutes.
_CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}


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
        """`model`: a folder, a GGUF file, a hub name, a built-in name, or an adapter, which names its model.

        `max_batch`: rows that write at the same time. `memory`: what vLLM takes of the GPU's memory, or of our share of
        it, for weights and cache together. `adapter`: a LoRA folder to begin with; `max_lora_rank`: the highest rank of
        those that will be used, where one is to come later. `seeded`: draws depend on the request's seed alone;
        without, on what else is in the batch too, and many rows at once are faster. `tokenizer`: another than the
        model's own, with the same ids. `chat`, `chat_template_kwargs`: as for transformers. `options` go to `vllm.LLM` as they
        are, and win.
        """
        vllm = _import_vllm()
        path = place_of(model)
        tokenizer_source = None
        if isinstance(path, Path) and is_adapter(path):
            if adapter is not None:
                raise StepladderError(f"{path} is an adapter itself: give its model, or no other adapter")
            tokenizer_source = str(path) if (path / "tokenizer_config.json").is_file() else None
            adapter, path = path, whole_model(path)
        if adapter is not None:
            max_lora_rank = max(max_lora_rank or 0, _lora_rank(Path(adapter)))
        name = str(path)
        with quiet_libraries():
            config = AutoConfig.from_pretrained(name).get_text_config()
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(tokenizer_source or name)
        self.context_limit = context_limit or context_limit_of(config)
        self.max_batch = max_batch
        self.seeded = seeded
        self.end_tokens = end_tokens(_generation_config(name), tokenizer)
        self.set_tokenizer(tokenizer, chat, chat_template_kwargs)
        self._sampling_params: Any = vllm.SamplingParams
        self._output_kind: Any = vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        self._lora_request: Any = None
        self._lora_ids: dict[tuple[Any, ...], int] = {}
        self._num_requests = 0
        arguments: dict[str, Any] = {
            "tokenizer": tokenizer_source or name,
            "dtype": _DTYPES[dtype],
            "max_model_len": self.context_limit,
            "max_num_seqs": max_batch,
            "gpu_memory_utilization": gpu_memory_utilization * gpu_share(),
            "enable_prefix_caching": True,
            "generation_config": "vllm",  # else top-p, top-k and penalties of the checkpoint would be applied
            "logprobs_mode": "raw_logprobs",
            "compilation_config": {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [rows for rows in _CAPTURE_SIZES if rows <= max_batch] or [1],
            },
            "disable_log_stats": True,
        }
        if max_lora_rank is not None:
            arguments |= {"enable_lora": True, "max_lora_rank": _supported_rank(max_lora_rank), "max_loras": 1}
        try:
            self.llm: Any = vllm.LLM(name, **(arguments | dict(options or {})))
        except (RuntimeError, ValueError) as error:
            raise BackendDown(f"vLLM could not load '{model}': {error}") from error
        if adapter is not None:
            self.use_adapter(adapter)

    # --- generation

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order."""
        session = _Session(self)
        session.add(dict(enumerate(requests)))
        replies: dict[Hashable, Generation | BackendError] = {}
        while len(replies) < len(requests):
            replies |= session.step()
        return [replies[index] for index in range(len(requests))]

    def open_session(self) -> "Session":
        """Room for requests that come and go one by one."""
        return _Session(self)

    def _submit(self, row: Row) -> str:
        """Hand a row to vLLM; by which name it answers."""
        sampled = row.sampling.temperature >= GREEDY_BELOW
        sampling_params = self._sampling_params(
            temperature=row.sampling.temperature if sampled else 0.0,
            top_p=row.sampling.top_p if sampled else 1.0,
            max_tokens=row.max_new_tokens,
            seed=row.seed % 2**63 if sampled and self.seeded else None,
            stop=list(row.stops) or None,
            stop_token_ids=sorted(self.end_tokens),
            ignore_eos=True,  # those above are all that count
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            logprobs=0,
            output_kind=self._output_kind,
        )
        self._num_requests += 1
        name = str(self._num_requests)
        self.llm.llm_engine.add_request(
            name, {"prompt_token_ids": row.prompt_tokens}, sampling_params, lora_request=self._lora_request
        )
        return name

    def _reply_from(self, row: Row, output: Any) -> Generation:
        """The reply to a row that vLLM has written."""
        (written,) = output.outputs
        row.tokens = list(written.token_ids)
        row.logprobs = [min(at[token].logprob, 0.0) for token, at in zip(row.tokens, written.logprobs)]
        row.finish = (self.finish_of(row) if row.tokens else None) or Finish.END
        return self.reply_of(row)

    # --- weights

    def use_adapter(self, folder: str | Path | None) -> None:
        """Write with this LoRA adapter from now on, or with none. Requests under way keep theirs."""
        if folder is None:
            self._lora_request = None
            return
        from vllm.lora.request import LoRARequest  # type: ignore[import-not-found, unused-ignore]

        path = Path(folder).expanduser().absolute()
        # vLLM keeps what it has read by the adapter's name, so adapters in folders of one name, and new files in the
        # same folder, must have names of their own.
        files = tuple(sorted((each.name, each.stat().st_mtime_ns) for each in path.glob("adapter_*")))
        lora_id = self._lora_ids.setdefault((path, files), len(self._lora_ids) + 1)
        self._lora_request = LoRARequest(f"{lora_id} {path}", lora_id, str(path))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Write with these weights from now on; their names are those of the model's files."""
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        with torch.no_grad(), _without_lora_wrappers(runner.model) as model:
            for weight in weights:
                model.load_weights([weight])
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Drop what was kept of earlier transcripts."""
        if not self.llm.llm_engine.reset_prefix_cache():
            raise BackendDown("vLLM is still writing: its cache can only be dropped between requests")

    def close(self) -> None:
        """Give the GPU's memory back."""
        engine = getattr(self.llm, "llm_engine", None)
        shutdown = getattr(getattr(engine, "engine_core", None), "shutdown", None)
        if shutdown is not None:
            shutdown()


class _Session(Session):
    """Requests under way in vLLM, which schedules them by itself."""

    def __init__(self, engine: VLLMEngine) -> None:
        self.engine = engine
        self.rows: dict[str, Row] = {}
        #: Replies that cost no work.
        self.ready: dict[Hashable, Generation | BackendError] = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Begin with requests."""
        rows, replies = self.engine.prepare(requests)
        self.ready |= replies
        for row in rows:
            self.rows[self.engine._submit(row)] = row

    def step(self) -> dict[Hashable, Generation | BackendError]:
        """Go on until at least one request is answered."""
        replies, self.ready = self.ready, {}
        while not replies and self.rows:
            for output in self.engine.llm.llm_engine.step():
                row = self.rows.pop(output.request_id, None) if output.finished else None
                if row is not None:  # else one of a session that was given up
                    replies[row.key] = self.engine._reply_from(row, output)
        return replies


@contextmanager
def _without_lora_wrappers(model: torch.nn.Module) -> Iterator[Any]:
    """The model without what vLLM has put around its layers for adapters: weights have their own names again."""
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
            f"the vllm engine needs vLLM, which is not here ({error}): {install_command('vllm')} on a machine "
            "with an NVIDIA GPU, or use the engine transformers"
        ) from error
    return vllm


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:  # it has no such file
        return None


def _lora_rank(adapter: Path) -> int:
    from peft import PeftConfig

    rank = getattr(PeftConfig.from_pretrained(str(adapter)), "r", None)
    if not isinstance(rank, int):
        raise StepladderError(f"the adapter {adapter} is none of LoRA; vLLM can use no other kind")
    return rank


def _supported_rank(rank: int) -> int:
    """vLLM knows some ranks only: the least that is enough."""
    allowed = (8, 16, 32, 64, 128, 256, 320, 512)
    return next((each for each in allowed if each >= rank), rank)
