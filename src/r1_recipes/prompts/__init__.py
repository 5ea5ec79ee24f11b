"""Response formats: define in one place how an answer is asked for, written and read."""

from r1_recipes.prompts.formats import (
    CHATML,
    FORMATS,
    ParsedResponse,
    ResponseFormat,
    between,
    boxes,
    get_response_format,
    template_prefill,
)

__all__ = [
    "CHATML",
    "FORMATS",
    "ParsedResponse",
    "ResponseFormat",
    "between",
    "boxes",
    "get_response_format",
    "template_prefill",
]
