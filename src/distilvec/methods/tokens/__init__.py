"""Methods that look inside: at tokens, attention, class logits or the next token; one file per method."""
