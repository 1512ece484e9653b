"""`recipes` lists the built-in recipes with what they need, from the recipe files alone."""

import json

import pytest

from stepladder import cli
from stepladder.pipeline.recipe import shipped


def test_every_recipe_says_what_it_does_and_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(found) == list(shipped())
    assert all(all(each.values()) for each in found.values())
    nano, real = found["prorag-nano"], found["prorag-qwen1.5b"]
    assert nano["about"].startswith("ProRAG on Atlas with nano, the built-in model")
    assert nano["about"].endswith("prorag-nano-large has the same stages with more data.")
    assert (nano["model"], nano["data"], nano["needs"]) == ("nano", "atlas", "a CPU; no key, no download")
    assert nano["time"] == "7 minutes on two cores with fast bf16, 24 without"
    assert real["needs"].startswith("one GPU from 40 GB on, the extra vllm, the questions of three published sets")
    assert real["needs"].endswith("(docs/data.md)"), "continued lines belong to it"


def test_the_list_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    printed = capsys.readouterr().out
    for name in shipped():
        assert f"{name}: " in printed
    assert "\n  trains  nano on atlas" in printed
    assert "`stepladder recipes NAME` shows one with its comments; `stepladder run NAME --out DIR` runs it" in printed


def test_one_recipe_is_printed_with_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes", "tree-nano"]) == 0
    assert capsys.readouterr().out == shipped()["tree-nano"].read_text()
    assert cli.main(["recipes", "tree-nano", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == shipped()["tree-nano"].read_text()
