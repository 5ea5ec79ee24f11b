r"""Scripts that need more than ``\p{Name}`` of the module ``regex``; each stands inside ``[…]``."""

KANA = r"\p{Hiragana}\p{Katakana}ーｰ・"  # Unicode counts these marks to no script
UNSPACED = rf"\p{{Han}}{KANA}\p{{Thai}}\p{{Lao}}\p{{Myanmar}}\p{{Khmer}}"
"""Scripts that are written without spaces between words."""
