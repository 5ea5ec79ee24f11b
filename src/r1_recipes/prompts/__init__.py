"""Response formats: what an answer must look like, said once."""

from r1_recipes.prompts.catalogue import CHATML, FORMATS, get_response_format
from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat, boxed_spans, template_prefill

__all__ = ["CHATML", "FORMATS", "ParsedResponse", "ResponseFormat", "boxed_spans", "get_response_format", "template_prefill"]
