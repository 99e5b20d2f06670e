"""An agent behind HTTP: OpenAI's chat completions and responses, AG-UI, a session API and a chat page, as one ASGI application.

    _application    puts everything together; the one to call
    _guard          host, origin and token of every request
    _limits         sizes, numbers and times; reading of bodies
    _agents         turns of single requests; how many turns run, and how they end at shutdown
    _history        the conversation of a request
    _openai_request    parameters, tools and forms of answers of both OpenAI APIs
    _openai_chat       /v1/chat/completions, /v1/models
    _openai_responses  /v1/responses
    _ag_ui          /ag-ui, with questions that end a run
    _session_api    /api/sessions
    _pages          /, with the files in chat_page; /trace; /turns, the turns of a durable engine, an application of its own
    _servers        uvicorn on asyncio, hypercorn on trio

Needs the packages of the extra ``serve``.
"""

from ._application import Application, application
from ._limits import Limits
from ._servers import run_server

__all__ = [
    "Application",
    "Limits",
    "application",
    "run_server",
]
