"""Data sets by name: folders, published sets, several joined; read when asked for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.trace import GoldText, Passage, Question
from stepladder.data import absolute_name, data_files, load_dataset
from stepladder.data.data_config import DataConfig
from stepladder.data.formats.base import read_questions
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import load_recipe
from tests.support.question_files import ADA, HOTPOT, RAIN, TWOWIKI, write

CORPUS = [{"id": "p1", "contents": '"Rain"\nRain is a film.'}, {"id": "p2", "contents": '"Rain"\nIt is wet.'}]


def line(key: str, **metadata: Any) -> dict[str, Any]:
    return {"id": key, "question": f"Who made {key}?", "golden_answers": ["Ada Orm"], "metadata": metadata}


def data_set(folder: Path, questions: int, corpus: Sequence[dict[str, str]]) -> Path:
    folder.mkdir(parents=True)
    numbers = range(questions)
    write(folder / "train.jsonl", *(line(f"t{number}", supporting_facts={"ids": [["p1"]]}) for number in numbers))
    write(folder / "corpus.jsonl", *corpus)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = data_set(tmp_path / "sets" / "rain", 4, CORPUS)
    write(made / "dev.jsonl.gz", line("d0"))
    (made / "README.md").write_text("# Rain")
    return made


@pytest.fixture
def other(tmp_path: Path) -> Path:
    made = data_set(tmp_path / "sets" / "dust", 2, CORPUS[:1])
    write(made / "test.jsonl", line("x"))
    return made


def test_a_folder(folder: Path) -> None:
    data = load_dataset(str(folder))
    assert (data.name, list(data.questions), len(data.split("train"))) == ("rain", ["train", "dev"], 4)
    assert list(data.passages or ()) == [Passage("p1", "Rain", "Rain is a film."), Passage("p2", "Rain", "It is wet.")]
    with pytest.raises(StepladderError, match="unknown split of rain 'test'"):
        data.split("test")


def test_splits_and_passages_are_read_when_asked_for(folder: Path) -> None:
    data = load_dataset(str(folder))
    train = data.split("train")
    (folder / "train.jsonl").unlink()
    (folder / "dev.jsonl.gz").write_bytes(b"no gzip")
    (folder / "corpus.jsonl").write_text("no json")
    assert data.split("train") is train
    with pytest.raises(StepladderError, match="the content is not"):
        data.split("dev")
    assert data.passages is not None
    with pytest.raises(StepladderError, match="not JSON"):
        len(data.passages)


def test_files_as_the_sets_call_them(tmp_path: Path) -> None:
    write(tmp_path / "hotpot_train_v1.1.json", HOTPOT)
    write(tmp_path / "hotpot_dev_distractor_v1.json", {**HOTPOT, "_id": "d"})
    write(tmp_path / "hotpot_dev_fullwiki_v1.json", {**HOTPOT, "_id": "f"})
    write(tmp_path / "hotpot_test_fullwiki_v1.json", {"_id": "t", "question": "Who?", "context": [RAIN, ADA]})
    data = load_dataset(str(tmp_path))
    assert {split: group[0].id for split, group in data.questions.items()} == {"train": "5ade", "dev": "d"}
    assert len(data.passages or ()) == 3


def test_two_files_for_one_split_are_one_too_many(folder: Path) -> None:
    write(folder / "train.json", TWOWIKI)
    with pytest.raises(StepladderError, match=r"several files for the split train: train.json, train.jsonl"):
        load_dataset(str(folder))


def test_a_folder_without_questions(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"expected train, dev or test questions in it .* found nothing"):
        load_dataset(str(tmp_path))
    write(tmp_path / "test.json", {"_id": "t", "question": "Who?", "context": [RAIN]})
    with pytest.raises(StepladderError, match=r"the questions of test.json have no answers"):
        load_dataset(str(tmp_path))


def test_titles_find_gold_passages_in_the_corpus_or_in_the_context(folder: Path) -> None:
    titled = {"supporting_facts": {"title": ["Rain", "Rain"], "sent_id": [0, 1]}}
    write(folder / "dev.jsonl", line("q", **titled))
    (folder / "dev.jsonl.gz").unlink()
    assert load_dataset(str(folder)).split("dev")[0].gold_passages == (("p1", "p2"),)
    context = {"context": {"title": ["Rain"], "content": [["Rain is a film."]]}}
    (alone,) = read_questions(write(folder / "alone.jsonl", line("q", **titled, **context))).questions
    assert alone.gold_passages == (("Rain",),)
    assert list(load_dataset(str(folder / "alone.jsonl")).passages or ()) == [
        Passage("Rain", "Rain", "Rain is a film.")
    ]


def test_without_a_corpus_a_title_is_an_id_that_any_index_is_searched_for(folder: Path) -> None:
    facts = {"supporting_facts": {"title": ["Rain", "Ada Orm"], "sent_id": [0, 1]}}
    (question,) = read_questions(write(folder / "alone.jsonl", line("q", **facts))).questions
    assert question.gold_passages == (("Rain",), ("Ada Orm",))
    assert question.gold_texts == (GoldText("Rain", "Rain"), GoldText("Ada Orm", "Ada Orm"))


def test_gold_passages_are_described_by_the_corpus(folder: Path) -> None:
    facts = {"title": ["Rain", "Dust"], "ids": [["p3", "p4"], ["gone"]]}
    write(folder / "train.jsonl", {**line("q", supporting_facts=facts), "golden_answers": ["Velm"]})
    texts = {"p3": '"Rain"\nRain fell on Velm.', "p4": '"Rain (film)"\nA film.', "p5": '"Dust"\nDust fell.'}
    write(folder / "corpus.jsonl", *({"id": key, "contents": text} for key, text in texts.items()))
    (question,) = load_dataset(str(folder)).split("train")
    assert question.gold_texts == (
        GoldText("p3", "Rain", ("Rain fell on Velm.",)),
        GoldText("p4", "Rain (film)", ("A film.",)),
        GoldText("gone", "Dust"),
    )


def test_of_an_article_in_hundreds_of_passages_few_are_described_those_with_the_answer_first(folder: Path) -> None:
    facts = {"title": ["Rain", "Dust"], "sent_id": [0, 0]}
    write(folder / "train.jsonl", {**line("q", supporting_facts=facts), "golden_answers": ["Velm"]})
    cut = [{"id": f"r{n}", "contents": f'"Rain"\nPart {n} is about rain.'} for n in range(200)]
    cut += [{"id": "last", "contents": '"Rain"\nRain fell on Velm.'}, {"id": "d", "contents": '"Dust"\nDust fell.'}]
    write(folder / "corpus.jsonl", *cut)
    (question,) = load_dataset(str(folder)).split("train")
    assert [len(group) for group in question.gold_passages] == [201, 1]
    assert [text.id for text in question.gold_texts] == ["last", *(f"r{n}" for n in range(7)), "d"]


def test_chains_are_made_of_texts_in_the_corpus(folder: Path) -> None:
    facts = {"title": ["Rain", "Ada Orm"], "ids": [["p3"], ["p4"]]}
    asked = {**line("q", type="bridge", supporting_facts=facts), "question": "Where did the director of Rain die?"}
    write(folder / "train.jsonl", {**asked, "golden_answers": ["Velm"]})
    texts = {"p3": f'"Rain"\n{"".join(RAIN[1])}', "p4": f'"Ada Orm"\n{"".join(ADA[1])}'}
    write(folder / "corpus.jsonl", *({"id": key, "contents": text} for key, text in texts.items()))
    (question,) = load_dataset(str(folder)).split("train")
    assert [(hop.question, hop.passages) for hop in question.hops] == [
        ("Who is the director of Rain?", ("p3",)),
        ("Where did #1 die?", ("p4",)),
    ]


def test_joined_sets_take_turns(folder: Path, other: Path) -> None:
    data = load_dataset(f"{folder}+{other}")
    assert (data.name, list(data.questions)) == ("rain+dust", ["train", "dev", "test"])
    ids = [question.id for question in data.split("train")]
    assert ids == ["rain/t0", "dust/t0", "rain/t1", "rain/t2", "dust/t1", "rain/t3"]
    assert data.split("train")[1].gold_passages == (("dust/p1",),)
    assert {text.id for question in data.split("train") for text in question.gold_texts} == {"rain/p1", "dust/p1"}
    assert [passage.id for passage in data.passages or ()] == ["rain/p1", "rain/p2", "dust/p1"]
    assert [question.id for question in data.split("test")] == ["dust/x"]


def test_gold_ids_of_a_set_without_passages_stay(folder: Path, other: Path) -> None:
    for each in (folder, other):
        (each / "corpus.jsonl").unlink()
    data = load_dataset(f"{folder}+{other}")
    assert data.passages is None
    assert data.split("train")[0].gold_passages == (("p1",),)


def test_the_nearest_name_is_proposed(folder: Path) -> None:
    with pytest.raises(StepladderError, match=r"unknown data set 'hotpot'. Did you mean 'hotpotqa'"):
        load_dataset("atlas+hotpot")
    with pytest.raises(StepladderError, match=r"trian.jsonl does not exist. Did you mean 'train.jsonl'\?"):
        load_dataset(str(folder / "trian.jsonl"))
    with pytest.raises(StepladderError, match=r"unknown split of rain 'tran'. Did you mean 'train'\?"):
        load_dataset(str(folder)).split("tran")


def test_sets_of_one_name_are_not_joined(folder: Path) -> None:
    with pytest.raises(StepladderError, match="two of the sets have the same name"):
        load_dataset(f"{folder}+{folder}/")


def test_published_sets_are_looked_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPLADDER_DATA", raising=False)
    with pytest.raises(StepladderError, match=r"looked in data.musique\. .*data get musique`; or get musique_ans"):
        load_dataset("musique")
    folder.rename(tmp_path / "sets" / "musique")
    (tmp_path / "data").symlink_to(tmp_path / "sets")
    assert load_dataset("musique").name == "musique"
    monkeypatch.setenv("STEPLADDER_DATA", str(tmp_path / "sets"))
    monkeypatch.chdir("/")
    assert len(load_dataset("musique").split("train")) == 4
    with pytest.raises(StepladderError, match=r"put them into .*sets.hotpotqa"):
        load_dataset("musique+hotpotqa")
    with pytest.raises(StepladderError, match="Did you mean 'musique'"):
        load_dataset("musiqe")


def test_recipes_keep_absolute_places(
    folder: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "sets")
    assert absolute_name("rain+atlas+dust") == f"{folder}+atlas+{other}"
    settings = DataConfig(name="rain")
    monkeypatch.chdir("/")
    assert settings.name == str(folder)
    assert len(settings.open().split("train")) == 4


def test_a_run_depends_on_the_files_of_its_data(folder: Path, other: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(json.dumps({"stages": {"sft": {}}, "policy": "tiny", "data": {"name": f"{folder}+{other}"}}))

    def ingredients() -> dict[str, Any]:
        return {key: value for key, value in all_ingredients(load_recipe(recipe))["sft"].items() if "data." in key}

    before = ingredients()
    assert {key.removeprefix("data.name.") for key in before} == {
        *("rain/train.jsonl", "rain/dev.jsonl.gz", "rain/corpus.jsonl"),
        *("dust/train.jsonl", "dust/test.jsonl", "dust/corpus.jsonl"),
        "data.joined",
    }
    assert before["data.joined"] == "rain+dust"  # the order of the sets is that of their questions
    (folder / "README.md").write_text("# Something else")
    assert ingredients() == before
    write(other / "corpus.jsonl", CORPUS[1])
    assert {key for key, value in ingredients().items() if before[key] != value} == {"data.name.dust/corpus.jsonl"}
    assert len(data_files(str(folder))) == 3


def test_atlas_may_be_joined(folder: Path) -> None:
    data = load_dataset(f"atlas+{folder}")
    assert isinstance(data.split("dev")[0], Question)
    assert {question.id.partition("/")[0] for question in data.split("dev")} == {"atlas", "rain"}
