"""An agent at the terminal: its plan, its turns, approvals, signals and the chat."""
