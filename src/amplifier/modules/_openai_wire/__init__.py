"""OpenAI's two APIs, for the modules that speak them.

`_chat_*` is Chat Completions, `_responses_*` is Responses, each with a file per direction; `_models` knows the models.
"""

from ._chat_encode import ChatStyle
from ._dialects import ChatDialect, ResponsesDialect
from ._models import DEFAULT_MODEL, AnyModels, OpenAIModels
from ._responses_encode import ResponsesStyle

__all__ = [
    "DEFAULT_MODEL",
    "AnyModels",
    "ChatDialect",
    "ChatStyle",
    "OpenAIModels",
    "ResponsesDialect",
    "ResponsesStyle",
]
