"""What holds the modules of one session together, and what each module sees of it."""
