"""What a model makes of a few texts, as vectors: to compare two models that should be the same.

The checkpoint's own tokenizer is used where there is one; else token numbers are made from the
text's bytes. The vector is the mean of the last hidden states (the logits, for a head), weighted
by the attention mask, which is what sentence encoders call an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoTokenizer, PreTrainedModel

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint
from coldstart_transformers.quiet import quiet


def answers(model: PreTrainedModel, checkpoint: Checkpoint, texts: Sequence[str]) -> list[list[float]]:
    """One float32 vector per text; bit-equal for bit-equal weights on the same machine.

    Raises:
        SkeletonError: the model does not take token numbers.
    """
    with quiet(), torch.inference_mode():
        batch = _tokens(model, checkpoint, texts)
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = batch["input_ids"]
        try:
            output = model(**batch)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise SkeletonError(f"{type(model).__name__} does not answer texts: {error}") from error
        states = getattr(output, "last_hidden_state", None)
        states = (output[0] if states is None else states).float()
        if states.ndim != 3:
            return [[float(value) for value in row] for row in states.flatten(1).tolist()]
        mask = batch["attention_mask"][:, :, None].to(states)
        mean = (states * mask).sum(1) / mask.sum(1)
        return [[float(value) for value in row] for row in mean.tolist()]


def _tokens(model: PreTrainedModel, checkpoint: Checkpoint, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    if (checkpoint.path / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.path, local_files_only=True)
        encoded = tokenizer(list(texts), padding=tokenizer.pad_token is not None, return_tensors="pt")
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 256))
    length = min(len(text.encode()) for text in texts)
    numbers = torch.tensor([[byte % vocabulary for byte in text.encode()[:length]] for text in texts])
    return {"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}
