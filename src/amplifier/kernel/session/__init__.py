"""One session: opening, turns, streaming, closing, and what can be seen of it from outside."""
