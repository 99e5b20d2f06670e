"""OpenAI's two APIs, for the modules that speak them.

`_chat_*` is Chat Completions, `_responses_*` is Responses, each with a file per direction; `_models` knows the models.
"""

from .chat_completions import ChatStyle
from .model_catalogue import DEFAULT_MODEL, ConfiguredModels, OpenAIModels
from .responses_api import ResponsesStyle
from .wire_formats import ChatCompletions, ResponsesApi

__all__ = [
    "DEFAULT_MODEL",
    "ChatCompletions",
    "ChatStyle",
    "ConfiguredModels",
    "OpenAIModels",
    "ResponsesApi",
    "ResponsesStyle",
]
