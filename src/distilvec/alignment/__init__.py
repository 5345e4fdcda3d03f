"""Alignment of the tokens of two tokenizers over one text: by minimum edit distance, and in other ways.

`align` and `warping_path` take the token strings of one text; `Aligner` takes token ids of many texts at once and
remembers the edit distances it has computed. Special tokens are left out by the caller.
"""

from typing import TYPE_CHECKING

from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.alignment.aligner import MODES, Aligner, align, warping_path
    from distilvec.alignment.spans import span_pairs, trim_spans

__all__ = ["MODES", "Aligner", "align", "span_pairs", "trim_spans", "warping_path"]

__getattr__ = exports(__name__)
