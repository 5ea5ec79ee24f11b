"""One mapper per dataset family: a source row -> question, solution and, where the source has one, worked reasoning or a whole response.

A mapper reads columns and nothing else; the response format turns what it returns into prompts and targets. Importing this registers
the families' mappers.
"""

from r1_recipes.data.mappers.base import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers.chats import Conversations, read_conversation, read_turns
from r1_recipes.data.mappers.code import VerifiableCode
from r1_recipes.data.mappers.columns import PromptSolution, ReasoningColumns
from r1_recipes.data.mappers.countdown import Countdown
from r1_recipes.data.mappers.distilled import OpenThoughts, R1DistillSFT
from r1_recipes.data.mappers.generated import Generated
from r1_recipes.data.mappers.images import ImageQuestion
from r1_recipes.data.mappers.maths import DAPO, GSM8K, Math, OpenR1Math, SimpleRL, last_boxed
from r1_recipes.data.mappers.medical import MedicalVerifiable
from r1_recipes.data.mappers.reasoning_gym import Arithmetic, ReasoningGym
from r1_recipes.data.mappers.summaries import Summary
from r1_recipes.data.mappers.verl import Verl

__all__ = [
    "DAPO",
    "GSM8K",
    "MAPPERS",
    "Arithmetic",
    "Conversations",
    "Countdown",
    "Generated",
    "ImageQuestion",
    "Mapper",
    "Math",
    "MedicalVerifiable",
    "OpenR1Math",
    "OpenThoughts",
    "PromptSolution",
    "R1DistillSFT",
    "ReasoningColumns",
    "ReasoningGym",
    "SimpleRL",
    "SkipRow",
    "Summary",
    "VerifiableCode",
    "Verl",
    "get_mapper",
    "last_boxed",
    "read_conversation",
    "read_turns",
    "register_mapper",
]
