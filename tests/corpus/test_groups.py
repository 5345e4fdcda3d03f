"""Pairs and triplets of a corpus, whole and with parts missing."""

import numpy as np

from distilvec.corpus import read_corpus
from distilvec.corpus.groups import companion_rows, rows_with_companions


def by_hand(groups: list[int], roles: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for row, (group, role) in enumerate(zip(groups, roles, strict=True)):
        others = [i for i in range(len(groups)) if groups[i] == group and i != row]
        positives = [i for i in others if roles[i] == 1]
        found.append(positives + [i for i in others if roles[i] == 2] if role == 0 and positives else [])
    width = max([len(each) for each in found] + [1])
    return [each + [each[0] if each else -1] * (width - len(each)) for each in found]


def test_against_a_loop_over_rows() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        groups, roles = [], []
        for group in generator.permutation(6).tolist():
            # Parts of a group that were rejected are not there.
            members = [role for role in (0, 1, 2, 2) if generator.random() < 0.7]
            groups += [group] * len(members)
            roles += members
        if not groups or not any(sum(g == group for g in groups) > 1 for group in groups):
            continue
        found = companion_rows(np.array(groups), np.array(roles))
        expected = by_hand(groups, roles)
        width = len(expected[0])
        assert (found[:, :width] == expected).all()
        # A wider array comes from a larger group that has no anchor.
        assert all((row[width:] == row[0]).all() for row in found)
        nearest = companion_rows(np.array(groups), np.array(roles), 1)
        assert (nearest == np.array(expected)[:, :1]).all()


def test_rows_of_a_corpus_whose_texts_are_partly_rejected() -> None:
    rows = [
        {"a": "a man eats", "p": "someone eats", "n": "nobody is there"},
        {"a": "a dog runs", "p": "", "n": "a cat sleeps"},
        {"a": "two birds sing", "p": "birds make music", "n": ""},
        {"a": "a man eats", "p": "a person has a meal", "n": "nobody is there"},
    ]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        corpus = read_corpus(rows, folder, text=["a", "p", "n"], holdout=0.0)
        anchors, companions = rows_with_companions(corpus, corpus.train_rows, None)
        assert companions is not None
        read = {corpus.texts([row])[0]: corpus.texts(companions[row]) for row in anchors.tolist()[:2]}
        single, none = rows_with_companions(corpus, corpus.train_rows, 0)
    assert list(single) == list(corpus.train_rows) and none is None
    assert len(anchors) == 3 or read["a man eats"] == ["someone eats", "nobody is there"]
    assert all(len(texts) == 2 for texts in read.values())
