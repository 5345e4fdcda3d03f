"""What is measured of a checkout. A rule is a function: its name and its docstring are printed.

It returns a number, [a part, the whole], or the places that it counts.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable

from housing.checkout import House, statements

#: What is not the spine: patterns of paths under src/distilvec (`*` matches slashes, too), of today and of the plan.
OUTSIDE = {
    "images and molecules": "kinds/image/* kinds/molecule/* *networks.py *molecule.py *molecules.py corpus/images.py "
    "corpus/npz.py corpus/folders.py modules/cifar_resnet.py modules/smiles_network.py modules/vision.py "
    "judging/perceptron*.py judging/probe_items.py students/image.py teachers/items.py training/items.py",
    "writing": "kinds/writing/* */writing.py modules/causal.py modules/spelling.py training/written.py "
    "judging/generation.py tasks/generation.py methods/*next_tokens.py",
    "mixtures": "mixtures/* */mixtures.py methods/*distillmoe.py methods/*experts.py modules/moe_*.py "
    "modules/expert_*.py modules/routing.py modules/aggregation.py */sphere.py functional/gating.py "
    "students/upcycl*.py",
    "indexes": "indexes/*",
    "web": "export/web/* export/browser.py export/library.py export/page.py",
    "Ray": "flow/ray/*",
    "serving": "serving/*",
}
OUTER = " ".join(OUTSIDE.values())
#: What a user may give where a teacher is meant.
FORMS = {"str", "bytes", "Path", "PathLike", "dict", "list", "tuple", "Mapping", "Sequence", "Recipe"}
NOUN_CLAUSE = re.compile(r"(What|Whether|Which|Who|Whose|Where|When|Why|How|Of)\b")
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Measure = Callable[[House], int | list[int] | list[str]]
RULES: dict[str, tuple[str, Measure]] = {}


def rule(aim: str = "") -> Callable[[Measure], Measure]:
    """Put a function among the rules, with what issue 61 aims at."""

    def put(measure: Measure) -> Measure:
        RULES[measure.__name__.replace("_", " ")] = (aim, measure)
        return measure

    return put


@rule("at most 56,000")
def lines_of_src(house: House) -> int:
    """of its Python files, empty lines and comments included"""
    return house.lines()


@rule("at most 46,000")
def lines_of_the_spine(house: House) -> int:
    """src without kinds other than text, mixtures, indexes, web, Ray and serving: the paths in the table below"""
    return house.lines() - house.lines(OUTER)


@rule()
def lines_of_tests(house: House) -> int:
    """of the Python files under tests/"""
    return house.lines_under("tests")


@rule()
def lines_of_experiments(house: House) -> int:
    """of the Python files under experiments/"""
    return house.lines_under("experiments")


@rule()
def files_of_src(house: House) -> int:
    """Python files"""
    return len(house.texts)


@rule("0")
def functions_over_60_lines(house: House) -> list[str]:
    """functions and methods of src, from `def` to the last line, docstring included"""
    sizes = [(place, node, node.end_lineno - node.lineno + 1) for place, node in house.nodes(*DEFINITIONS[1:])]
    return [f"{place} {node.name}: {size}" for place, node, size in sizes if size > 60]


@rule("0")
def functions_with_more_than_7_parameters(house: House) -> list[str]:
    """of src; not `self` and `cls`; commands of the command line, whose parameters are what users type, included"""
    found = []
    for place, node in house.nodes(*DEFINITIONS[1:]):
        ours = node.args
        given = [*ours.posonlyargs, *ours.args, *ours.kwonlyargs, *filter(None, (ours.vararg, ours.kwarg))]
        count = sum(each.arg not in ("self", "cls") for each in given)
        found += [f"{place} {node.name}: {count}"] * (count > 7)
    return found


@rule("0")
def files_over_400_lines(house: House) -> list[str]:
    """Python files of src"""
    return [f"{name}: {size}" for name in house.texts if (size := house.lines(name)) > 400]


@rule("under 45 %")
def modules_imported_by_a_default_run(house: House) -> list[int]:
    """files of src loaded at the end of `distilvec run` on the tests' tiny BERT and 223 texts; the recipe says no more
    than it must"""
    return [len(house.run["loaded"]), len(house.texts)]


@rule()
def statements_executed_by_a_default_run(house: House) -> list[int]:
    """the same run; statements of src that compile to code, without docstrings"""
    seen = {file: set(lines) for file, lines in house.run["lines"].items()}
    files = [(seen.get(str(house.package / name), set()), text) for name, text in house.texts.items()]
    ran = [bool(lines & executed) for executed, text in files for lines in statements(text)]
    return [sum(ran), len(ran)]


@rule("0")
def overrides_of_foreign_private_methods(house: House) -> list[str]:
    """methods with one leading underscore that a base in transformers, sentence_transformers, accelerate or torch has,
    too; classes at the top of a module; not `_init_weights`, which transformers asks of every model"""
    return house.inherited["methods"]


@rule()
def private_attributes_of_libraries_set(house: House) -> list[str]:
    """`x._name = ...` where x is not `self` and the file does not define `_name` itself; and `self._name = ...` where
    the source of a base in those libraries uses `self._name`"""
    found = list(house.inherited["attributes"])
    for place, node in house.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and re.match("_[a-z]", node.attr):
            defined = re.search(rf"(self\.|def |^ +){node.attr}\b", house.texts[place.split(":")[0]], re.MULTILINE)
            if not defined and ast.unparse(node.value) not in ("self", "cls"):
                found.append(f"{place} {ast.unparse(node)}")
    return found


@rule("0")
def questions_about_the_type_of_a_teacher(house: House) -> list[str]:
    """`hasattr`, `getattr` and `isinstance` outside teachers/ whose first argument is `teacher`, `x.teacher` or
    `teachers[...]`; not `isinstance` with str, Path, Mapping, Recipe and the like, which a user may have given"""

    def asks(called: str, first: str, second: str) -> bool:
        form = called == "isinstance" and set(re.findall(r"\w+", second)) <= FORMS
        return not form and re.fullmatch(r"(.*\.)?(teacher|teachers\[.*\])", first) is not None

    calls = [(place, node) for place, node in house.nodes(ast.Call, without="teachers/*") if len(node.args) > 1]
    asked = [each for each in calls if ast.unparse(each[1].func) in ("hasattr", "getattr", "isinstance")]
    return [
        f"{place} {ast.unparse(node)}"
        for place, node in asked
        if asks(*(ast.unparse(each) for each in (node.func, *node.args[:2])))
    ]


@rule("0")
def tests_of_kind_in_the_spine(house: House) -> list[str]:
    """comparisons with "image" and "molecule"; with "text" where a modality or kind is compared; of a `separator` with
    None; calls of `find_writer` and `writes`; all outside kinds/"""

    def asks(node: ast.Call | ast.Compare) -> bool:
        if isinstance(node, ast.Call):
            return ast.unparse(node.func).split(".")[-1] in ("find_writer", "writes")
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            return ast.unparse(node.left).split(".")[-1] == "separator"
        sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
        words = {each.value for each in sides if isinstance(each, ast.Constant)}
        return bool(words & {"image", "molecule"} or ("text" in words and re.search("modalit|kind", ast.unparse(node))))

    found = house.nodes(ast.Call, ast.Compare, without=f"kinds/* {OUTER}")
    return [f"{place} {ast.unparse(node)}" for place, node in found if asks(node)]


@rule("0")
def options_of_methods_without_a_user(house: House) -> list[str]:
    """fields of classes ...Options under methods/ that no recipe of the package, page (without generated parts),
    experiment, example or benchmark names: in Python as keyword, attribute or in a string. What has the same name as
    something else counts as named"""
    scripts = "experiments examples benchmarks"
    return house.unused_options((f"docs src {scripts}", ".md .yaml"), (scripts, ".py"))


@rule()
def options_of_methods_that_nothing_names(house: House) -> list[str]:
    """the same, and no other file of src and no test names them"""
    return house.unused_options(("docs experiments examples benchmarks src tests", ".md .yaml .py"))


@rule()
def lines_with_comments(house: House) -> list[int]:
    """lines of src that are or hold a comment"""
    files = [tokenize.generate_tokens(io.StringIO(text).readline) for text in house.texts.values()]
    return [sum(each.type == tokenize.COMMENT for tokens in files for each in tokens), house.lines()]


@rule()
def docstrings_that_begin_with_a_noun_clause(house: House) -> list[str]:
    """of modules, classes and functions of src: What, Whether, Which, Who, Whose, Where, When, Why, How, Of"""
    said = [(place, ast.get_docstring(node) or "") for place, node in house.nodes(ast.Module, *DEFINITIONS)]
    return [f"{place} {text.splitlines()[0]}" for place, text in said if NOUN_CLAUSE.match(text)]


@rule()
def file_names_used_more_than_once(house: House) -> list[str]:
    """names of files of src, without `__init__.py`"""
    names = Counter(name.split("/")[-1] for name in house.texts)
    return [name for name, count in names.items() if count > 1 and name != "__init__.py"]


@rule()
def class_names_used_more_than_once(house: House) -> list[str]:
    """of src, underscores before a name left out"""
    names = Counter(node.name.lstrip("_") for _, node in house.nodes(ast.ClassDef))
    return [name for name, count in names.items() if count > 1]
