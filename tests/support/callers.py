"""A model that calls for real, and a game that can be held in the middle of a call: for kills
inside an episode, and for vLLM.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.conftest import REPOSITORY

_TEMPLATE = REPOSITORY / "recipes" / "templates" / "short_tools.jinja"
_CALLS = [
    {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
    for number in range(1, 10)
]


def build_caller(folder: Path) -> Path:
    """Save a tiny Qwen2 that guesses a number from 1 to 9, mostly twice, then says one, and ends
    each turn.

    Every call is one token of its vocabulary, so that half a minute teaches it. Its heads have 32
    dimensions: vLLM's attention on CPUs takes no smaller ones.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from r1_recipes.models.smoke import build_tiny_model

    build_tiny_model(folder, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = _TEMPLATE.read_text(encoding="utf-8")
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in _CALLS]
    tokenizer.add_tokens([_written(tokenizer, turn) for turn in turns])
    tokenizer.save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    config.update(
        {
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
    )
    torch.manual_seed(0)
    model, rng = AutoModelForCausalLM.from_config(config), Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        batch = tokenizer.apply_chat_template(
            [_conversation(turns, rng) for _ in range(8)],
            tools=[
                {
                    "type": "function",
                    "function": {"name": "guess", "parameters": {"properties": {"number": {}}}},
                }
            ],
            padding=True,
            return_tensors="pt",
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        taught = torch.as_tensor(batch.pop("assistant_masks"))[:, 1:].bool()
        logits = model(**batch).logits[:, :-1]
        torch.nn.functional.cross_entropy(
            logits[taught], batch["input_ids"][:, 1:][taught]
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def _written(tokenizer: Any, turn: dict[str, Any]) -> str:
    text = tokenizer.apply_chat_template([turn], tokenize=False)
    return text[text.index("<tool_call>") : text.index("<|im_end|>")]


def _conversation(turns: list[dict[str, Any]], rng: Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find it."}]
    for _ in range(rng.choice((1, 2, 2))):
        messages += [
            rng.choice(turns),
            {
                "role": "tool",
                "name": "guess",
                "content": f"It is {rng.choice(('higher', 'lower'))}.",
            },
        ]
    return [*messages, {"role": "assistant", "content": str(rng.randint(1, 9))}]


@dataclass
class Game:
    """Guess a number from 1 to 9; hints end by a generator. After ``hold_at`` episodes a call makes
    the file ``hold``, and waits.
    """

    hold: str = ""
    hold_at: int = 0
    begun: ClassVar[int] = 0  # in this process

    @classmethod
    def draw(cls, rng: Random) -> dict[str, Any]:
        return {"question": "Find it.", "number": rng.randint(1, 9), "seed": rng.randrange(2**31)}

    def reset(self, number: int, seed: int = 0, **row: Any) -> None:
        self._number, self._found = number, False
        Game.begun += 1
        self._rng = Random(seed)

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: Your guess.
        """
        if self.hold and Game.begun > self.hold_at and not Path(self.hold).exists():
            Path(self.hold).touch()
            time.sleep(600)
        self._found = number == self._number
        hint = "Right" if self._found else "higher" if number < self._number else "lower"
        return hint + self._rng.choice(".!?")

    def get_reward(self) -> float:
        return float(self._found)
