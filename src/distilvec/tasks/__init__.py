"""Supervised tasks: a head on the student's sentence vector, its loss, its metrics, and models that answer."""
