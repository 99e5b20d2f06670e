"""Proof of tools as they are: those of any MCP server, and those of Python libraries.

clauses       the promises that any tool keeps, whoever serves it
permission    which tools may be called
subject       the server or Python object under examination, and what must stay secret
connection    one connection to a server, over standard streams or HTTP
python_tools  a program that serves Python functions and tools to that connection
examination   the calls of one examination, and what came out of them
checks        the checks, each a function of an examination
run           the whole examination, from a command line to a report
"""
