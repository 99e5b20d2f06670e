"""An agent behind HTTP, as one ASGI application. This package needs the extra ``serve``."""

# application        the application, and the servers that run it
# requests           host, origin and token of every request, its body, and errors as responses
# _agents            turns of single requests, their number, and their end at shutdown
# _history           the conversation of a request
# _event_stream      responses that last as long as a turn
# _openai            /v1/chat/completions, /v1/models, and everything that both OpenAI APIs share
# _openai_responses  /v1/responses
# _ag_ui             /ag-ui, with questions that end a run
# _session_api       /api/sessions
# pages              /, with the files in chat_page, /trace, and /turns as a separate application

from .application import Application, application, run_server
from .requests import Limits

__all__ = [
    "Application",
    "Limits",
    "application",
    "run_server",
]
