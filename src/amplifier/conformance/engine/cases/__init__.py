"""The cases that checks are run on, listed and drawn. Needs the ``testing`` extra."""
