"""The result of an examination: its data model, where in the source to look, how to fix a finding."""
