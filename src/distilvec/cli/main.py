"""The command line: parses words and calls the library. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from distilvec.cli.options import Changes, Command, Commands, Output, Quiet, at_home, say, silence
from distilvec.errors import GO_ON, DistilvecError, printable
from distilvec.interruption import terminable
from distilvec.progress import LogLines, one_screen
from distilvec.system_errors import REMEDIES, is_full, number_of, system_problem

app = typer.Typer(
    name="distilvec",
    cls=Commands,
    help="Distil large embedding models into small students, and report honestly what was kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
RecipeFile = Annotated[Path, typer.Argument(help="recipe in YAML")]
#: Headings of the list of commands.
START, JUDGE, SHIP, INDEXES, DEVELOP = "Start", "Judge", "Ship", "Indexes", "Develop"


def _version(asked: bool) -> None:
    if asked:
        from distilvec import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def settings(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks and debug messages")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show results and warnings only")] = False,
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
    silence(quiet)


class _Printable(logging.Formatter):
    """Lines whose control characters, which may come from somebody's files, do nothing to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to_terminal(debug: bool) -> None:
    """Log distilvec's messages in plain lines, and everybody's warnings; with `debug` everything, with its origin."""
    handler = LogLines()

    # On the handler: a library that sets a level of its own (bm25s) passes the root's.
    def wanted(record: logging.LogRecord) -> bool:
        return debug or record.levelno >= (logging.INFO if record.name.startswith("distilvec") else logging.WARNING)

    handler.addFilter(wanted)
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s" if debug else "%(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    logging.getLogger("distilvec").setLevel(logging.DEBUG if debug else logging.INFO)
    for name in ("torchao", "torch.utils._pytree"):  # with torchao, they tell of kernels for other machines
        logging.getLogger(name).setLevel(logging.ERROR)


def _recipe(path: Path, changes: list[str] | None, output: Path | None) -> Any:
    from distilvec.recipe import Recipe

    return Recipe.load(path, changes, output=output)


@app.command("run", cls=Command, rich_help_panel=START)
def run_command(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="measure a few steps; print stages, sizes, time and disk"),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Distil as a recipe says: teach, train, judge, report."""
    loaded = _recipe(recipe, changes, output)
    if dry_run:
        from distilvec.choosing.dry_run import plan

        say(plan(loaded).text())
        return
    from distilvec.choosing import settle_student
    from distilvec.flow.run import run

    resume = _resumes(loaded, resume)
    _finish(run(settle_student(loaded, resume=resume), resume=resume))


def _resumes(recipe: Any, resume: bool) -> bool:
    """Tell whether to resume. If there is nothing to resume, a person at a terminal is asked whether to start.

    Without a terminal it starts, with a warning: a scheduler restarts a job with the command of its first start, which
    may have been killed before anything was written.
    """
    out = Path(recipe.output)
    asked = sys.stdin.isatty() and sys.stderr.isatty()
    if not resume or not asked or (out / "recipe.yaml").is_file() or "RANK" in os.environ:
        return resume
    what = "this folder holds no run to resume"
    typer.confirm(f"{printable(str(out))}: {what}. Start from the beginning?", abort=True, err=True)
    return False


def _finish(run: Any) -> None:
    from distilvec.report import show_table

    show_table(run.record)
    say(f"student  {run.folder / 'student'}")
    say(f"report   {run.folder / 'report.html'}")


@app.command(cls=Command, rich_help_panel=START)
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="output folder")] = Path(
        "distilvec-demo"
    ),
    teacher: Annotated[str | None, typer.Option(help="another teacher: folder or hub id")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="another; default by the kind of student"),
    ] = None,
    student: Annotated[str | None, typer.Option(help="another student: folder, hub id, or the word static")] = None,
    cross_tokenizer: Annotated[
        bool, typer.Option("--cross-tokenizer", help="a student with its own byte-level BPE")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="with --cross-tokenizer: token embeddings at random too")
    ] = False,
    texts: Annotated[int, typer.Option(help="training texts", min=200)] = 4000,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted demo")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a small student of a real teacher, offline, in a few minutes, and write its report."""
    from distilvec.flow.demo import demo_recipe
    from distilvec.flow.run import run

    recipe = demo_recipe(
        output,
        teacher=teacher,
        method=method,
        student=student,
        cross_tokenizer=cross_tokenizer,
        fresh=fresh,
        texts=texts,
    )
    _finish(run(recipe, resume=_resumes(recipe, resume)))


@app.command(cls=Command, rich_help_panel=START)
def teach(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: only this share, so that n processes can teach at once")
    ] = None,
    engine: Annotated[Literal["process", "ray"], typer.Option(help="ray: a pool of workers (extra ray)")] = "process",
    workers: Annotated[
        int | None, typer.Option(help="of Ray; default one per GPU, else one per two processors", min=1)
    ] = None,
    address: Annotated[str | None, typer.Option(help="of a Ray cluster; default one on this machine")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print bytes per text and in all; do nothing")] = False,
    batch_files: Annotated[
        Path | None, typer.Option(callback=at_home, help="write what services are to be asked as files of batch jobs")
    ] = None,
    take: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="take the results of such a file")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fill only the stores of a recipe's teachers and scorers."""
    share = _shard(shard)
    if engine == "process" and (workers or address):
        raise DistilvecError("--workers and --address are Ray's", remedy="Add --engine ray.")
    if engine == "ray" and share:
        raise DistilvecError("Ray's workers take their shares themselves", where="--shard", remedy="Leave it out.")
    loaded = _recipe(recipe, changes, output)
    if dry_run:
        from distilvec.choosing.dry_run import plan

        say(plan(loaded, teaching_only=True).text())
        return
    if batch_files or take:
        from distilvec.flow.batch_files import take_results, write_batch_files

        lines = [*take_results(loaded, take)] if take else []
        say("\n".join([*lines, *(write_batch_files(loaded, batch_files) if batch_files else ())]))
        return
    from distilvec.flow.ray import teach_alone, teach_with_ray

    if engine == "ray":
        done = teach_with_ray(loaded, workers=workers, address=address)
    else:
        done = teach_alone(loaded, share)
    for store, filled in done:
        say(f"{store.path}: {len(store):,} rows, {filled.taught:,} new in {filled.seconds:.1f} s")


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    index, slash, count = text.partition("/")
    readable = all(part.isdecimal() and len(part) < 10 for part in (index, count))
    if not slash or not readable or not 0 <= int(index) < int(count):
        raise DistilvecError(
            f'"{text[:200]}" is not i/n with 0 <= i < n', where="--shard", remedy="For example 0/2 and 1/2."
        )
    return int(index), int(count)


@app.command(cls=Command, rich_help_panel=START)
def train(
    recipe: RecipeFile,
    changes: Changes = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the newest checkpoint")] = False,
    quiet: Quiet = False,
) -> None:
    """Teach what is missing, train and save the student; no judging."""
    from distilvec.choosing import settle_student
    from distilvec.flow.run import train as start

    loaded = _recipe(recipe, changes, output)
    resume = _resumes(loaded, resume)
    loaded = settle_student(loaded, resume=resume)
    say(f"student  {start(loaded, resume=resume)}")


@app.command(cls=Command, rich_help_panel=START)
def compare(
    recipe: RecipeFile,
    methods: Annotated[
        list[str],
        typer.Option("--method", "-m", help="a method, auto or module:Class, or with options name:key=value,key=value"),
    ],
    seeds: Annotated[int, typer.Option(help="seeds per method", min=1)] = 3,
    tune: Annotated[bool, typer.Option("--tune", help="choose each method's learning rate among three")] = False,
    reference: Annotated[str | None, typer.Option(help="the method to compare with; default the first")] = None,
    changes: Changes = None,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods with the same data, steps and seeds, and compare them in one table.

    After an interruption the same command continues.
    """
    loaded = _recipe(recipe, changes, output)
    from distilvec.flow.compare import compare as start

    say(start(loaded, methods, seeds=seeds, tune=tune, reference=reference).table())


#: Commands of this file, for which those of the others are not imported.
_OWN = {"compare", "demo", "run", "teach", "train"}


@functools.cache
def every_command() -> typer.Typer:
    """The whole command line: `app` with the commands of the other files."""
    from distilvec.cli import commands, measures, planning

    for group, functions in (
        (
            START,
            (commands.recipes, planning.plan, commands.questions, commands.mine, commands.finetune, commands.shrink),
        ),
        (JUDGE, (commands.evaluate, measures.compress, measures.geometry, commands.align, measures.drift)),
        (SHIP, (measures.export, commands.serve, commands.push)),
        (INDEXES, (measures.check_index, measures.adapt)),
        (DEVELOP, (commands.methods, commands.new_method, commands.doctor, commands.size, commands.clean)),
    ):
        for function in functions:
            app.command(cls=Command, rich_help_panel=group)(function)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Entry point; every error becomes one line and an exit code.

    2 user, 3 data, 4 environment, 130 Ctrl-C, 143 SIGTERM.
    """
    given = sys.argv[1:] if arguments is None else arguments

    def obey() -> Any:
        known = app if _command(given) in _OWN else every_command()
        return one_screen()(known)(args=arguments, standalone_mode=False)

    with terminable() as received:
        _guard(obey, given, received)


#: Commands that begin anew when they are called again.
_KEEP_NOTHING = {"adapt", "check-index", "compress", "drift", "export", "geometry", "shrink"}


def _command(arguments: list[str]) -> str:
    """The command among the words of a command line; "" without one."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _keeps_nothing(arguments: list[str]) -> bool:
    """Tell whether a command that is interrupted has nothing to go on from."""
    command = _command(arguments)
    given = {word.partition("=")[0] for word in arguments}
    if command == "evaluate":  # MTEB's result files are kept as they come
        return "--results" not in given
    if command == "plan" and "--teacher" in given:  # without a recipe it works in a temporary folder
        return not any(word.startswith(("-o", "--output")) for word in given)
    return command in _KEEP_NOTHING


def _of_a_file(error: Exception) -> DistilvecError | None:
    """Return what the system says of a file that nobody expected it to say, such as a model's in a temporary folder."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # wherever a path is looked at first
        return DistilvecError(
            "no file can have a name this long", where=f"{str(error.filename)[:80]}...", remedy="Shorten it."
        )
    if number_of(error) not in REMEDIES:
        return None
    after = "" if getattr(error, "filename", None) else "The option --debug shows which file it is."
    if is_full(error):
        after = f"Temporary files lie in {tempfile.gettempdir()}; TMPDIR names another folder."
    return system_problem(error, "a file cannot be read or written", None, after)


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
    except SystemExit as error:  # ours are raised below, outside; no foreign code may end a command as if it were done
        if isinstance(error.__context__, BrokenPipeError):  # who reads our output has enough, as `head` has
            sys.exit(1)
        told = f"something that was called ended the process (exit code {error.code})"
        typer.secho(f"distilvec: {told}. Nothing after it was done.", fg="red", err=True)
        sys.exit(error.code if isinstance(error.code, int) and error.code else 1)
    except (KeyboardInterrupt, typer.Abort):
        number = received[0] if received else signal.SIGINT
        kept = f"what was finished is kept, {GO_ON}"
        if _keeps_nothing(arguments):
            kept = "it keeps nothing before its end"
        typer.secho(f"distilvec: interrupted by {signal.Signals(number).name}; {kept}.", fg="red", err=True)
        sys.exit(128 + number)
    except Exception as error:
        # Usage errors are click's or, in newer releases of typer, of its own copy of click; both can show themselves.
        if hasattr(error, "show"):
            error.show()
            sys.exit(2)
        if "--debug" in arguments:
            raise
        if (problem := _of_a_file(error)) is not None:
            typer.secho(f"distilvec: {problem}", fg="red", err=True)
            sys.exit(problem.exit_code)
        told = printable(f"unexpected {type(error).__name__}: {error}")
        typer.secho(f"distilvec: {told}. The option --debug shows where it comes from.", fg="red", err=True)
        sys.exit(1)
    sys.exit(result if isinstance(result, int) else 0)
