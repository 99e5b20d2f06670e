"""One session: opening, turns, streaming, closing, and its view from outside."""
