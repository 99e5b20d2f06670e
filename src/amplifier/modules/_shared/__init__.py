"""Code that built-in modules of every kind share."""
