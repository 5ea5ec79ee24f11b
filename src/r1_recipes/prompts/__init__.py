"""Response formats: define in one place how an answer is asked for, written and read."""

from r1_recipes.prompts.catalogue import CHATML, FORMATS, get_response_format
from r1_recipes.prompts.formats import (
    ParsedResponse,
    ResponseFormat,
    between,
    boxed_spans,
    boxes,
    leaves_open,
    template_prefill,
)

__all__ = [
    "CHATML",
    "FORMATS",
    "ParsedResponse",
    "ResponseFormat",
    "between",
    "boxed_spans",
    "boxes",
    "get_response_format",
    "leaves_open",
    "template_prefill",
]
