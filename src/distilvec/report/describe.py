"""From the parts of a finished run to its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distilvec.judging import FREE, TRAINED, UNTRAINED, Judgement, RetrievalTask, Verdict
from distilvec.judging.scores import SEARCHES
from distilvec.judging.shared import SharedNeighbours
from distilvec.judging.verdict import FEWEST, too_few
from distilvec.methods.table import called
from distilvec.modules.blocks import find_writer
from distilvec.report.record import (
    CorpusFacts,
    CostFacts,
    HardText,
    ModelRow,
    Record,
    Role,
    ScoreDifference,
    ScoreEntry,
    ScorerFacts,
    StudentFacts,
    TeacherFacts,
)
from distilvec.report.record_parts import NEIGHBOURS, short_source
from distilvec.report.spaces import labels_of, layers_of, spaces_of
from distilvec.report.surroundings import folder_bytes, git_state, library_versions, machine
from distilvec.report.table import entry_of
from distilvec.report.writing import writing_facts, written_answers
from distilvec.store.axes import TokenAxes, axes_of
from distilvec.teachers.cards import licence_of


def describe_run(
    *,
    recipe: dict[str, Any],
    corpus: Any,
    teachers: Sequence[tuple[Any, Any, Any, Any]],
    untrained: Any,
    student: Any,
    fitted: Any,
    verdict: Verdict,
    overlap: Mapping[str, int],
    held_out: Any,
    folder: Path,
    scorers: Sequence[tuple[Any, Any]] = (),
) -> Record:
    """The record of a run of the main job.

    Args:
        recipe: the resolved recipe.
        corpus: `distilvec.corpus.Corpus`.
        teachers: (card, report seen beforehand, store, report of the filling) per teacher.
        untrained, student: before training, and as it ships.
        fitted: `distilvec.training.Fitted`.
        verdict: what judging found.
        overlap: task -> training texts among its texts.
        held_out: corpus rows of the held-out texts, those of `verdict.vectors`.
        folder: the run's folder, with `student/`.
        scorers: (card, report of the filling) per scorer.
    """
    from distilvec.students import describe_student
    from distilvec.students.ship import brings_its_code

    texts = corpus.texts(held_out)
    size = describe_student(student)
    on_disk = folder_bytes(folder / "student")
    rows = _rows([each[0] for each in teachers], describe_student(untrained), size, on_disk, verdict)
    judged = verdict.judged
    others = [name for name in (judged.scores if judged else ()) if name != TRAINED]
    names = [each[0].name for each in teachers]
    told = [*names, *(card.name for card, _ in scorers)]
    taught_by = " and ".join(told) if len(told) <= 3 else f"{len(told)} teachers"
    beside = recipe["method"].get("beside")
    method = called(recipe["method"]["name"]) + (f" beside {called(beside['name'])}" if beside else "")
    made = f"a student of {_short(size['parameters'])}"
    first = names[0] if names else None
    filled = [each[3] for each in teachers]
    encoded = sum(each.taught for each in filled)
    teaching = sum(each.seconds for each in filled)
    return Record(
        title=f"{method}: " + (f"{taught_by} to {made}" if told else f"{made}, no teacher"),
        versions=library_versions(),
        git=git_state(),
        seed=recipe["training"]["seed"],
        machine=machine(str(student.device)),
        recipe=recipe,
        corpus=_corpus_facts(corpus, recipe, teachers[0][1] if teachers else None, fitted, overlap),
        teachers=[_teacher_facts(card, seen, store) for card, seen, store, _ in teachers],
        scorers=[_scorer_facts(card, scored) for card, scored in scorers],
        student=StudentFacts(
            provenance=_provenance(recipe["student"]),
            **_origin(recipe["student"], {each["name"]: each.get("model") for each in recipe["teachers"]}),
            parameters=size["parameters"],
            size_bytes=on_disk,
            layers=size["layers"],
            width=size["width"],
            vocabulary=size["vocabulary"],
            max_length=size["max_length"],
            space=recipe["student"]["space"],
            writes=find_writer(student) is not None,
            remote_code=any(brings_its_code(module) for module in student.children()),
        ),
        models=rows,
        comparisons=(comparisons(judged, TRAINED, others) if judged else []) + _neighbours(verdict.neighbours),
        agreement=verdict.agreement,
        collapse=verdict.collapse,
        cost=CostFacts(
            teaching_seconds=teaching,
            texts_taught=encoded,
            teacher_texts_per_second=encoded / teaching if encoded and teaching else None,
            training_seconds=fitted.seconds,
            steps=fitted.steps,
            judging_seconds=verdict.seconds,
            peak_memory_bytes=fitted.peak_bytes,
            store_bytes=sum(folder_bytes(Path(each[2].path)) for each in teachers),
        ),
        held_out=fitted.held_out,
        hardest=_hardest(verdict, corpus.modality, texts),
        alarms=verdict.alarms,
        notes=_notes(fitted, corpus, filled, names, verdict, len(held_out)),
        log=[{k: v for k, v in entry.items() if isinstance(v, int | float)} for entry in fitted.log],
        spaces=spaces_of(verdict, first, labels_of(texts, corpus.modality), corpus, held_out),
        writing=writing_facts(judged.scores) if judged else [],
        written=written_answers(judged.scores) if judged else [],
        layers=layers_of(untrained, student, verdict.vectors.get(first) if first else None, texts),
    )


def _short(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count / 1e3:.0f} thousand parameters"


def _hardest(verdict: Verdict, modality: str, held_out: Sequence[str]) -> list[HardText]:
    """As people read them: images by their paths, or their numbers, not by their data."""
    hardest = verdict.hardest
    columns = [
        labels_of([getattr(item, name) for item in hardest], modality, held_out)
        for name in ("text", "teacher", "student")
    ]
    return [
        HardText(text=text, overlap=item.overlap, teacher=teacher, student=student)
        for item, text, teacher, student in zip(hardest, *columns, strict=True)
    ]


def _rows(
    cards: Sequence[Any], before: Mapping[str, Any], size: Mapping[str, Any], on_disk: int, verdict: Verdict
) -> list[ModelRow]:
    """Teachers, untrained student, free baseline, student; `before` is the student before training, `size` as it ships.

    Before training there is no map into the teacher's space and no expert head: then it is smaller, and not timed. Else
    it is the same network as the trained one, and the free baseline adds one small product to it.
    """
    more = before["parameters"] - size["parameters"]
    start = {"parameters": before["parameters"], "width": before["width"], "size_bytes": on_disk + 4 * more}
    timed = None if more else verdict.speed.get(TRAINED)
    own = {"parameters": size["parameters"], "width": size["width"], "size_bytes": on_disk}
    rows = [
        model_row(
            card.name,
            "teacher",
            verdict.judged,
            parameters=card.parameters,
            width=card.width,
            size_bytes=card.size_bytes,
            speed=verdict.speed.get(card.name),
        )
        for card in cards
    ]
    rows.append(model_row(UNTRAINED, "untrained", verdict.judged, **start, speed=timed))
    if cards and (FREE in verdict.neighbours or (verdict.judged is not None and FREE in verdict.judged.scores)):
        card = cards[0]
        extra = before["width"] * card.width
        free = {
            "parameters": start["parameters"] + extra,
            "size_bytes": start["size_bytes"] + 4 * extra,
            "width": card.width,
        }
        rows.append(model_row(FREE, "free", verdict.judged, **free, speed=timed, note="ridge map, no training"))
    rows.append(model_row(TRAINED, "student", verdict.judged, **own, speed=verdict.speed.get(TRAINED)))
    if verdict.neighbours:
        found = {
            name: ScoreEntry(metric=NEIGHBOURS, value=each.value, low=each.interval[0], high=each.interval[1])
            for name, each in verdict.neighbours.items()
        }
        found[cards[0].name] = ScoreEntry(metric=NEIGHBOURS, value=1.0)  # its own
        for row in rows:
            if row.name in found:
                row.averages = {NEIGHBOURS: found[row.name]}
    words = _bm25(verdict.judged)
    return [*rows, words] if words else rows


def _bm25(judged: Judgement | None) -> ModelRow | None:
    """BM25 beside the models, on the retrieval tasks; None without any, or where it is not installed.

    None too where it is not measured on all of them (MTEB's): an average over other tasks than the models' is none.
    """
    scores = {
        task: ScoreEntry(metric=score.metric, value=score.details["bm25"][score.metric], kind=score.kind)
        for task, score in (judged.scores[TRAINED] if judged else {}).items()
        if score.details.get("bm25")
    }
    found = [score for score in (judged.scores[TRAINED] if judged else {}).values() if score.kind in SEARCHES]
    if not scores or len(scores) < len(found):
        return None
    return ModelRow(name="BM25", role="other", scores=scores, note="words only, no model")


def _corpus_facts(
    corpus: Any, recipe: Mapping[str, Any], seen: Any, fitted: Any, overlap: Mapping[str, int]
) -> CorpusFacts:
    audit = corpus.audit
    source = recipe["corpus"]["path"]
    return CorpusFacts(
        modality=corpus.modality,
        source=source if isinstance(source, str) else f"{len(source):,} items given in Python",
        read=audit.read,
        kept=len(corpus),
        made=audit.made or None,
        trained_on=len(corpus.train_rows),
        held_out=len(corpus.holdout_rows),
        rejected=dict(audit.rejected),
        duplicates=audit.duplicates,
        truncated_teacher=None if seen is None else seen.truncated,
        truncated_student=fitted.truncated / max(len(corpus), 1),
        overlap={name: count for name, count in overlap.items() if count},
        fingerprint=corpus.fingerprint,
    )


def _teacher_facts(card: Any, seen: Any, store: Any) -> TeacherFacts:
    return TeacherFacts(
        **{key: value for key, value in card.to_dict().items() if key in TeacherFacts.model_fields},
        storage=store.dtype,
        token_states=_token_states(axes_of(Path(store.path))),
        examples=[example.rendered for example in seen.examples],
        warnings=list(seen.warnings),
    )


def _scorer_facts(card: Any, scored: Any) -> ScorerFacts:
    known = {key: value for key, value in card.to_dict().items() if key in ScorerFacts.model_fields}
    return ScorerFacts(**known, pairs=scored.distinct, absent=scored.absent)


def _token_states(axes: Mapping[int, TokenAxes]) -> str | None:
    """How much of the token states a store keeps; None where it keeps them whole, or has none."""
    if not axes:
        return None
    width, count = next(iter(axes.values())).matrix.shape
    kept = ", ".join(f"{100 * each.retained:.1f} % of layer {layer}'s" for layer, each in sorted(axes.items()))
    return f"on {count} of {width} principal axes, which keep {kept} variance"


def _provenance(student: Mapping[str, Any]) -> str:
    if student["shrink"]:
        cut = student["shrink"]
        parts = [f"cut out of {short_source(cut['of'])}"]
        if cut["layers"]:
            parts.append(f"{cut['layers']} layers" if isinstance(cut["layers"], int) else f"layers {cut['layers']}")
        if cut["vocabulary"]:
            parts.append(f"at most {cut['vocabulary']:,} word pieces")
        for name, words in (
            ("embedding", "table of rank {}"),
            ("inner", "{} inner units"),
            ("heads", "{} heads"),
            ("width", "blocks of width {}"),
        ):
            if cut.get(name):
                parts.append(words.format(cut[name]))
        return ", ".join(parts)
    if student["static"]:
        source = short_source(student["static"]["of"])
        return f"table of the vectors that {source} gives its word pieces, reduced and weighed"
    if student["fresh"]:
        size = student["fresh"]
        source = size["embeddings_from"]
        start = f"token embeddings averaged from {short_source(source)}" if source else "random start"
        return f"fresh, {size['layers']} layers of width {size['width']}, {start}"
    if student["resnet"]:
        size = student["resnet"]
        return f"fresh residual network, depth {size['depth']}, {size['width']} channels, {size['image_size']} pixels"
    if student["molecule"]:
        size = student["molecule"]
        return f"fresh graph network, {size['kind']}, {size['layers']} layers of width {size['width']}"
    adapters = student.get("lora")
    trained = f", trained with low-rank adapters of rank {adapters['rank']}" if adapters else ""
    return short_source(str(student["model"])) + trained


def _origin(student: Mapping[str, Any], teachers: Mapping[str, str | None]) -> dict[str, Any]:
    """Hub id, licence and whether there is one, of the model that a student was made from; a teacher's licence is said
    with the teacher.

    Args:
        teachers: name -> model; None for what is none.
    """
    parts = (student.get("shrink"), student.get("static"))
    names = [part["of"] for part in parts if part]
    if student.get("fresh"):
        names.append(student["fresh"]["embeddings_from"])
    model = student["model"] or next((name for name in names if name and name not in teachers), None)
    if model is None:
        address = next((each for name in names if (each := teachers.get(name))), "")
        return {"base": address.partition("@")[0]} if address and not Path(address).expanduser().exists() else {}
    folder = Path(model).expanduser()
    if folder.is_dir():
        return {"licence": licence_of(folder), "derived": True}
    if folder.exists() or folder.suffix == ".safetensors":  # a place on a disk is nobody's base
        return {"derived": True}
    licence = _licence_on_hub(model, student.get("revision"))
    return {"base": model.partition("@")[0], "licence": licence, "derived": True}


def _licence_on_hub(model: str, revision: str | None) -> str | None:
    """As the files say that the run has fetched; nothing is asked of the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, _, behind = model.partition("@")
    for file in ("README.md", "config.json"):
        try:
            kept = try_to_load_from_cache(name, file, revision=behind or revision)
        except HFValidationError:
            return None
        if isinstance(kept, str):
            return licence_of(Path(kept).parent)
    return None


def _notes(
    fitted: Any, corpus: Any, filled: Sequence[Any], teachers: Sequence[str], verdict: Verdict, held: int
) -> list[str]:
    """What a reader of the numbers should know; `held`: held-out items that there is a teacher's vector for."""
    notes = []
    if fitted.skipped:
        notes.append(f"{fitted.skipped:,} sharpness-aware steps were left out because their gradient was not finite.")
    if corpus.audit.shared:
        notes.append(f"{corpus.audit.shared:,} held-out texts stand in a training pair too and are on neither side.")
    if len(teachers) > 1:
        notes.append(
            f"What is kept, the agreement and the free baseline are measured against the first teacher, {teachers[0]}."
        )
    if not teachers:
        notes.append("There is no teacher in this run: nothing is said about what was kept of one.")
    if not verdict.agreement and 0 < held < FEWEST and teachers:
        notes.append(f"{too_few(held)}.")
    for task, score in (verdict.judged.scores[TRAINED] if verdict.judged else {}).items():
        rejected = score.details.get("rejected") or {}
        if rejected:
            told = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
            notes.append(f"Rows of the task {task} that were left out: {told}.")
        if known := score.details.get("known"):
            notes.append(f"{known:,} of the {score.n:,} test items of the task {task} are among its training items.")
        if unknown := score.details.get("unknown_labels"):
            notes.append(
                f"{unknown:,} of the {score.n:,} test items of the task {task} have a label that no training item has."
            )
        notes += [f"Task {task}: {remark}." for remark in RetrievalTask.remarks(score.details)]
        if repeated := score.details.get("repeated"):
            notes.append(f"{repeated:,} items of the task {task} are there twice, and may be learnt from and tested.")
    absent = sum(each.absent for each in filled)
    if absent:
        notes.append(f"The teachers had no vector for {absent:,} texts; these count for nothing in their terms.")
    return notes


def model_row(
    name: str,
    role: Role,
    judged: Judgement | None,
    *,
    parameters: int | None = None,
    width: int | None = None,
    size_bytes: int | None = None,
    speed: Mapping[str, Any] | None = None,
    note: str = "",
) -> ModelRow:
    """One row of the main table."""
    scores = {} if judged is None or name not in judged.scores else judged.scores[name]
    timed = speed or {}
    return ModelRow(
        name=name,
        role=role,
        scores={task: entry_of(score) for task, score in scores.items()},
        parameters=parameters,
        width=width,
        size_bytes=size_bytes,
        texts_per_second=timed.get("texts_per_second"),
        latency_p50_ms=timed.get("latency_p50_ms"),
        latency_p95_ms=timed.get("latency_p95_ms"),
        note=note,
    )


def comparisons(judged: Judgement, student: str, others: Sequence[str]) -> list[ScoreDifference]:
    """The student against each other model, on the average and on retrieval, with paired intervals."""
    differences = []
    for other in others:
        for group in ("all", "retrieval"):
            groups = judged.averages(student)
            if group in groups and group in judged.averages(other) and judged.paired(student, other, group):
                difference = judged.difference(student, other, group)
                low, high = difference.interval
                differences.append(
                    ScoreDifference(a=student, b=other, group=group, value=difference.value, low=low, high=high)
                )
    return differences


def _neighbours(found: Mapping[str, SharedNeighbours]) -> list[ScoreDifference]:
    """The student against the untrained one and the free baseline, on the teacher's nearest neighbours."""
    differences = []
    for other in (name for name in found if name != TRAINED):
        gap = found[TRAINED].minus(found[other])
        low, high = gap.interval
        differences.append(ScoreDifference(a=TRAINED, b=other, group=NEIGHBOURS, value=gap.value, low=low, high=high))
    return differences
