"""Encoders of text, and encoders with a decoder: positions kept in buffers, computed positions, ties of four names."""

from __future__ import annotations

from tests.zoo.hugging import TEXT, Config, asking, both, family, ids, tokens

BERT: Config = {**TEXT, "intermediate_size": 48, "max_position_embeddings": 32}
T5: Config = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
GATED: Config = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART: Config = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SEQ, ENC = "seq2seq", "encoder"
WORDS = asking(input_ids=ids(12), token_type_ids=ids(12) % 2)

FAMILIES = [
    family(SEQ, "T5ForConditionalGeneration", "T5Config", T5, both, note="tied"),
    family(SEQ, "T5ForConditionalGeneration", "T5Config", GATED, both, note="fp16", dtype="float16", quick=True),
    family(SEQ, "T5ForConditionalGeneration", "T5Config", T5, both, note="bf16, tied", dtype="bfloat16"),
    family(SEQ, "UMT5ForConditionalGeneration", "UMT5Config", GATED, both, note="fp16", dtype="float16"),
    family(SEQ, "UMT5EncoderModel", "UMT5Config", T5, tokens, note="bf16", dtype="bfloat16"),
    family(SEQ, "MT5ForConditionalGeneration", "MT5Config", GATED, both),
    family(SEQ, "LongT5ForConditionalGeneration", "LongT5Config", T5, both),
    family(SEQ, "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", {**T5, "num_experts": 4}, both),
    family(SEQ, "BartForConditionalGeneration", "BartConfig", BART, both, note="tied"),
    family(SEQ, "BartForConditionalGeneration", "BartConfig", BART, both, note="fp16, tied", dtype="float16"),
    family(SEQ, "MBartForConditionalGeneration", "MBartConfig", BART, both),
    family(SEQ, "PegasusForConditionalGeneration", "PegasusConfig", BART, both, quick=True),
    family(SEQ, "PegasusXForConditionalGeneration", "PegasusXConfig", {**BART, "block_size": 4, "num_global_tokens": 2}, both),
    family(SEQ, "MarianMTModel", "MarianConfig", BART, both, note="sinusoidal positions"),
    family(SEQ, "MarianMTModel", "MarianConfig", BART, both, note="sinusoidal positions, fp16", dtype="float16"),
    family(SEQ, "M2M100ForConditionalGeneration", "M2M100Config", BART, both, note="sinusoidal positions", quick=True),
    family(
        SEQ, "M2M100ForConditionalGeneration", "M2M100Config", BART, both, note="sinusoidal positions, fp16", dtype="float16"
    ),
    family(SEQ, "BlenderbotForConditionalGeneration", "BlenderbotConfig", BART, both),
    family(SEQ, "LEDForConditionalGeneration", "LEDConfig", {**BART, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4}, both),
    family(SEQ, "ProphetNetForConditionalGeneration", "ProphetNetConfig", {
        "vocab_size": 96, "hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_encoder_layers": 2, "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "max_position_embeddings": 32, "ngram": 2,
    }, both),
    family(ENC, "BertModel", "BertConfig", BERT, WORDS, quick=True),
    family(ENC, "BertForMaskedLM", "BertConfig", BERT, WORDS, note="tied"),
    family(ENC, "BertForSequenceClassification", "BertConfig", BERT, WORDS, note="fp16", dtype="float16"),
    family(ENC, "RobertaForMaskedLM", "RobertaConfig", BERT, tokens, note="tied"),
    family(ENC, "XLMRobertaModel", "XLMRobertaConfig", BERT, tokens, note="bf16", dtype="bfloat16"),
    family(ENC, "DistilBertModel", "DistilBertConfig", {"vocab_size": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "sinusoidal_pos_embds": True}, tokens),
    family(ENC, "DebertaModel", "DebertaConfig", BERT, tokens),
    family(ENC, "DebertaV2ForMaskedLM", "DebertaV2Config", {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, tokens),
    family(ENC, "ElectraForPreTraining", "ElectraConfig", {**BERT, "embedding_size": 32}, WORDS),
    family(ENC, "AlbertForMaskedLM", "AlbertConfig", {**BERT, "embedding_size": 16}, WORDS),
    family(ENC, "MPNetModel", "MPNetConfig", BERT, tokens),
    family(ENC, "NystromformerModel", "NystromformerConfig", {**BERT, "num_landmarks": 4, "segment_means_seq_len": 12}, asking(input_ids=ids(12))),
    family(ENC, "ModernBertForMaskedLM", "ModernBertConfig", {**BERT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, tokens),
    family(ENC, "LongformerModel", "LongformerConfig", {**BERT, "attention_window": 4}, tokens),
    family(ENC, "BigBirdModel", "BigBirdConfig", {**BERT, "attention_type": "original_full"}, tokens),
    family(ENC, "RoFormerModel", "RoFormerConfig", BERT, tokens),
    family(ENC, "EsmForMaskedLM", "EsmConfig", {**BERT, "position_embedding_type": "rotary", "pad_token_id": 0, "mask_token_id": 1}, tokens),
    family(ENC, "FNetModel", "FNetConfig", {**TEXT, "intermediate_size": 48, "max_position_embeddings": 32}, tokens),
    family(ENC, "ReformerModel", "ReformerConfig", {
        "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16, "feed_forward_size": 48, "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 16], "num_hashes": 1, "num_buckets": 4, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "hash_seed": 0, "is_decoder": False,
    }, asking(input_ids=ids(16))),
]
