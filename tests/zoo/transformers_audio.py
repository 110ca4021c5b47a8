"""Models that hear and speak: weight norm in its old and its new form, codebooks, noise that is drawn while they run."""

from __future__ import annotations

from tests.zoo.hugging import BLOCKS, TEXT, Config, asking, family, ids, tokens, wave

KIND = "audio"
WAV2VEC2: Config = {
    **BLOCKS,
    "vocab_size": 32,
    "conv_dim": [8, 8],
    "conv_stride": [4, 2],
    "conv_kernel": [8, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
SPECIAL: Config = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER: Config = {
    **SPECIAL,
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 16,
}
ENCODEC: Config = {"num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [4, 2], "num_lstm_layers": 1}
VITS: Config = {
    "vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24, "flow_size": 16, "spectrogram_bins": 9, "upsample_initial_channel": 16,
    "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "duration_predictor_filter_channels": 16,
    "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2, "depth_separable_num_layers": 2, "prior_encoder_num_flows": 2,
}
SOUND = asking(input_values=wave(1, 400))
MEL = asking(input_features=wave(1, 8, 40), decoder_input_ids=ids(5))
FP16 = {"note": "fp16", "dtype": "float16"}
BF16 = {"note": "bf16", "dtype": "bfloat16"}

FAMILIES = [
    family(KIND, "Wav2Vec2Model", "Wav2Vec2Config", WAV2VEC2, SOUND, note="weight norm", quick=True),
    family(KIND, "Wav2Vec2ForCTC", "Wav2Vec2Config", {**WAV2VEC2, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}, SOUND, note="weight norm, bf16", dtype="bfloat16"),
    family(KIND, "HubertModel", "HubertConfig", WAV2VEC2, SOUND, note="weight norm"),
    family(KIND, "HubertModel", "HubertConfig", WAV2VEC2, SOUND, note="weight norm, bf16", dtype="bfloat16"),
    family(KIND, "WavLMModel", "WavLMConfig", WAV2VEC2, SOUND),
    family(KIND, "UniSpeechModel", "UniSpeechConfig", WAV2VEC2, SOUND),
    family(KIND, "UniSpeechSatModel", "UniSpeechSatConfig", WAV2VEC2, SOUND),
    family(KIND, "SEWModel", "SEWConfig", {**WAV2VEC2, "squeeze_factor": 2}, SOUND),
    family(KIND, "Data2VecAudioModel", "Data2VecAudioConfig", {**WAV2VEC2, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3}, SOUND),
    family(KIND, "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", {**WAV2VEC2, "position_embeddings_type": "rotary"}, SOUND, note="rotary"),
    family(KIND, "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", {**WAV2VEC2, "position_embeddings_type": "relative"}, SOUND, note="relative"),
    family(KIND, "Wav2Vec2BertModel", "Wav2Vec2BertConfig", {**BLOCKS, "feature_projection_input_dim": 16}, asking(input_features=wave(1, 20, 16))),
    family(KIND, "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, MEL, note="tied"),
    family(KIND, "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, MEL, note="fp16, tied", dtype="float16"),
    family(KIND, "Speech2TextForConditionalGeneration", "Speech2TextConfig", {
        **WHISPER, "input_feat_per_channel": 8, "conv_channels": 16, "conv_kernel_sizes": [3, 3]}, asking(input_features=wave(1, 40, 8), decoder_input_ids=ids(5)), quick=True),
    family(KIND, "MoonshineForConditionalGeneration", "MoonshineConfig", {
        **SPECIAL, "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "max_position_embeddings": 64,
    }, asking(input_values=wave(1, 1600), decoder_input_ids=ids(5))),
    family(KIND, "ASTModel", "ASTConfig", {**BLOCKS, "num_mel_bins": 16, "max_length": 24, "patch_size": 8, "time_stride": 8, "frequency_stride": 8}, asking(input_values=wave(1, 24, 16))),
    family(KIND, "SpeechT5ForTextToSpeech", "SpeechT5Config", {
        **WAV2VEC2, "vocab_size": 96, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "num_mel_bins": 8, "reduction_factor": 1, "speech_decoder_prenet_units": 16, "speech_decoder_postnet_units": 16, "speech_decoder_prenet_dropout": 0.0, "speaker_embedding_dim": 16,
    }, asking(input_ids=ids(), decoder_input_values=wave(1, 6, 8), speaker_embeddings=wave(1, 16))),
    family(KIND, "SpeechT5HifiGan", "SpeechT5HifiGanConfig", {"model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4]}, asking(spectrogram=wave(12, 8)), note="weight norm"),
    family(KIND, "VitsModel", "VitsConfig", VITS, tokens, note="weight norm", quick=True),
    family(KIND, "EncodecModel", "EncodecConfig", ENCODEC, asking(input_values=wave(1, 1, 320)), note="weight norm", quick=True),
    family(KIND, "DacModel", "DacConfig", {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4}, asking(input_values=wave(1, 1, 320))),
    family(KIND, "MimiModel", "MimiConfig", {
        **BLOCKS, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 16, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_quantizers": 4, "upsample_groups": 32, "head_dim": 8, "num_key_value_heads": 4, "frame_rate": 1500,
    }, asking(input_values=wave(1, 1, 640))),
    family(KIND, "MusicgenForConditionalGeneration", "MusicgenConfig", {
        "text_encoder": {"class": "T5Config", "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4},
        "audio_encoder": {"class": "EncodecConfig", **ENCODEC},
        "decoder": {"class": "MusicgenDecoderConfig", "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 48, "num_codebooks": 2, "max_position_embeddings": 32, "pad_token_id": 16, "bos_token_id": 16},
    }, asking(input_ids=ids(), decoder_input_ids=ids(5, 2, 0, 15)), quick=True),
    family(KIND, "SeamlessM4Tv2ForTextToText", "SeamlessM4Tv2Config", {
        "vocab_size": 96, "t2u_vocab_size": 32, "hidden_size": 32, "max_position_embeddings": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "speech_encoder_layers": 1, "speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 48, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1, **SPECIAL,
    }, asking(input_ids=ids(), decoder_input_ids=ids(5))),
    family(KIND, "ParakeetForCTC", "ParakeetCTCConfig", {
        "vocab_size": 32, "pad_token_id": 0, "encoder_config": {"class": "ParakeetEncoderConfig", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5},
    }, asking(input_features=wave(1, 64, 16))),
    family(KIND, "ClapModel", "ClapConfig", {
        "text_config": {"class": "ClapTextConfig", **TEXT, "intermediate_size": 48, "max_position_embeddings": 32, "projection_dim": 16},
        "audio_config": {"class": "ClapAudioConfig", "hidden_size": 16, "patch_embeds_hidden_size": 8, "spec_size": 32, "num_mel_bins": 8, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 2, "patch_size": 4, "patch_stride": [4, 4], "projection_dim": 16},
        "projection_dim": 16,
    }, asking(input_ids=ids(), input_features=wave(1, 1, 64, 8), is_longer=wave(1, 1) > 2)),
]
