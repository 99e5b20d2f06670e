"""JSON in and out of models."""
