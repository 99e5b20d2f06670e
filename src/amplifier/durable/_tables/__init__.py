"""Turns in the tables of a database: the engines on a file and on DBOS."""
