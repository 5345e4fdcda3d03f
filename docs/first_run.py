"""Record README's first run in a pseudo-terminal: a clone, its installation, the lines of Python, the report.

    python docs/first_run.py --teacher FOLDER     # writes docs/assets/first-run.txt

The program is README's own. FOLDER stands for the teacher's hub id and is not shown, so that only installing needs a
network. The corpus is the demo's: docstrings of this Python. Of a line that was drawn again and again, a bar, the
recording keeps the last state.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/assets/first-run.txt"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
WIDTH, TEXTS = 120, 1000
HIDDEN = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
#: What is typed before the program starts; `texts.txt` is made in between.
COMMANDS = ("git clone {clone} distilvec", "python -m venv env", "env/bin/pip install ./distilvec")


def program() -> str:
    """README's first program."""
    found = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("README.md has no block of Python")
    return found[1]


def typed(command: str, folder: Path) -> str:
    """What a terminal shows of a command; exits if it fails."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        surroundings |= {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        os.execvpe("bash", ["bash", "-c", command], surroundings)
    written = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # the end of a pseudo-terminal
            break
        if not block:
            break
        written += block
        os.write(sys.stderr.fileno(), block)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"failed: {command}")
    return written.decode(errors="replace")


def as_seen(text: str, hidden: dict[str, str]) -> str:
    """The screen at the end: the last state of each line, without colours and without names of this machine."""
    lines = [HIDDEN.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in text.replace("\r\n", "\n").split("\n")]
    seen = "\n".join(line.rstrip() for line in lines)
    for name, shown in hidden.items():
        seen = seen.replace(name, shown)
    # A terminal breaks long lines anywhere; here they are broken between words.
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in seen.split("\n")).strip("\n")


def main() -> None:
    """Record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="folder of all-mpnet-base-v2")
    teacher = parser.parse_args().teacher.resolve()
    from distilvec.corpus.docstrings import docstring_pairs

    code = program()
    (name,) = re.findall(r'teacher="([^"]+)"', code)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        texts = [" ".join(pair["summary"].split()) for pair in docstring_pairs(limit=TEXTS)]
        (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (folder / "first.py").write_text(code.replace(name, str(teacher)), encoding="utf-8")
        hidden = {str(teacher): name, str(ROOT): "https://.../distilvec", place: "~"}
        parts = []
        for command in (*(each.format(clone=ROOT) for each in COMMANDS), "env/bin/python first.py"):
            lines = as_seen(typed(command, folder), hidden).split("\n")
            if "pip install" in command:  # a line for each of many packages
                last = max(number for number, line in enumerate(lines) if line.startswith("Successfully installed"))
                lines = ["...", f"{lines[last][: WIDTH - 4]} ..."]
            parts.append("\n".join([f"$ {as_seen(command, hidden)}", *filter(None, lines)]))
        shown = f"$ cat first.py\n{code}"
        TARGET.write_text("\n\n".join([*parts[:-1], shown.rstrip("\n"), parts[-1]]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
