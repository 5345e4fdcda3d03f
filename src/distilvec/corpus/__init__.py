"""Training items: read from anything, audited, split by content, memory-mapped."""

from typing import TYPE_CHECKING

from distilvec.corpus.audit import Audit
from distilvec.corpus.batch import Batch
from distilvec.corpus.corpus import Corpus, read_corpus
from distilvec.corpus.keys import PAIR, content_key, content_keys, join_pair, split_pair
from distilvec.corpus.sources import Part
from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.corpus.docstrings import docstring_pairs

__all__ = [
    "PAIR",
    "Audit",
    "Batch",
    "Corpus",
    "Part",
    "content_key",
    "content_keys",
    "docstring_pairs",
    "join_pair",
    "read_corpus",
    "split_pair",
]

__getattr__ = exports(__name__)
