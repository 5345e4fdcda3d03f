"""All experiments in order, then the page of claims.

    python experiments/run_all.py                  # days on two cores
    python experiments/run_all.py --device cpu

Each script keeps every row as soon as it is there, so this can be stopped at any time and goes on where it stopped. The
rows are in the work folder (see records.py); the page of claims is of the committed results, over which each script
writes the new ones with --record.
A script that fails does not stop the others; the exit code says so at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Of quarter.py: every text, in the way that was fastest.
ALL = ("--sizes", "quarter", "--all", "--muon", "--compiled")
#: Script, its arguments, and whether it takes --device.
SCRIPTS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("talas_table.py", ("--student", "bpe", "--rows", "main", "--seeds", "3"), True),
    ("talas_table.py", ("--student", "bpe", "--rows", "all"), True),
    ("talas_table.py", ("--student", "cut", "--rows", "main", "--seeds", "3"), True),
    ("talas_table.py", ("--student", "cut3", "--rows", "main"), True),
    ("sharpness.py", (), True),
    ("sharpness.py", ("--epochs", "15", "--rows", "adamw", "asam"), True),
    ("alignment.py", (), False),
    ("defaults.py", ("--rows", "minilm/banking77", "minilm/docstrings", "minilm/sentences"), False),
    ("headline.py", (), False),
    ("quarter.py", ("--sizes", "quarter", "--seeds", "0", "1"), False),
    ("quarter.py", ("--sizes", "twentieth", "--epochs", "8", "--seeds", "0", "1", "2"), False),
    ("quarter.py", ("--larger", "--sizes", "quarter", "--seeds", "0", "1", "2"), False),
    ("quarter.py", ("--larger", "--sizes", "eighth", "twentieth", "--epochs", "8", "--seeds", "0", "1", "2"), False),
    ("quarter.py", (*ALL, "--epochs", "8", "--seeds", "0", "1"), False),
    (
        "quarter.py",
        ("--shape", "quarter, 26,000 pieces", *ALL, "--made", "1", "--epochs", "4", "--seeds", "0", "1", "2"),
        False,
    ),
    ("quarter.py", ("--pieces",), False),
    ("quarter.py", ("--probe",), False),
    ("quarter.py", ("--rates",), False),
    ("quarter.py", ("--rivals",), False),
    ("quarter.py", ("--cost", "--larger"), False),
    ("quarter_ways.py", (), False),
    ("budgets.py", (), False),
    ("embedder.py", (), False),
    ("text_teachers.py", (), False),
    ("many_text.py", ("--rows", "main", "--seeds", "3"), True),
    ("many_text.py", ("--rows", "all"), True),
    ("cross_tokenizer.py", (), True),
    ("cross_tokenizer.py", ("--rows", "ablations,repairs", "--sets", "sick,stsb_separate", "--seeds", "1"), True),
    ("cross_tokenizer.py", ("--rows", "ablations", "--sets", "stsb_separate"), True),
    ("cross_tokenizer.py", ("--rows", "paper-ablations", "--sets", "sick,stsb_separate", "--seeds", "1"), True),
    ("cross_tokenizer.py", ("--rows", "former,aggregation", "--sets", "banking77,sick", "--seeds", "3"), True),
    ("cross_tokenizer.py", ("--setting", "embedder", "--rows", "unsorted", "--sets", "banking77,sick,emotion"), True),
    ("cross_tokenizer.py", ("--setting", "embedder", "--rows", "sft,emo,distillmoe", "--sets", "stsb_separate"), True),
    ("cross_tokenizer.py", ("--part", "unsupervised"), True),
    ("cross_tokenizer.py", ("--part", "out-of-domain"), True),
    ("cross_tokenizer.py", ("--setting", "smaller-student", "--sets", "sick", "--seeds", "1"), True),
    ("cross_tokenizer.py", ("--setting", "another-teacher", "--sets", "sick", "--seeds", "1"), True),
    (
        "cross_tokenizer.py",
        ("--setting", "two-teachers", "--sets", "sick", "--rows", "distillmoe", "--seeds", "1"),
        True,
    ),
    ("mixtures.py", (), True),
    ("choosing.py", (), True),
    ("compression.py", (), False),
    ("scores.py", (), False),
    ("molecules.py", ("--seeds", "3"), True),
    ("molecules.py", ("--rows", "large"), True),
    ("molecules_long.py", ("--seeds", "0", "1", "2"), False),
    ("images.py", (), True),
    ("images.py", ("--rows", "vit,vit-single", "--seeds", "1"), True),
    ("image_starts.py", ("--seeds", "0", "1", "2"), False),
    ("similar_teachers.py", ("--seeds", "0", "1", "2"), False),
    ("old_index.py", (), False),
    ("cross_choosing.py", (), False),
    ("writing.py", ("teacher",), False),
    ("writing.py", (), False),
    ("claims.py", (), False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help="cpu to keep off an accelerator")
    options = parser.parse_args()
    failed = []
    for script, arguments, takes_device in SCRIPTS:
        device = ["--device", options.device] if options.device and takes_device else []
        command = [sys.executable, str(HERE / script), *arguments, *device]
        print("+", " ".join(command[1:]), flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(" ".join([script, *arguments]))
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
