"""All experiments in order, then the page of claims.

    python -m experiments.run_all                  # days on two cores
    python -m experiments.run_all --device cpu

Each script keeps every row as soon as it is there, so this can be stopped at any time and continues where it stopped.
The rows are in the work folder (harness/records.py); the page of claims is of the committed results, over which each
script writes the new ones with --record. A script that fails does not stop the others; the exit code says so at the
end.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

#: Question and arguments, in order: later ones take models and rates from earlier ones.
COMMANDS = """
embedder
talas --student bpe --rows main --seeds 3
talas --student bpe --rows all
talas --student cut --rows main --seeds 3
talas --student cut3 --rows main
sharpness
sharpness --epochs 15 --rows adamw asam
alignment
defaults --rows minilm/banking77 minilm/docstrings minilm/sentences
languages --table
mpnet --table
contrast --table
sparse --table
questions --table
headline
quarter --sizes quarter --seeds 0 1
quarter --sizes twentieth --epochs 8 --seeds 0 1 2
quarter --larger --sizes quarter --seeds 0 1 2
quarter --larger --sizes eighth twentieth --epochs 8 --seeds 0 1 2
quarter --sizes quarter --all --muon --compiled --epochs 8 --seeds 0 1
quarter --sizes quarter --shape "quarter, 26,000 pieces" --all --muon --compiled --made 1 --epochs 4 --seeds 0 1 2
quarter --pieces
quarter --probe
quarter --rates
quarter --rivals
quarter --cost --larger
quarter_ways
budgets
many_text --rows main --seeds 3
many_text --rows all
cross_tokenizer
cross_tokenizer --rows ablations,repairs --sets sick,stsb_separate --seeds 1
cross_tokenizer --rows ablations --sets stsb_separate
cross_tokenizer --rows paper-ablations --sets sick,stsb_separate --seeds 1
cross_tokenizer --rows former,aggregation --sets banking77,sick --seeds 3
cross_tokenizer --setting embedder --rows unsorted --sets banking77,sick,emotion
cross_tokenizer --setting embedder --rows sft,emo,distillmoe --sets stsb_separate
cross_tokenizer --part unsupervised
cross_tokenizer --part out-of-domain
cross_tokenizer --setting smaller-student --sets sick --seeds 1
cross_tokenizer --setting another-teacher --sets sick --seeds 1
cross_tokenizer --setting two-teachers --sets sick --rows distillmoe --seeds 1
mixtures
choosing
compression
scores
molecules --seeds 3
molecules --rows large
molecules_long --seeds 0 1 2
images
images --rows vit,vit-single --seeds 1
image_starts --seeds 0 1 2
similar_teachers --seeds 0 1 2
old_index
writing teacher
writing
claims
"""
#: Questions that take --device.
PLACED = ("talas", "sharpness", "many_text", "cross_tokenizer", "mixtures", "choosing", "molecules", "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help="cpu to keep off an accelerator")
    options = parser.parse_args()
    failed = []
    for line in COMMANDS.strip().splitlines():
        question, *given = shlex.split(line)
        device = ["--device", options.device] if options.device and question in PLACED else []
        print("+", line, flush=True)
        command = [sys.executable, "-m", f"experiments.{question}.run", *given, *device]
        if subprocess.run(command, check=False).returncode:
            failed.append(line)
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
