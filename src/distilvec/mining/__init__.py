"""Mining: for each query of a corpus of pairs the nearest documents that are no answers to it."""
