"""Completions by Transformers."""

from types import SimpleNamespace


def test_reading_a_prompt_once_changes_no_completion(tmp_path):
    """The shared cache must give what plain generation gives, for prompts of different lengths in
    one padded batch.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from r1_recipes.completions.transformers import complete, sampling
    from r1_recipes.completions.types import Request
    from r1_recipes.models.smoke import build_tiny_model

    folder = build_tiny_model(tmp_path, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # A random model's logits are nearly flat; larger weights make its path sure of itself and
    # dependent on the prompt.
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data *= 12
    prompts = [[{"role": "user", "content": text}] for text in ("x", "hello, you", "4 + 1")]
    settings = SimpleNamespace(
        temperature=1e-4, top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0
    )
    requests = [Request(index, prompt) for index, prompt in enumerate(prompts)]
    greedy, sampled = complete(
        model,
        tokenizer,
        requests,
        [(sampling(settings, temperature=0), 1), (sampling(settings), 2)],
        12,
    )

    expected = []
    for prompt in prompts:
        inputs = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[
            0, inputs["input_ids"].shape[1] :
        ].tolist()
        end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
        expected.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    assert [[completion.text for completion in group] for group in greedy] == [
        [text] for text in expected
    ]
    assert len(set(expected)) > 1
    # at a temperature next to zero sampling is greedy too; two samples a row, row by row
    assert [[completion.text for completion in group] for group in sampled] == [
        [text, text] for text in expected
    ]
    for group in greedy + sampled:
        for completion in group:
            assert 0 < completion.tokens <= 12 and (completion.finish_reason == "length") <= (
                completion.tokens == 12
            )
