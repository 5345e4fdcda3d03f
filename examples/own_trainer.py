"""distilvec's losses in your own SentenceTransformerTrainer script.

    python examples/own_trainer.py --teacher FOLDER_OR_ID --student FOLDER_OR_ID --texts texts.txt

The teacher's vectors go into a store once; `store.attach` adds their row numbers as the column "label", which
sentence-transformers hands to the loss; `bind` saves the heads with that trainer's checkpoints. One process only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

import distilvec
from distilvec.corpus import content_keys
from distilvec.store import fill
from distilvec.teachers import load_teacher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="folder or hub id")
    parser.add_argument("--student", required=True, help="folder or hub id")
    parser.add_argument("--texts", type=Path, required=True, help="one text a line")
    parser.add_argument("--output", type=Path, default=Path("out-own-trainer"))
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many steps")
    arguments = parser.parse_args()

    texts = list(
        dict.fromkeys(line for line in arguments.texts.read_text(encoding="utf-8").splitlines() if line.strip())
    )
    teacher = load_teacher(name="teacher", model=arguments.teacher)
    store = distilvec.SignalStore.create(arguments.output / "store", teacher.card, teacher.card.width)
    fill(store, teacher, texts, content_keys(texts))

    student = SentenceTransformer(arguments.student)
    loss = distilvec.DistillationLoss(student, "cosine", store, texts=texts)
    trainer = SentenceTransformerTrainer(
        model=student,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(arguments.output / "checkpoints"),
            learning_rate=1e-4,
            num_train_epochs=1,
            max_steps=arguments.steps,
            per_device_train_batch_size=32,
            report_to="none",
        ),
        train_dataset=store.attach(Dataset.from_dict({"text": texts}), text="text"),
        loss=loss,
    )
    loss.bind(trainer)
    trainer.train()
    student.save(str(arguments.output / "student"))


if __name__ == "__main__":
    main()
