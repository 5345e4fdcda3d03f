"""The command line: words in, calls of the library out."""
