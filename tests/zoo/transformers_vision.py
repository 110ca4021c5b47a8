"""Models that look at pictures: batch norm's running state, computed and interpolated positions, windows' index tables."""

from __future__ import annotations

from tests.zoo.hugging import BLOCKS, Config, asking, family, picture, wave

KIND = "vision"
VIT: Config = {**BLOCKS, "image_size": 16, "patch_size": 8}
RESNET: Config = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
STAGES: Config = {"class": "ResNetConfig", **RESNET, "out_features": ["stage1", "stage2"]}
LAST: Config = {"class": "ResNetConfig", **RESNET, "out_features": ["stage2"]}
SWIN: Config = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
CONVNEXT: Config = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
DETR: Config = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 5,
}
SEGFORMER: Config = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
SAM: Config = {
    "vision_config": {
        "class": "SamVisionConfig",
        **BLOCKS,
        "output_channels": 16,
        "num_pos_feats": 8,
        "image_size": 32,
        "patch_size": 8,
        "window_size": 2,
        "global_attn_indexes": [1],
        "mlp_dim": 48,
    },
    "prompt_encoder_config": {"class": "SamPromptEncoderConfig", "hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"class": "SamMaskDecoderConfig", "hidden_size": 16, "mlp_dim": 24, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
}
POINTS = asking(pixel_values=wave(1, 3, 32, 32), input_points=wave(1, 1, 2, 2) * 16 + 16)
FP16 = {"note": "fp16", "dtype": "float16"}
BF16 = {"note": "bf16", "dtype": "bfloat16"}

FAMILIES = [
    family(KIND, "ViTModel", "ViTConfig", VIT, picture()),
    family(KIND, "ViTForImageClassification", "ViTConfig", VIT, picture(), **FP16),
    family(KIND, "DeiTModel", "DeiTConfig", VIT, picture()),
    family(KIND, "ViTMAEModel", "ViTMAEConfig", VIT, picture()),
    family(KIND, "BeitModel", "BeitConfig", {**VIT, "use_relative_position_bias": True}, picture()),
    family(KIND, "Data2VecVisionModel", "Data2VecVisionConfig", {**VIT, "use_shared_relative_position_bias": True}, picture()),
    family(KIND, "Dinov2Model", "Dinov2Config", VIT, picture(24)),
    family(KIND, "Dinov2Model", "Dinov2Config", VIT, picture(24), **BF16),
    family(KIND, "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", VIT, picture()),
    family(KIND, "DINOv3ViTModel", "DINOv3ViTConfig", VIT, picture(), quick=True),
    family(KIND, "IJepaModel", "IJepaConfig", VIT, picture()),
    family(KIND, "HieraModel", "HieraConfig", {"image_size": [32, 32], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "patch_size": [3, 3], "patch_stride": [4, 4], "patch_padding": [1, 1], "masked_unit_size": [2, 2], "num_query_pool": 1}, picture(32)),
    family(KIND, "SwinModel", "SwinConfig", SWIN, picture(32), quick=True),
    family(KIND, "SwinModel", "SwinConfig", SWIN, picture(32), **FP16),
    family(KIND, "Swinv2Model", "Swinv2Config", SWIN, picture(32), quick=True),
    family(KIND, "DonutSwinModel", "DonutSwinConfig", SWIN, picture(32)),
    family(KIND, "ConvNextModel", "ConvNextConfig", CONVNEXT, picture(32)),
    family(KIND, "ConvNextV2ForImageClassification", "ConvNextV2Config", CONVNEXT, picture(32)),
    family(KIND, "ResNetForImageClassification", "ResNetConfig", RESNET, picture(32)),
    family(KIND, "RegNetModel", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8}, picture(32)),
    family(KIND, "BitModel", "BitConfig", {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4}, picture(32)),
    family(KIND, "MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.25, "image_size": 32}, picture(32)),
    family(KIND, "EfficientNetModel", "EfficientNetConfig", {"width_coefficient": 0.1, "depth_coefficient": 0.1, "image_size": 32, "hidden_dim": 128, "depthwise_padding": []}, picture(32)),
    family(KIND, "LevitModel", "LevitConfig", {"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, picture(64), quick=True),
    family(KIND, "PvtV2Model", "PvtV2Config", {"image_size": 32, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2]}, picture(32)),
    family(KIND, "SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, picture(32)),
    family(KIND, "DetrForObjectDetection", "DetrConfig", {**DETR, "backbone_config": LAST}, picture(64), quick=True),
    family(KIND, "ConditionalDetrForObjectDetection", "ConditionalDetrConfig", {**DETR, "backbone_config": LAST}, picture(64)),
    family(KIND, "DeformableDetrForObjectDetection", "DeformableDetrConfig", {**DETR, "decoder_layers": 2, "num_feature_levels": 2, "backbone_config": STAGES}, picture(64)),
    family(KIND, "RTDetrForObjectDetection", "RTDetrConfig", {
        "d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [8, 16], "feat_strides": [4, 8], "encode_proj_layers": [1], "encoder_layers": 1, "encoder_ffn_dim": 48, "encoder_attention_heads": 4,
        "decoder_in_channels": [32, 32], "num_feature_levels": 2, "decoder_layers": 1, "decoder_ffn_dim": 48, "decoder_attention_heads": 4, "num_queries": 5, "num_labels": 4, "anchor_image_size": [64, 64],
        "backbone_config": {"class": "RTDetrResNetConfig", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "out_features": ["stage1", "stage2"]},
    }, picture(64)),
    family(KIND, "YolosForObjectDetection", "YolosConfig", {**VIT, "image_size": [16, 16], "num_detection_tokens": 4}, picture()),
    family(KIND, "SamModel", "SamConfig", SAM, POINTS, quick=True),
    family(KIND, "SamModel", "SamConfig", SAM, POINTS, **BF16),
    family(KIND, "DPTForDepthEstimation", "DPTConfig", {**VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8}, picture()),
    family(KIND, "DepthAnythingForDepthEstimation", "DepthAnythingConfig", {
        "backbone_config": {"class": "Dinov2Config", **VIT, "num_hidden_layers": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}, "reassemble_hidden_size": 32, "patch_size": 8, "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8,
    }, picture()),
    family(KIND, "SuperPointForKeypointDetection", "SuperPointConfig", {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "keypoint_decoder_dim": 65, "descriptor_decoder_dim": 16}, picture(32)),
    family(KIND, "VitPoseForPoseEstimation", "VitPoseConfig", {"backbone_config": {"class": "VitPoseBackboneConfig", **VIT, "image_size": [16, 16], "patch_size": [8, 8], "out_indices": [2]}, "num_labels": 4}, picture()),
    family(KIND, "TimesformerModel", "TimesformerConfig", {**VIT, "num_frames": 2}, asking(pixel_values=wave(1, 2, 3, 16, 16))),
    family(KIND, "VideoMAEModel", "VideoMAEConfig", {**VIT, "num_frames": 2}, asking(pixel_values=wave(1, 2, 3, 16, 16))),
]
