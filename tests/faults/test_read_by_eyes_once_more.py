"""What a fourth reading found: each as the smallest case that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.test_read_by_eyes import recipe
from tests.faults.test_read_by_eyes_again import Counted
from tests.jobs import Job, check_job
from tests.scorers.test_scorers import settings

from distilvec import folders
from distilvec.choosing import settle_student
from distilvec.errors import DistilvecError
from distilvec.flow.judge import choice_notes
from distilvec.flow.mine import mine_recipe
from distilvec.flow.output import output_folder
from distilvec.flow.ray.ranks import teach_alone
from distilvec.flow.run import run, train
from distilvec.judging import Judgement, RetrievalTask, Score
from distilvec.recipe import Recipe
from distilvec.report.rows import ScoreEntry, grouped

# runs and their folders


def test_a_finished_run_without_checkpoints_is_not_trained_anew_by_going_on(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    done = recipe(tmp_path, tiny_bert, sentences[:60])
    run(done)
    student = (tmp_path / "out" / "student" / "model.safetensors").read_bytes()
    for checkpoint in (tmp_path / "out" / "checkpoints").glob("checkpoint-*"):
        folders.remove(checkpoint)
    with pytest.raises(DistilvecError, match=r"/out: this run is finished, .*distilvec evaluate .*student"):
        run(done, resume=True)
    assert (tmp_path / "out" / "student" / "model.safetensors").read_bytes() == student
    assert folders.is_finished(tmp_path / "out")


def test_going_on_without_checkpoints_keeps_the_student_of_another_corpus(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences[:60]))
    given = recipe(tmp_path, tiny_bert, str(texts))
    train(given)
    student = (tmp_path / "out" / "student" / "model.safetensors").read_bytes()
    for checkpoint in (tmp_path / "out" / "checkpoints").glob("checkpoint-*"):
        folders.remove(checkpoint)
    texts.write_text("\n".join(sentences[:80]))
    train(given, resume=True)
    assert (tmp_path / "out" / "before-1" / "student" / "model.safetensors").read_bytes() == student


def test_a_student_that_was_not_chosen_is_not_gone_on_with(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    named = recipe(tmp_path, tiny_bert, sentences[:60], student={"shrink": {"of": "tiny", "layers": 1}})
    output_folder(named, resume=False)
    auto = recipe(tmp_path, tiny_bert, sentences[:60], student={"auto": {"parameters": "20M"}})
    with pytest.raises(DistilvecError, match=r"recipe\.yaml: the student .* was not chosen, but named"):
        settle_student(auto, resume=True)
    tasks: list[Any] = auto.judging.model_dump(mode="json")["tasks"]
    section = auto.student.auto.model_dump(mode="json")  # type: ignore[union-attr]
    plan = tmp_path / "out" / "plan.json"
    plan.write_text(json.dumps({"asked": {"auto": section, "tasks": tasks}}))
    assert settle_student(auto, resume=True).student == named.student
    # Another run chose a larger one for this recipe, and was killed before it took the folder.
    row = {"name": "two layers", "section": {"shrink": {"of": "tiny", "layers": 2}}}
    plan.write_text(json.dumps({"asked": {"auto": section, "tasks": tasks}, "rows": [row], "chosen": row["name"]}))
    larger = settle_student(auto, resume=True)
    assert larger.student.shrink.layers == 2  # type: ignore[union-attr]
    with pytest.raises(DistilvecError, match=r"recipe\.yaml: .*another recipe \(student"):
        output_folder(larger, resume=True)
    plan.write_text(json.dumps({"asked": {"auto": section | {"parameters": 5e6}, "tasks": tasks}}))
    with pytest.raises(DistilvecError, match=r"plan\.json: the student .* chosen for something else"):
        settle_student(auto, resume=True)


def test_the_report_says_what_chose_a_student_of_a_model_of_the_hub(tmp_path: Path, tiny_bert: Path) -> None:
    cut = {"shrink": {"of": "somebody/model", "layers": 1}}
    pinned = Job(recipe(tmp_path, tiny_bert, ["a"], student={**cut, "revision": "0" * 40}))  # as a run writes it
    row = {"name": "one layer", "section": cut}
    birds = [RetrievalTask.from_pairs("birds", ["tit", "jay"], ["a small bird", "a blue bird"])]
    pinned.output.mkdir()
    (pinned.output / "plan.json").write_text(json.dumps({"rows": [row], "chosen": row["name"], "tasks": ["birds"]}))
    assert "with the test items of birds in view" in " ".join(choice_notes(pinned.recipe, pinned.output, birds))
    other = Job(recipe(tmp_path, tiny_bert, ["a"], student={"shrink": {"of": "somebody/model", "layers": 2}}))
    assert choice_notes(other.recipe, other.output, birds) == []


# what is paid


def test_what_is_judged_is_paid_once_of_combined_teachers_too(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    one, two = Counted(), Counted()
    made = recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "one", "call": one.embed}, {"name": "two", "call": two.embed, "storage": "int8"}],
        combine="concatenate",
    )
    first = Job(made).taught[0].encoder("text")
    vectors = first(sentences[100:140])
    asked = one.asked, two.asked
    again = Job(made).taught[0].encoder("text")
    np.testing.assert_array_equal(again(sentences[100:140]), vectors)
    probes = one.asked - asked[0], two.asked - asked[1]
    assert max(probes) < 20, "only a few, to see how wide its vectors are"


@pytest.mark.parametrize("method", ["margin_mse", "score_kl", "a second one"])
def test_pairs_without_negatives_teach_no_order(
    method: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    options: Any = {"name": method, "preset": "paper"}
    if method == "a second one":
        options = [{"name": "cosine"}, {"name": "margin_mse"}]
    given = settings(tmp_path, tiny_bert, sentences[:40], method=options, teachers=[{"name": "own", "call": own.embed}])
    given["corpus"] |= {"text": ["q", "d"]}
    with pytest.raises(DistilvecError, match=r"^corpus\.text: .*no query .* has two.*distilvec mine"):
        check_job(Job(Recipe.build(given)))
    assert own.asked <= 2


def clicked(own: Counted, table: Path) -> dict[str, Any]:
    """Sections of a recipe with a teacher that counts and a table of scores."""
    return {
        "method": [{"name": "cosine"}, {"name": "score_kl"}],
        "teachers": [{"name": "own", "call": own.embed}],
        "scorers": [{"name": "clicks", "scores": str(table)}],
    }


def test_scorers_are_looked_at_before_the_teacher_is_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    table = tmp_path / "clicks.jsonl"
    table.write_text(json.dumps({"query": "q", "document": "d"}) + "\n")
    given = settings(tmp_path, tiny_bert, sentences[:40], **clicked(own, table))
    made = Recipe.build(given)
    for look in (lambda: check_job(Job(made)), lambda: teach_alone(made)):
        with pytest.raises(DistilvecError, match="score"):
            look()
    nobody = Recipe.build(given | {"scorers": [{"model": "nobody/x"}]})
    with pytest.raises(DistilvecError, match="nobody/x"):
        check_job(Job(nobody))
    assert own.asked <= 6, "how wide its vectors are"


def test_a_table_of_scores_about_other_pairs_is_refused_before_the_teacher_is_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    table = tmp_path / "clicks.jsonl"
    table.write_text(json.dumps({"query": "q", "document": "d", "score": 1.0}) + "\n")
    given = settings(tmp_path, tiny_bert, sentences[:40], **clicked(own, table))
    made = Recipe.build(given)
    for look in (lambda: check_job(Job(made)), lambda: teach_alone(made)):
        with pytest.raises(DistilvecError, match=r"^scorer clicks: it has no score for any of the [\d,]+ pairs"):
            look()
    assert own.asked <= 6, "how wide its vectors are"


def test_scorers_of_single_texts_are_refused_before_the_teacher_is_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    teachers = [{"name": "own", "call": own.embed}]
    given = settings(tmp_path, tiny_bert, sentences[:40], teachers=teachers, method={"name": "cosine"})
    given["corpus"] = {"path": sentences[:40]}
    with pytest.raises(DistilvecError, match=r"^corpus\.text: scorers judge queries and documents"):
        teach_alone(Recipe.build(given))
    assert own.asked <= 2, "how wide its vectors are"


def test_a_method_on_pairs_refuses_single_texts_before_the_teacher_is_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    made = recipe(
        tmp_path,
        tiny_bert,
        [],
        corpus={"path": [{"q": text} for text in sentences[:60]], "text": ["q"]},
        method={"name": "mnrl"},
        teachers=[{"name": "own", "call": own.embed}],
    )
    with pytest.raises(DistilvecError, match=r"^corpus\.text: this method trains on pairs"):
        run(made)
    assert own.asked <= 2, "how wide its vectors are"


def test_workers_that_would_hold_a_live_teacher_are_refused_before_it_is_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    made = recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "tiny", "model": str(tiny_bert), "live": True}],
        training={"max_steps": 1, "batch_size": 8, "use_cpu": True, "dataloader_num_workers": 1},
    )
    with pytest.raises(DistilvecError, match=r"^training\.dataloader_num_workers: .*live"):
        check_job(Job(made))


def test_held_out_texts_without_vectors_are_none_to_evaluate_on(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = list(dict.fromkeys(sentences))[:120]
    given: dict[str, Any] = {
        "corpus": {"path": texts, "holdout": 0.3},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True, "evaluate_every": 1},
    }
    corpus = Job(recipe(tmp_path, tiny_bert, texts, **given)).corpus
    trained = corpus.texts(corpus.train_rows)
    np.save(tmp_path / "vectors.npy", Counted().embed(trained))
    (tmp_path / "trained.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in trained))
    files = {"vectors": str(tmp_path / "vectors.npy"), "texts": str(tmp_path / "trained.jsonl")}
    made = recipe(tmp_path, tiny_bert, texts, **given, teachers=[{"name": "files", **files}])
    with pytest.raises(DistilvecError, match=r"^training\.evaluate_every: .*fewer than 20 have a vector"):
        check_job(Job(made))


def test_a_share_without_a_text_is_done(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    made = recipe(tmp_path, tiny_bert, sentences[:3])
    done = [teach_alone(made, shard=(share, 16))[0][1] for share in range(16)]
    assert sum(each.taught for each in done) == 3 and any(each.distinct == 0 or not each.taught for each in done)


def test_mined_data_of_the_hub_are_pinned_where_they_are_read(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `mine`, which keeps the commit for when it goes on; a run that reads none of them does not ask the hub."""
    from distilvec.flow import mine as mining
    from distilvec.flow.pin import pin

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(mining, "pin", lambda given, saved, **how: asked.append({"saved": saved, **how}) or given)
    rows = [{"q": text.rsplit(" ", 2)[0], "d": text} for text in sentences[:60]]
    made = recipe(tmp_path, tiny_bert, sentences[:60], corpus={"path": rows, "text": ["q", "d"], "holdout": 0.1})
    mine_recipe(made)
    saved = tmp_path / "out" / "mining.yaml"
    assert asked == [{"saved": saved, "mining": True}] and "corpus:" in saved.read_text()
    documents = {"documents": {"path": "hub:nobody/texts", "text": "body"}}
    free = pin(Recipe.build(made.model_dump() | {"mining": documents}))
    assert free.mining.documents is not None and free.mining.documents.revision is None


# what the figures mean


def test_a_search_that_somebody_judged_is_not_averaged_with_the_teachers_own() -> None:
    def score(task: str, kind: str, value: float) -> Score:
        return Score(task, kind, "ndcg_at_10", value, None, 10)

    both = {"judged": score("judged", "retrieval", 0.4), "near": score("near", "neighbours", 1.0)}
    assert Judgement({"teacher": both}).averages("teacher") == {"retrieval": 0.4}
    assert Judgement({"teacher": {"near": both["near"]}}).averages("teacher") == {"retrieval": 1.0}
    entries = {name: ScoreEntry(value=each.value, kind=each.kind) for name, each in both.items()}
    assert [each.value for each in grouped(entries)["retrieval"]] == [0.4] and "all" not in grouped(entries)


def test_prefixes_behind_a_map_are_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    options = {"name": "matryoshka", "dims": [8], "of": "leaf"}
    made = recipe(tmp_path, tiny_bert, sentences[:60], method=options)
    assert made.student is not None and made.student.space == "own"
    with pytest.raises(DistilvecError, match=r"^student\.space: .*matryoshka.*prefixes.*space: teacher"):
        recipe(
            tmp_path, tiny_bert, sentences[:60], method=options, student={"model": str(tiny_bert), "space": "teacher"}
        )
