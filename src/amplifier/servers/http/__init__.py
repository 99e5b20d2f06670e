"""An agent behind HTTP: OpenAI's chat completions and responses, AG-UI, a session API and a chat page, as one ASGI application.

    _application       puts everything together, the one to call; runs it: uvicorn on asyncio, hypercorn on trio
    _requests          host, origin and token of every request; its body within the limits; errors as responses
    _agents            turns of single requests; how many turns run, and how they end at shutdown
    _history           the conversation of a request
    _event_stream      responses that take as long as a turn
    _openai            /v1/chat/completions, /v1/models; parameters, tools and forms of answers of both OpenAI APIs
    _openai_responses  /v1/responses
    _ag_ui             /ag-ui, with questions that end a run
    _session_api       /api/sessions
    _pages             /, with the files in chat_page; /trace; /turns, the turns of a durable engine, an application of its own

Needs the packages of the extra ``serve``.
"""

from .application import Application, application, run_server
from .requests import Limits

__all__ = [
    "Application",
    "Limits",
    "application",
    "run_server",
]
