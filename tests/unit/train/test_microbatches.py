"""Batches in parts, and logits of some tokens alone: the same losses and gradients, in less memory."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import CohereConfig, Gemma2Config, GPT2Config, LlamaConfig, LlamaForCausalLM

from stepladder.models.tiny import tiny_model
from stepladder.train.loop import microbatches as parts
from stepladder.train.loop.microbatches import max_microbatch_tokens, split_microbatches
from stepladder.train.transcripts.selected_logits import selected_logits
from tests.support.random_models import HEADS, SMALL, random_model


def rows(count: int = 4, width: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(5, 255, (count, width), generator=generator)
    return ids_BT, torch.rand(count, width, generator=generator) < 0.2


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(tiny_model, id="llama"),
        pytest.param(lambda: random_model(GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2)), id="gpt2"),
        pytest.param(
            lambda: random_model(Gemma2Config(**SMALL, **HEADS, final_logit_softcapping=0.05)), id="capped logits"
        ),
        pytest.param(
            lambda: random_model(CohereConfig(**SMALL, num_attention_heads=2, logit_scale=0.3)), id="scaled logits"
        ),
    ],
)
def test_logits_are_those_of_the_whole(model: Any) -> None:
    built, (ids_BT, wanted_BT) = model().eval(), rows()
    whole_NV = built(input_ids=ids_BT).logits[wanted_BT]
    computed: list[int] = []
    built.get_output_embeddings().register_forward_hook(lambda _, inputs, __: computed.append(inputs[0].shape[1]))
    found_NV = selected_logits(built, ids_BT, wanted_BT)
    assert torch.allclose(found_NV, whole_NV, atol=1e-5)
    assert computed == [-(-int(wanted_BT.sum()) // 32) * 32]  # not of all 160


def test_a_model_whose_output_layer_is_not_called_computes_all() -> None:
    class Other(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:  # type: ignore[override]
            hidden = self.model(input_ids=input_ids).last_hidden_state
            return type("Output", (), {"logits": hidden @ self.lm_head.weight.T})()

    torch.manual_seed(0)
    built, (ids_BT, wanted_BT) = Other(LlamaConfig(**SMALL, **HEADS)), rows()
    assert torch.allclose(
        selected_logits(built, ids_BT, wanted_BT), built(input_ids=ids_BT).logits[wanted_BT], atol=1e-6
    )


def test_gradients_are_the_same_and_nothing_stays_behind() -> None:
    built, (ids_BT, wanted_BT) = tiny_model(), rows()
    wanted_BT[:, -1] = False
    written_N = ids_BT[:, 1:][wanted_BT[:, :-1]]

    def gradients(logits_NV: torch.Tensor) -> list[torch.Tensor]:
        built.zero_grad()
        cross_entropy(logits_NV, written_N).backward()
        return [weights.grad.clone() for weights in built.parameters() if weights.grad is not None]

    whole = gradients(built(input_ids=ids_BT).logits[wanted_BT])
    some = gradients(selected_logits(built, ids_BT, wanted_BT))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, some, strict=True))
    assert not built.get_output_embeddings()._forward_pre_hooks


def test_parts_have_every_row_once_and_are_no_larger_than_they_may_be() -> None:
    lengths = torch.tensor([5, 30, 7, 30, 6, 100])
    batch = {
        "ids": torch.arange(6)[:, None] * torch.ones(1, 100, dtype=torch.long),
        "names": list("abcdef"),
        "all": torch.tensor(9.0),
        "count": 6,
    }
    found = list(split_microbatches(batch, lengths, 60))
    assert [part["names"] for part in found] == [["a", "e", "c"], ["b", "d"], ["f"]]
    assert [part["ids"][:, 0].tolist() for part in found] == [[0, 4, 2], [1, 3], [5]]
    assert all(part["all"] == 9 and part["count"] == 6 for part in found)
    assert [part["names"] for part in split_microbatches(batch, lengths, None)] == [list("abcdef")]
    assert [part["names"] for part in split_microbatches(batch, lengths, 600)] == [list("abcdef")]


def test_large_models_have_a_bound_and_small_ones_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert max_microbatch_tokens(tiny_model(), cpu) is None
    monkeypatch.setattr(parts, "_SMALL", 1)
    tiny = max_microbatch_tokens(tiny_model(), cpu)
    assert tiny is not None
    config = tiny_model().config
    config.num_hidden_layers *= 2
    deeper = max_microbatch_tokens(LlamaForCausalLM(config), cpu)
    assert deeper == tiny // 2
