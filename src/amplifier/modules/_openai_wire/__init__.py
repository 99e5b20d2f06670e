"""OpenAI's two wire formats, Chat Completions and Responses, for the provider modules that use them.

Each API has a file for requests and one that reads responses; `model_catalogue` describes the models.
"""

from .chat_completions import ChatCompletions
from .model_catalogue import DEFAULT_MODEL, ConfiguredModels, OpenAIModels
from .responses_api import ResponsesApi

__all__ = [
    "DEFAULT_MODEL",
    "ChatCompletions",
    "ConfiguredModels",
    "OpenAIModels",
    "ResponsesApi",
]
