"""Commands beside the main job's. `distilvec.cli.main` puts them into the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from distilvec.cli.options import Changes, Output, Quiet, at_home, integers, say, texts_of
from distilvec.errors import DistilvecError

TaskKind = Literal["classification", "pairs", "similarity"]
Served = Literal["float32", "bfloat16", "int8"]


def evaluate(
    model: Annotated[str, typer.Argument(help="any sentence-transformers folder or hub id, or an exported folder")],
    tasks: Annotated[
        list[str],
        typer.Option("--task", "-t", help="task or benchmark of MTEB, task file, or a YAML list of tasks"),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=at_home, help="write the scores as JSON here")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(callback=at_home, help="folder for MTEB's result files; finished tasks are taken from it"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Score any model with the evaluators that score teachers and students."""
    from distilvec.api import evaluate as start
    from distilvec.report import show_scores

    show_scores(start(model, tasks, output, results=results))


def shrink(
    model: Annotated[str, typer.Argument(help="folder or hub id")],
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="where the smaller model goes")],
    layers: Annotated[str | None, typer.Option(help="how many blocks (evenly spaced), or which: 1,6")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="most word pieces to keep")] = None,
    embedding: Annotated[int | None, typer.Option(help="rank of the table of word pieces")] = None,
    inner: Annotated[int | None, typer.Option(help="units of each feed-forward network")] = None,
    heads: Annotated[int | None, typer.Option(help="attention heads of each block")] = None,
    positions: Annotated[int | None, typer.Option(help="keep the first positions")] = None,
    width: Annotated[int | None, typer.Option(help="numbers of the blocks' states")] = None,
    corpus: Annotated[Path | None, typer.Option(help="texts that the cuts are fitted to")] = None,
    text: Annotated[str, typer.Option(help="text column of the corpus")] = "text",
    quiet: Quiet = False,
) -> None:
    """Cut a model's layers, vocabulary and widths, and say what each cut keeps."""
    blocks = integers(layers, "--layers", "2 or 1,6")
    kept: Any = blocks[0] if blocks is not None and len(blocks) == 1 else blocks
    sizes = {"embedding": embedding, "inner": inner, "heads": heads, "positions": positions, "width": width}
    if all(size is None for size in (kept, vocabulary, *sizes.values())):
        raise DistilvecError(
            "there is nothing to shrink", where="shrink", remedy="Give --layers, --vocabulary or another size."
        )
    from distilvec.folders import check_model
    from distilvec.students import ship
    from distilvec.students import shrink as cut

    check_model(output, new=True)
    texts = None if corpus is None else texts_of(corpus, text)
    smaller, report = cut(model, layers=kept, vocabulary=vocabulary, texts=texts, domains=None, seen=None, **sizes)
    ship(smaller, output)
    say(f"{report}\nstudent     {output}")


def push(
    folder: Annotated[Path, typer.Argument(help="a run's folder, or a student's")],
    repository: Annotated[str, typer.Argument(help="on the Hugging Face Hub: name, or organisation/name")],
    private: Annotated[bool, typer.Option("--private", help="where the repository is new")] = False,
    message: Annotated[str | None, typer.Option(help="of the commit")] = None,
    quiet: Quiet = False,
) -> None:
    """Upload a student and its model card to the Hugging Face Hub."""
    from distilvec.flow.push import push as start

    say(start(folder, repository, private=private, message=message))


def align(
    text: Annotated[str, typer.Argument(help="a sentence")],
    student: Annotated[str, typer.Option(help="student model or tokenizer: folder, tokenizer.json or hub id")],
    teacher: Annotated[str, typer.Option(help="teacher model or tokenizer")],
    mode: Annotated[str, typer.Option(help="strict, path, full, reciprocal or spans")] = "strict",
    picture: Annotated[Path | None, typer.Option(help="also draw it into this .png or .svg file")] = None,
    quiet: Quiet = False,
) -> None:
    """Show which tokens of a student and of a teacher stand for the same piece of a sentence."""
    from distilvec.alignment.drawing import align_command

    align_command(text, student, teacher, mode, picture)


def size(folder: Annotated[Path, typer.Argument(help="output folder of runs, or any folder above")]) -> None:
    """List what runs left in a folder, how large it is, and what would be lost with it."""
    from distilvec.cli import disk

    say(disk.text(disk.pieces(folder), folder))


def clean(
    folder: Annotated[Path, typer.Argument(help="output folder of runs, or any folder above")],
    kinds: Annotated[
        list[str] | None,
        typer.Option("--what", help="checkpoints, left over, derived, tokens, corpus or store; default the first two"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove it; without, only say what would go")] = False,
) -> None:
    """Remove checkpoints of finished runs and leftovers, or other kinds; never students and reports."""
    from distilvec.cli import disk

    what: Any = kinds or disk.USUAL
    chosen = disk.clean(folder, what)
    if not chosen:
        say(f"Nothing in {folder} can go.")
        return
    say(disk.text(chosen, folder, files=True))
    if yes:
        disk.clean(folder, what, dry_run=False)
    say("This is removed." if yes else "Nothing is removed yet: say --yes.")


def mine(
    recipe: Annotated[Path, typer.Argument(help="recipe in YAML with corpus and teachers")],
    changes: Changes = None,
    output: Output = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print how much would be encoded and compared; do nothing")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find hard negatives for a corpus of pairs with the first teacher's vectors; run again, it continues."""
    from distilvec.recipe import Recipe

    loaded = Recipe.load(recipe, changes, output=output)
    if dry_run:
        from distilvec.choosing.dry_run import plan

        say(plan(loaded, mining=True).text())
        return
    from distilvec.flow.mine import mine_recipe

    say(mine_recipe(loaded).text())


def finetune(
    model: Annotated[str, typer.Argument(help="sentence-transformers or transformers folder, or hub id")],
    data: Annotated[Path, typer.Option("--data", help="labelled texts or pairs")],
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="folder of the new model")],
    task: Annotated[TaskKind, typer.Option(help="what the labels are")] = "classification",
    text: Annotated[list[str] | None, typer.Option(help="text column; twice for pairs")] = None,
    label: Annotated[str, typer.Option(help="column with class names or scores")] = "label",
    encoding: Annotated[Literal["joint", "separate"] | None, typer.Option(help="of pairs; default joint")] = None,
    validation: Annotated[Path | None, typer.Option(help="labelled file that chooses the best epoch")] = None,
    test: Annotated[Path | None, typer.Option(help="labelled file, scored once at the end")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens per text or joint pair", min=1)] = None,
    lora: Annotated[bool, typer.Option("--lora", help="train low-rank adapters and merge them")] = False,
    lora_rank: Annotated[int | None, typer.Option(help="with --lora: rank of the adapters; default 256", min=1)] = None,
    epochs: Annotated[float, typer.Option(help="passes over the data")] = 3,
    batch_size: Annotated[int, typer.Option(help="texts or pairs per step", min=1)] = 16,
    lr: Annotated[float | None, typer.Option(help="learning rate; default 2e-5, with --lora 1e-4")] = None,
    seed: Annotated[int, typer.Option(help="of order, head and dropout", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Fine-tune a model on labelled texts; run again, it continues."""
    if lora_rank is not None and not lora:
        raise DistilvecError("a rank is one of adapters", where="--lora-rank", remedy="Give --lora, too.")
    from distilvec.flow.finetune import finetune as start
    from distilvec.flow.finetune import finetune_scores

    folder = start(
        model,
        data,
        output,
        task=task,
        encoding=encoding,
        label=label,
        validation=validation,
        test=test,
        text=None if not text else text[0] if len(text) == 1 else text,
        max_length=max_length,
        lora={"rank": lora_rank or 256} if lora else False,
        training={"epochs": epochs, "batch_size": batch_size, "seed": seed},
        optimizer={} if lr is None else {"lr": lr},
    )
    for name, scores in finetune_scores(folder).items():
        say(f"{name:<10}  " + "  ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
    say(f"model       {folder}")


def methods(
    name: Annotated[str | None, typer.Argument(help="show this method's options; also module:Class")] = None,
) -> None:
    """List the methods, or the options of one with defaults and where they come from."""
    from distilvec.methods.table import show_method, show_methods

    say(show_method(name) if name else show_methods())


OwnFolder = Annotated[Path, typer.Option(callback=at_home, help="your own folder, or a checkout of distilvec")]


def new_method(
    name: Annotated[str, typer.Argument(help="the word in recipes: lower case, digits, underscores")],
    folder: OwnFolder = Path("."),
) -> None:
    """Write the first files of a method of your own: code, test and what installs it."""
    from distilvec.methods.skeleton import new_method as start

    say("\n".join(start(name, folder)))


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="print this recipe: distilvec recipes start-texts > my.yaml")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="with the papers' recipes with labels: their settings on this set, e.g. imdb")
    ] = None,
) -> None:
    """List the recipes to start from and the papers' settings, or print one."""
    from distilvec.recipe.packaged import listing, read

    if data and not name:
        raise DistilvecError("--data goes with the name of a recipe", remedy="distilvec recipes lists them")
    say(read(name, data).rstrip() if name else listing())


def questions(
    corpus: Annotated[str, typer.Argument(help="texts: a file, a folder of files, or hub:NAME")],
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="file of pairs (.jsonl)")],
    model: Annotated[str | None, typer.Option(help="causal language model: folder or hub id")] = None,
    call: Annotated[str | None, typer.Option(help="or module:function, from texts to lists of questions")] = None,
    each: Annotated[int, typer.Option(help="questions for each text", min=1)] = 1,
    text: Annotated[str, typer.Option(help="column of the texts")] = "text",
    limit: Annotated[int | None, typer.Option(help="read at most this many texts", min=1)] = None,
    quiet: Quiet = False,
) -> None:
    """Let a language model write questions that texts answer: pairs to train on."""
    from distilvec.kinds.writing.questions import write_questions

    found = write_questions(corpus, output, model=model, call=call, each=each, text=text, limit=limit)
    say(found.line(output))


def serve(
    model: Annotated[str, typer.Argument(help="student (folder or hub id), or a folder of `export`")],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 = all networks")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 = any that is free", min=0, max=65535)] = 8080,
    name: Annotated[str | None, typer.Option(help="name that clients ask for; default the folder's")] = None,
    key_env: Annotated[str | None, typer.Option(help="environment variable with the key that clients send")] = None,
    batch_size: Annotated[int, typer.Option(help="texts that are encoded together", min=1)] = 64,
    precision: Annotated[Served, typer.Option(help="int8: of an export; bfloat16: of all others")] = "float32",
    quiet: Quiet = False,
) -> None:
    """Answer requests for vectors over HTTP, in the shape of OpenAI's /embeddings."""
    from distilvec.serving.serve import serve as start

    start(model, host=host, port=port, name=name, key_env=key_env, batch=batch_size, precision=precision, started=say)


def doctor() -> None:
    """Show versions, devices, and what each extra would add."""
    from distilvec.cli.doctor import report

    say(report())
