"""Response formats: define in one place how an answer is asked for, written and read."""

from r1_recipes.prompts.catalogue import (
    CHATML,
    FORMATS,
    fitting_format,
    get_response_format,
    named_marks,
)
from r1_recipes.prompts.formats import (
    ParsedResponse,
    ResponseFormat,
    boxed_spans,
    leaves_open,
    template_prefill,
)

__all__ = [
    "CHATML",
    "FORMATS",
    "ParsedResponse",
    "ResponseFormat",
    "boxed_spans",
    "fitting_format",
    "get_response_format",
    "leaves_open",
    "named_marks",
    "template_prefill",
]
