"""Kinds of items: texts, images, molecules, and prompts with the answers that a student is to write."""
