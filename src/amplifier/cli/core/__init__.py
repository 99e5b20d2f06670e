"""Shared by all commands: exit codes, error messages, installed modules, the record of a turn."""
