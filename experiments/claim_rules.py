"""The text around the table of CLAIMS.md: its rules, what changed against the rules before, and what is missing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from claim import MIXTURES
from layout import head, line
from records import RESULTS
from verdicts import HARM, NEAR, SEEDS, SMALL

RULES = f"""# Claims of the papers, and what we found

Written by `python experiments/claims.py` from the files under `experiments/results` and `benchmarks/results`; nothing
here is written by hand. A paper's figures are of its own students, teachers and epochs. Ours are of the students named:

- `bpe`: 4 layers x 256 with a tokenizer of its own; `cut`: two layers kept from the teacher; `embedder`: `bpe` after it
  has learnt the teacher's vectors of other texts (embedder.py), for five epochs (talas_table.py).
- `embedder/own radius`: `embedder` for five epochs, each kind of step with its own rate and radius (sharpness.py);
  `longer`: for fifteen.
- `labelled`, `out-of-domain`: the student `bpe`; `labelled/embedder`: `embedder` (cross_tokenizer.py).
- `texts`: the student `bpe` of five teachers (many_text.py). The paper's figures are of twelve classification sets.
- `similar/static`: a table of word pieces, of four teachers of similar strength (similar_teachers.py).
- `molecules`: GINE, 5 layers x 128, on 20,000 molecules (molecules.py); `molecules/long`: on 40,000, each row with a
  rate of its own (molecules_long.py).
- `images`: a residual network of 8 layers on 9,000 images (images.py). The paper's figures are averages over CIFAR-10,
  Fashion-MNIST and MNIST.
- `images/pretrained`: CIFAR-10's resnet20, trained on (image_starts.py).
- `mixtures`: `embedder-bpe` upcycled, and trained until its experts had parted, twice (mixtures.py). The seeds of both
  starts count as seeds; lengths are compared with the router's mass taken out.
- `none`: counts and times, for which nothing was trained.
- `writing`: a causal language model of 2.6 M parameters, judged by ROUGE-L on seven sets (writing.py). The paper's
  figures are averages over its five sets, of Qwen1.5-1.8B and GPT-2 340M.

## Rules

**What was drawn.** A figure is the mean over sets of the difference between two rows, in points, paired by set and
seed. Sets and seeds were drawn; runs were not. So there are two 95 % Student intervals: over the sets, each averaged
over its seeds, and over the seeds, each averaged over the sets. A seed counts where at least half of the sets have it.
The wider of the two intervals counts. Columns of one molecule file are one set.

**Enough of it.** "Holds" and "does not hold here" need {SEEDS} seeds and two sets. With less there is a figure and no
verdict.

**Many claims.** p is two-sided, the larger of that over sets and that over seeds. Beside it stands p after Holm's
correction over all claims of the paper. Verdicts are of the interval alone.

**Presets.** "paper": EMO and DistillMoE have the preset of their papers. "ours": they have our defaults, which is a
comparison of ours against ours. The other methods have rows with our defaults only.

**Learning rates.** Each method has the rate that was best on validation data, of three rates and of larger ones while
the largest was best (of `labelled/embedder` smaller ones too). Ablations have the rate of the row they vary. Where the
best rate is the smallest or the largest of those tried, "from" says so: a better one may lie outside.

**Overlap.** Test rows that share a text with the training corpus are left out. Of `texts` only averages without them
were kept, so the four sets without such rows count: Banking77, TweetEval, SciTail and SICK.

**Not trained.** A rival whose runs give one answer to everything at every rate (mean recall within a point of chance)
is "not comparable: did not train" there. The figure beside is of the other sets.

**Sets used for choosing.** What our defaults changed of EMO and DistillMoE was chosen on validation data of Banking77
and STS-B, and of the sets of TALAS's corpus. "From" names such sets.

| kind | it holds where |
|---|---|
| better, labelled, mixed, written, ahead, teachers | the interval is above 0 |
| rank | the interval of the difference of average ranks is above 0 |
| small | the interval lies within ±{SMALL} points |
| harmless | the interval is above -{HARM:g}, about what the test images can tell apart |
| cost | the greatest round's ratio of processor time per step is at most the paper's (no sets, no seeds) |
| time | the interval (quartiles over rounds; of teachers: over their counts) ends at or below the paper's |
| rate | it is within {NEAR:g} point of the paper's; it is counted, so that no interval belongs to it |
| geometry | never with fewer checkpoints than {SEEDS}; in brackets: the middle nine tenths of one's tokens |
| flatter | the interval over seeds is above 1; the figure is how many times larger the largest eigenvalue is |

"The opposite": the interval is on the other side. "Not told apart": it leaves both open. "Not tested": a row is
missing. "Best" is the best on these same test sets, to the advantage of what is compared.

## Counts
"""

MISSING = """
## What new runs would settle

- ULD and MultiLevelOT with labels first, as rivals. Their rows in the table above are of losses alone, which give one
  answer to everything on Banking77 and SST-2; with labels first they train (cross_tokenizer/table.md).
- The sweep behind our defaults of EMO and DistillMoE. What of it was kept, and what was not, stands in
  experiments/results/cross_tokenizer/choosing.md.
- Rates below 1e-4, which `cross_tokenizer.py` now tries where 1e-4 is best.
- The ablations of EMO and DistillMoE with the papers' presets; the rivals with the presets of their papers.
- A third mixture whose angles have come from training, for the figures of spherical aggregation.
- TALAS with its paper's preset (a random start) in every row of its tables; further seeds of its one-seed rows.
- A second and third seed of the runs without labels, out of domain of EMO and SimCSE, and on MRPC and SST-2.
- Fifteen epochs of SAM and DISAM.
- From `embedder` with labels: AG News, SST-2, SICK's relatedness, texts of 256 tokens (IMDb), the papers' presets and
  the rivals on STS-B, ULD and MultiLevelOT. Without labels: the methods on tokens, and TALAS's parts.
- Anchored layers and LASD's in a student of six layers or more; seeds 3 and 4 of the mixtures.
- `many_text.py` once more: it now keeps scores without overlap for each set.
- Many teachers: the transformer student of `similar_teachers.py`, our own likelihood and single teachers in
  `image_starts.py`, and single teachers in `molecules_long.py`.
"""
EARLIER = RESULTS / "earlier-verdicts.json"
#: Students whose experiment has been replaced since.
ANEW = {MIXTURES}


def changes(found: list[tuple[Any, str, Any]]) -> str:
    """Verdicts under the rules before, and under these: how many changed, which way, and each with its reason."""
    earlier = {(row["where"], row["claim"], row["student"]): row["verdict"] for row in json.loads(EARLIER.read_text())}
    ways: Counter[tuple[str, str]] = Counter()
    rows = []
    for claim, student, finding in found:
        before = earlier.get((f"{claim.paper}, {claim.where}", claim.text, student))
        if before is None or claim.preset == "paper":
            continue
        now = short(finding.verdict)
        ways[short(before), now] += 1
        if short(before) != now:
            reason = "another experiment" if student in ANEW else why(finding, now)
            rows.append(line(claim.paper, claim.text, student, short(before), now, reason))
    total, moved = sum(ways.values()), len(rows)
    lines = [
        "## Verdicts before and after",
        "",
        "Before: eleven runs of five sets counted as independent, one seed was enough, intervals were over sets only",
        "(or over seeds only), and test rows that are in the corpus were scored. Compared are the claims with our",
        f"defaults; the rows with the papers' presets are new. Of {total} verdicts {moved} changed.",
        "",
        *head("before", "after", "claims"),
        *(line(before, after, count) for (before, after), count in sorted(ways.items())),
        "",
        *head("paper", "claim", "student", "before", "after", "why"),
        *rows,
    ]
    return "\n".join(lines) + "\n"


def short(verdict: str) -> str:
    """A verdict without its figures."""
    if verdict.endswith("no verdict"):
        return "no verdict"
    return "not comparable" if verdict.startswith("not comparable") else verdict


def why(finding: Any, now: str) -> str:
    """What of the rules made the difference."""
    if now == "no verdict":
        return f"{finding.verdict.partition(':')[0]} only"
    if now == "not comparable":
        return finding.verdict.partition(": ")[2]
    if finding.sets and finding.seeds:
        wider = "sets" if finding.interval == finding.sets else "seeds"
        return f"the interval over {wider} counts"
    return ""
