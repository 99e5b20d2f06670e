"""Hypothesis strategies for the cases that checks ask for. Needs the ``testing`` extra."""
