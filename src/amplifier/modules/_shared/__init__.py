"""What built-in modules of every kind share."""
