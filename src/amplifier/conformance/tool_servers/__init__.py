"""Proof of the tools of any MCP server, and of functions and tools of Python libraries."""

# clauses       the promises of any tool
# permission    the tools that may be called
# subject       the server or Python object under examination, and its secrets
# connection    one connection to a server, over standard streams or HTTP
# python_tools  a program that serves Python functions and tools to that connection
# examination   the calls and findings of one examination
# checks        the checks, each a function of an examination
# run           the whole examination, from a command line to a report
