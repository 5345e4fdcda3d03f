"""Scores of any embedding model: tasks, agreement with a teacher, collapse, speed, and honest intervals."""

from typing import TYPE_CHECKING

from distilvec.judging.agreement import agreement, free_map, linear_map
from distilvec.judging.collapse import collapse
from distilvec.judging.slices import Slice, item_masks, slices
from distilvec.judging.speed import speed
from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.judging.automatic import automatic_tasks
    from distilvec.judging.benchmarks import MtebTask
    from distilvec.judging.bootstrap import make_score, paired_bootstrap
    from distilvec.judging.clustering import ClusteringTask
    from distilvec.judging.drifting import Drift, drift
    from distilvec.judging.encoder import CachedEncoder, Encode, RidgeMapped, apply_map
    from distilvec.judging.generation import GenerationTask
    from distilvec.judging.loading import expand, load_task, load_tasks, talas_tasks
    from distilvec.judging.neighbours import NeighbourTask
    from distilvec.judging.perceptron import PerceptronTask, disagreement
    from distilvec.judging.perceptron_fit import PerceptronSettings
    from distilvec.judging.probes import ClassificationTask, RegressionTask
    from distilvec.judging.retrieval import RetrievalTask
    from distilvec.judging.scores import Difference, Outputs, Score
    from distilvec.judging.shared import HardItem, hardest
    from distilvec.judging.similarity import PairTask, SimilarityTask
    from distilvec.judging.spec import TaskSpec
    from distilvec.judging.suite import Judgement, judge
    from distilvec.judging.tasks import JudgingTask, settle_tasks
    from distilvec.judging.verdict import FREE, ON_INDEX, TRAINED, UNTRAINED, HeldOutTexts, Verdict, judge_run

__all__ = [
    "FREE",
    "ON_INDEX",
    "TRAINED",
    "UNTRAINED",
    "CachedEncoder",
    "ClassificationTask",
    "ClusteringTask",
    "Difference",
    "Drift",
    "Encode",
    "GenerationTask",
    "HardItem",
    "HeldOutTexts",
    "Judgement",
    "JudgingTask",
    "MtebTask",
    "NeighbourTask",
    "Outputs",
    "PairTask",
    "PerceptronSettings",
    "PerceptronTask",
    "RegressionTask",
    "RetrievalTask",
    "RidgeMapped",
    "Score",
    "SimilarityTask",
    "Slice",
    "TaskSpec",
    "Verdict",
    "agreement",
    "apply_map",
    "automatic_tasks",
    "collapse",
    "disagreement",
    "drift",
    "expand",
    "free_map",
    "hardest",
    "item_masks",
    "judge",
    "judge_run",
    "linear_map",
    "load_task",
    "load_tasks",
    "make_score",
    "paired_bootstrap",
    "settle_tasks",
    "slices",
    "speed",
    "talas_tasks",
]

__getattr__ = exports(__name__)
