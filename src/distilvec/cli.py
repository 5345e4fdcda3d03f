"""The command line: parses words and calls the library. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from distilvec.errors import DistilvecError

app = typer.Typer(
    name="distilvec",
    help="Distil large embedding models into small students, and report honestly what was kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
RecipeFile = Annotated[Path, typer.Argument(help="recipe in YAML", metavar="RECIPE")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="change a value: training.epochs=2", metavar="KEY=VALUE")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="output folder instead of the recipe's")]


def _version(asked: bool) -> None:
    if asked:
        from distilvec import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def settings(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks and debug messages")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options for every command."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not debug:
        # Before transformers is imported: its bars for loading and writing weights would hide our own lines.
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    _log_to_terminal(debug)


def _log_to_terminal(debug: bool) -> None:
    """What distilvec does, in plain lines, and everybody's warnings; with `debug` everything, with its origin."""
    handler = logging.StreamHandler()

    # On the handler: a library that sets a level of its own (bm25s) passes the root's.
    def wanted(record: logging.LogRecord) -> bool:
        return debug or record.levelno >= (logging.INFO if record.name.startswith("distilvec") else logging.WARNING)

    handler.addFilter(wanted)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s" if debug else "%(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    logging.getLogger("distilvec").setLevel(logging.DEBUG if debug else logging.INFO)


def _recipe(path: Path, changes: list[str] | None, output: Path | None) -> Any:
    from distilvec.recipe import Recipe

    extra = [f"output={output}"] if output else []
    return Recipe.load(path, [*(changes or []), *extra])


class Task(StrEnum):
    """Kinds of supervised tasks."""

    classification = "classification"
    pairs = "pairs"
    similarity = "similarity"


class Encoding(StrEnum):
    """How a pair of texts is read."""

    joint = "joint"
    separate = "separate"


@app.command("run")
def run_command(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where an interrupted run stopped")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print stages, sizes, time and disk; do nothing")] = False,
) -> None:
    """Distil as a recipe says: teach, train, judge, report."""
    loaded = _recipe(recipe, changes, output)
    if dry_run:
        from distilvec.plan import plan

        typer.echo(plan(loaded).text())
        return
    from distilvec.run import run

    _finish(run(loaded, resume=resume))


def _finish(run: Any) -> None:
    from distilvec.report import show_table

    show_table(run.record)
    typer.echo(f"student  {run.folder / 'student'}")
    typer.echo(f"report   {run.folder / 'report.html'}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="output folder")] = Path("distilvec-demo"),
    teacher: Annotated[str | None, typer.Option(help="another teacher: folder or hub id")] = None,
    method: Annotated[str, typer.Option(help="another method")] = "talas",
    student: Annotated[str | None, typer.Option(help="another student: folder or hub id")] = None,
    cross_tokenizer: Annotated[
        bool, typer.Option("--cross-tokenizer", help="a student with its own byte-level BPE")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="with --cross-tokenizer: token embeddings at random too")
    ] = False,
    texts: Annotated[int, typer.Option(help="training texts", min=200)] = 4000,
) -> None:
    """Offline, with a real teacher, in a few minutes: a small student and its report."""
    from distilvec.demo import demo_recipe
    from distilvec.run import run

    recipe = demo_recipe(
        output,
        teacher=teacher,
        method=method,
        student=student,
        cross_tokenizer=cross_tokenizer,
        fresh=fresh,
        texts=texts,
    )
    _finish(run(recipe))


@app.command()
def teach(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: only this share, so that n processes can teach at once")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say bytes per text and in all; do nothing")] = False,
) -> None:
    """Fill the stores of a recipe's teachers, and nothing else."""
    share = _shard(shard)
    loaded = _recipe(recipe, changes, output)
    if dry_run:
        from distilvec.plan import plan

        typer.echo(plan(loaded, teaching_only=True).text())
        return
    from distilvec.teaching import teach as start

    for taught in start(loaded, shard=share):
        new, seconds = taught.filled.taught, taught.filled.seconds
        typer.echo(f"{taught.store.path}: {len(taught.store):,} rows, {new:,} new in {seconds:.1f} s")


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    index, slash, count = text.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or not 0 <= int(index) < int(count):
        raise DistilvecError(f'"{text}" is not i/n with 0 <= i < n', where="--shard", remedy="For example 0/2 and 1/2.")
    return int(index), int(count)


@app.command()
def train(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint")] = False,
) -> None:
    """Train from stores that `teach` has filled; no judging."""
    from distilvec.run import train as start

    typer.echo(f"student  {start(_recipe(recipe, changes, output), resume=resume)}")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="any sentence-transformers folder or hub id, or an exported folder")],
    tasks: Annotated[
        list[str], typer.Option("--task", "-t", help="benchmark name, task file, or a YAML list of tasks")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the scores as JSON here")] = None,
) -> None:
    """Score any model with the evaluators that score teachers and students."""
    from distilvec.api import evaluate as start
    from distilvec.report import show_scores

    show_scores(start(model, tasks, output))


@app.command()
def compare(
    recipe: RecipeFile,
    methods: Annotated[list[str], typer.Option("--method", "-m", help="a method, or name:key=value,key=value")],
    seeds: Annotated[int, typer.Option(help="seeds per method", min=1)] = 3,
    tune: Annotated[bool, typer.Option("--tune", help="choose each method's learning rate among three")] = False,
    reference: Annotated[str | None, typer.Option(help="the method to compare with; default the first")] = None,
    changes: Changes = None,
    output: Output = None,
) -> None:
    """Several methods with the same data, steps and seeds; one table with deviations and intervals.

    Interrupted, the same command goes on where it was.
    """
    loaded = _recipe(recipe, changes, output)
    from distilvec.comparison import compare as start

    typer.echo(start(loaded, methods, seeds=seeds, tune=tune, reference=reference).table())


@app.command()
def shrink(
    model: Annotated[str, typer.Argument(help="folder or hub id")],
    output: Annotated[Path, typer.Option("--output", "-o", help="where the smaller model goes")],
    layers: Annotated[str | None, typer.Option(help="how many blocks (evenly spaced), or which: 1,6")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="keep at most so many pieces")] = None,
    corpus: Annotated[Path | None, typer.Option(help="texts whose pieces are kept")] = None,
    text: Annotated[str, typer.Option(help="text column of the corpus")] = "text",
) -> None:
    """Cut layers and vocabulary from a model; prints parameters before and after."""
    kept = _layers(layers)
    from distilvec.api import shrink_model

    typer.echo(shrink_model(model, output, layers=kept, vocabulary=vocabulary, corpus=corpus, text=text))


def _layers(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise DistilvecError(
            f'"{text}" is neither a number nor a list of blocks', where="--layers", remedy="For example 2 or 1,6."
        )
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="student folder")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the ONNX files")],
    quantize: Annotated[bool, typer.Option(help="also int8")] = True,
) -> None:
    """The whole pipeline as ONNX, float and int8, with agreement, size and speed."""
    from distilvec.export import export_onnx

    typer.echo(export_onnx(model, output, quantize=quantize).table())


@app.command()
def align(
    text: Annotated[str, typer.Argument(help="a sentence")],
    student: Annotated[str, typer.Option(help="student model or tokenizer: folder, tokenizer.json or hub id")],
    teacher: Annotated[str, typer.Option(help="teacher model or tokenizer")],
    mode: Annotated[str, typer.Option(help="strict, path, full, reciprocal or spans")] = "strict",
    picture: Annotated[Path | None, typer.Option(help="also draw it into this .png or .svg file")] = None,
) -> None:
    """Show which tokens of a student and of a teacher stand for the same piece of a sentence."""
    from distilvec.alignment.drawing import align_command

    align_command(text, student, teacher, mode, picture)


@app.command()
def geometry(
    model: Annotated[str, typer.Argument(help="any sentence-transformers folder or hub id")],
    data: Annotated[Path, typer.Option("--data", help="texts: any file that a corpus can be read from")],
    text: Annotated[str, typer.Option(help="text column")] = "text",
    limit: Annotated[int, typer.Option(help="look at so many texts", min=2)] = 500,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="also write numbers and pictures here")] = None,
) -> None:
    """How an embedder's vectors fill their space; in mixtures of experts, how the active experts lie."""
    from distilvec.api import look_at_geometry

    typer.echo(look_at_geometry(model, data, text=text, limit=limit, output=output))


@app.command("finetune")
def finetune_command(
    model: Annotated[str, typer.Argument(help="sentence-transformers or transformers folder, or hub id")],
    data: Annotated[Path, typer.Option("--data", help="labelled texts or pairs")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the new model")],
    task: Annotated[Task, typer.Option(help="what the labels are")] = Task.classification,
    text: Annotated[list[str] | None, typer.Option(help="text column; twice for pairs")] = None,
    label: Annotated[str, typer.Option(help="column with class names or scores")] = "label",
    encoding: Annotated[Encoding | None, typer.Option(help="of pairs; default joint")] = None,
    validation: Annotated[Path | None, typer.Option(help="labelled file that chooses the best epoch")] = None,
    test: Annotated[Path | None, typer.Option(help="labelled file, scored once at the end")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens per text or joint pair", min=1)] = None,
    lora: Annotated[bool, typer.Option("--lora", help="train low-rank adapters and merge them")] = False,
    lora_rank: Annotated[int, typer.Option(help="rank of the adapters", min=1)] = 256,
    epochs: Annotated[float, typer.Option(help="passes over the data")] = 3,
    batch_size: Annotated[int, typer.Option(help="texts or pairs per step", min=1)] = 16,
    lr: Annotated[float | None, typer.Option(help="learning rate; default 2e-5, with --lora 1e-4")] = None,
    seed: Annotated[int, typer.Option(help="of order, head and dropout", min=0)] = 0,
) -> None:
    """Fine-tune a model on labelled texts; run again, it goes on where it was."""
    from distilvec.finetune import finetune, finetune_scores

    folder = finetune(
        model,
        data,
        output,
        task=task.value,
        encoding=None if encoding is None else encoding.value,
        label=label,
        validation=validation,
        test=test,
        text=None if not text else text[0] if len(text) == 1 else text,
        max_length=max_length,
        lora={"rank": lora_rank} if lora else False,
        training={"epochs": epochs, "batch_size": batch_size, "seed": seed},
        optimizer={"lr": lr} if lr else {},
    )
    for name, scores in finetune_scores(folder).items():
        typer.echo(f"{name:<10}  " + "  ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
    typer.echo(f"model       {folder}")


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="show this method's options")] = None) -> None:
    """List the methods, or the options of one with defaults and where they come from."""
    from distilvec.methods.table import show_method, show_methods

    typer.echo(show_method(name) if name else show_methods())


@app.command()
def doctor() -> None:
    """Versions, devices, and what each extra would add."""
    from distilvec.doctor import report

    typer.echo(report())


def main(arguments: list[str] | None = None) -> None:
    """Entry point; every error becomes one line and an exit code.

    2 user, 3 data, 4 environment, 130 Ctrl-C, 143 SIGTERM.
    """
    with _terminable() as received:
        _guard(
            lambda: app(args=arguments, standalone_mode=False),
            arguments if arguments is not None else sys.argv[1:],
            received,
        )


@contextlib.contextmanager
def _terminable() -> Iterator[list[int]]:
    """SIGTERM ends a command as Ctrl-C does, so that what is open is closed; the list then holds its number."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _guard(action: Callable[[], Any], arguments: list[str], received: list[int]) -> None:
    try:
        result = action()
        if result == 130:  # newer releases of typer catch the interruption themselves, and say nothing
            raise KeyboardInterrupt
    except DistilvecError as error:
        if "--debug" in arguments:
            raise
        typer.secho(f"distilvec: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        number = received[0] if received else signal.SIGINT
        told = f"interrupted by {signal.Signals(number).name}; what was finished is kept"
        again = "run the same command again to go on (run and train: with --resume)"
        typer.secho(f"distilvec: {told}, {again}.", fg="red", err=True)
        sys.exit(128 + number)
    except Exception as error:
        # Usage errors are click's or, in newer releases of typer, of its own copy of click; both can show themselves.
        if hasattr(error, "show"):
            error.show()
            sys.exit(2)
        if "--debug" in arguments:
            raise
        told = f"unexpected {type(error).__name__}: {error}"
        typer.secho(f"distilvec: {told}. The option --debug shows where it comes from.", fg="red", err=True)
        sys.exit(1)
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
