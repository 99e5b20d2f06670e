"""The command that the suite starts as a client. The test runs the client, without importing everything again."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as broker:
    broker.connect(sys.argv[1])
    stream = broker.makefile("rw", encoding="utf-8")
    variables = {
        name: text for name, text in os.environ.items() if name.startswith("MCP_CONFORMANCE_")
    }
    stream.write(json.dumps({"address": sys.argv[2], "variables": variables}) + "\n")
    stream.flush()
    ended = json.loads(stream.readline())
sys.stdout.write(ended["output"])
sys.exit(ended["status"])
