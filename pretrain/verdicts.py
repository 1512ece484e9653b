"""Does the model see that something is wrong? Verdicts on documents of worlds that it was never trained on.

    python -m pretrain.verdicts src/stepladder/models/nano-critic

For every kind of checked document: how many verdicts there were, and how often a right thing gets a better verdict than
a wrong one (AUC of log p(yes) - log p(no)).
"""

import argparse
import random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pretrain.checks import RIGHT, VERDICT, WRONG, Checks
from pretrain.source import Source
from pretrain.styles import tidy
from pretrain.train import CHECKED_KINDS, CONTEXT, HELD_OUT_WORLDS
from stepladder.data.atlas import generate_atlas
from stepladder.evaluation.prm.ranking import auc


@torch.inference_mode()
def verdicts(model: Any, tokenizer: Any, checks: Checks, kind: str, documents: int) -> tuple[list[float], list[bool]]:
    """Scores and truths of all verdicts in some documents of a kind."""
    scores: list[float] = []
    truths: list[bool] = []
    right, wrong = (tokenizer(word, add_special_tokens=False)["input_ids"][-1] for word in (RIGHT, WRONG))
    for _ in range(documents):
        ids: list[int] = []
        places: list[int] = []
        for text, weight in tidy(getattr(checks, kind)()):
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            if weight == VERDICT:
                places.append(len(ids) + len(piece) - 1)
            ids += piece
        if len(ids) > CONTEXT:
            continue
        logps = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in places:
            scores.append(float(logps[place - 1, right] - logps[place - 1, wrong]))
            truths.append(ids[place] == right)
    return scores, truths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=int, default=200, help="of each kind")
    given = parser.parse_args()
    model: Any = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    world = generate_atlas("small", seed=HELD_OUT_WORLDS[0], avoid=generate_atlas().name_words)
    checks = Checks(Source(world, random.Random(0)))
    for kind in CHECKED_KINDS:
        scores, truths = verdicts(model, tokenizer, checks, kind, given.documents)
        print(f"{kind.replace('_', ' '):<12} {len(truths):>5} verdicts, AUC {auc(scores, truths):.3f}")


if __name__ == "__main__":
    main()
