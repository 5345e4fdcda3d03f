"""Training items: read from anything, audited, split by content, memory-mapped."""

from distilvec.corpus.audit import Audit
from distilvec.corpus.batch import Batch
from distilvec.corpus.corpus import Corpus, read_corpus
from distilvec.corpus.docstrings import docstring_pairs
from distilvec.corpus.keys import content_key, content_keys

__all__ = ["Audit", "Batch", "Corpus", "content_key", "content_keys", "docstring_pairs", "read_corpus"]
