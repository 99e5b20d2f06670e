"""Input from and output to a terminal or a pipe."""
