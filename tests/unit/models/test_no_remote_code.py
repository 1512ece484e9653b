"""Models of unknown origin run no code: not by a question on the terminal, not from a folder, not by their config."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.judges.prm.reward_model import ProcessRewardModel
from stepladder.models.loading import load_model, load_tokenizer
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from tests.support import ROOT
from tests.support.samples import WordRetriever

CODE = """
from pathlib import Path
Path({trace!r}).touch()
from transformers import LlamaConfig as Config, LlamaForCausalLM as Model, PreTrainedTokenizerFast as Tokenizer
"""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody at the terminal who says yes to everything."""
    asked: list[str] = []

    def answer(text: str = "") -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


def folder_with_code(tmp_path: Path, **config: Any) -> Path:
    """A model folder whose config names code beside it."""
    folder = tmp_path / "downloaded"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "evil.py").write_text(CODE.format(trace=str(tmp_path / "ran")))
    change(folder / "config.json", **config)
    return folder


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


AUTO_MAP = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoModel": "evil.Model"}


def as_encoder(folder: Path) -> object:
    pytest.importorskip("sentence_transformers")
    from stepladder.retrieval.index.dense_config import EncoderConfig
    from stepladder.retrieval.index.encoder import Encoder

    return Encoder(EncoderConfig(encoder=str(folder)), device="cpu")


def as_reranker(folder: Path) -> object:
    pytest.importorskip("sentence_transformers")
    from stepladder.retrieval.rerank import RerankedRetriever

    return RerankedRetriever(WordRetriever(), folder, device="cpu")


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: load_model(folder, None, None),
        load_tokenizer,
        lambda folder: ProcessRewardModel.load(folder, device="cpu"),
        as_encoder,
        as_reranker,
    ],
    ids=["policy", "tokenizer", "reward model", "encoder", "reranker"],
)
def test_a_model_that_needs_its_own_code_is_an_error_of_one_line(
    tmp_path: Path, answers: list[str], load: Callable[[Path], object]
) -> None:
    folder = folder_with_code(tmp_path, model_type="evil", auto_map=AUTO_MAP)
    change(
        folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}
    )
    with pytest.raises(StepladderError, match="it needs Python code from its own files, which is never run") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert "trust_remote_code" not in str(caught.value)
    assert answers == []
    assert not (tmp_path / "ran").exists()


def test_a_known_model_that_also_brings_code_is_loaded_without_it(tmp_path: Path, answers: list[str]) -> None:
    folder = folder_with_code(tmp_path, auto_map=AUTO_MAP)
    model, _ = load_model(folder, None, None)
    assert type(model).__module__.startswith("transformers.")
    assert answers == []
    assert not (tmp_path / "ran").exists()


def test_the_modules_of_an_encoder_are_those_of_the_library(tmp_path: Path, answers: list[str]) -> None:
    folder = folder_with_code(tmp_path)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Model"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(StepladderError, match="is never run"):
        as_encoder(folder)
    assert answers == []
    assert not (tmp_path / "ran").exists()


def test_no_call_of_a_library_leaves_the_decision_to_it() -> None:
    """Every call that could load code says that it must not. `PeftModel` and `GenerationConfig` know no code."""
    missing = []
    for file in (ROOT / "src" / "stepladder").rglob("*.py"):
        for call in (each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Call)):
            name = ast.unparse(call.func)
            loads = name.endswith((".from_pretrained", "Classification.from_config"))
            loads = loads or name in ("SentenceTransformer", "CrossEncoder")
            if loads and not name.startswith(("PeftModel", "PeftConfig", "GenerationConfig")):
                passed = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
                missing += [f"{file.name}:{call.lineno} {name}"] if not {"NO_CODE", "source"} & {*passed} else []
    assert missing == []
