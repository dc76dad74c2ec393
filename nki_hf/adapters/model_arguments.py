"""Keyword arguments that reach attention functions although they do not concern the attention.

`PASSED_ALONG` is made by tools/model_arguments.py from the source of Transformers: what callers may give a model, or what
models add, on the way to the attention's `**kwargs`, without what any attention function there reads. A test scans the
installed release.
"""

__all__ = ["MEANINGFUL", "PASSED_ALONG"]

MEANINGFUL = frozenset(
    {
        # multiplied with the weights by eager attention before Transformers 5
        "head_mask", "layer_head_mask", "cross_attn_head_mask", "decoder_head_mask",
        # other names of a mask, a bias, a scale, a cap, a window or packed lengths: what they hide or add would be lost
        "alibi", "attention_bias", "attn_bias", "attn_mask", "bias", "biases", "block_mask", "causal_mask", "key_padding_mask",
        "mask", "padding_mask", "score_mod", "scale", "softmax_scale", "logit_softcapping", "attn_logit_softcapping",
        "window_size", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "use_top_left_mask", "dropout_p", "attention_dropout",
    }
)  # fmt: skip
"""Names that speak of the attention's values: never ignored, whatever models pass them along."""

# begin: python tools/model_arguments.py --write
PASSED_ALONG = frozenset(
    """
        D acoustic_loss_mask acoustic_tokenizer_chunk_size action_embeds actions activation
        activation_checkpointing_kwargs adapter_kwargs adapter_name aftercnn_lens aggregation_labels align_corners
        all_masked_rows allow_all_kernels allow_custom_entries allow_is_causal_skip always_partition and_mask_function
        ans apply_cfg aspect_ratio_ids aspect_ratio_mask assistant_confidence_threshold assistant_early_exit
        assistant_ensemble_weight assistant_lookbehind assistant_model assistant_tokenizer asym_id atom_inputs
        attack_attention_mask attack_input_ids attack_input_pronunciation_ids attack_input_shape_ids
        attack_token_type_ids attention_factor attention_scaling attention_similarity attentions attn_implementation
        audio_attention_mask audio_chunk_index audio_codes audio_codes_mask audio_embed_sizes audio_encoder
        audio_feature_attention_mask audio_feature_lengths audio_features audio_input_features audio_input_ids
        audio_input_ids_mask audio_labels audio_latents audio_latents_mask audio_mel audio_mel_mask audio_outputs
        audio_plus_text_embeds audio_prompt_latents audio_prompt_latents_mask audio_scales audio_sequences
        audio_token_mask audio_tokens audio_window_size autocast_kernel_dtype auxiliary_logits auxiliary_predictions
        backbone_features backbone_last_hidden_state backend bad_words_ids band_mask bandwidth batch_num_images
        batch_size bbox bbox_first_token_mask bbox_pos_emb begin_suppress_tokens beta beta_fast beta_slow
        bias_initializer blank_token_id blank_user_audio_codes block_sequence_ids blocked_encoder_mask bool_masked_pos
        bos_token_id boxes bs c_initial cache cache_config cache_dir cache_implementation cache_offset cache_params
        cache_position causal_attention_mask char_count_per_id char_input_ids chunk_lengths chunk_sample_lengths
        chunk_size class_features class_labels class_queries_logits classes_attention_mask classes_input_ids
        classes_structure cls_index coarse_generation_config coarse_output code codebook_idx codebook_pixel_values
        codebook_size codes commit_message compile_config composer concat_unconditional_inputs condition_vector
        conditional_embeddings conditional_pixel_values conditioning conditioning_embeds
        conditioning_encoder_inputs_embeds conditions config config_dict config_file_name constraints context
        context_attention_mask context_head_mask context_hidden_states context_input_ids context_mask
        continuous_batching_config conv_attention_mask conv_mask create_pr cross_attention_gate cross_attention_mask
        cross_attention_states cross_attn_layer_head_mask cstate current_window custom_generate cycle_offset
        dataset_index ddpm_batch_multiplier debug_io debug_io_dir decoder decoder_attention_mask decoder_cache
        decoder_delay_pattern_mask decoder_from_tf decoder_input_ids decoder_input_values decoder_inputs_embeds
        decoder_past_key_values decoder_position_ids decoder_queries decoder_start_token_id deepstack_features
        deepstack_visual_embeds defaults_only delay_pattern_mask deletion_mean deletion_value denoising_meta_values
        dense_dim dense_prompt_embeddings deterministic device device_map device_mesh dict_dtype_to_str dim
        disable_compile distill_generator distributed_config diversity_penalty do_deduplication do_marginalize
        do_pooling do_sample doc_scores dola_layers downsample_mode drop_audio_conditioning drop_code dt_bias dt_limit
        dt_softplus dtype dtype_state duration_labels duration_logits durations early_stopping embedding_dim
        embedding_type enable_gqa enc_topk_bboxes enc_topk_logits encoder_attention_mask encoder_cache encoder_embeds
        encoder_from_tf encoder_hidden_states encoder_inputs_embeds encoder_no_repeat_ngram_size encoder_outputs
        encoder_past_key_values encoder_position_embeddings encoder_repetition_penalty end_positions energy_labels
        entity_attention_mask entity_end_positions entity_id entity_ids entity_labels entity_position_ids
        entity_start_positions entity_token_type_ids eos_labels eos_logits eos_token_id eps epsilon_cutoff eta_cutoff
        exclude_bos_score exist_ok expand_in_new_axis expand_size experimental_steps_per_execution
        experts_implementation exponential_decay_length_penalty extra_output_flags factor feature_attention_mask
        feature_ensemble feature_lens feature_size features_only fgate filters fine fine_generation_config
        flattened_patches flip_pairs float_answer flow_head force_bos_token_to_be_generated force_download
        force_flip_invariance force_words_ids forced_bos_token_id forced_decoder_ids forced_eos_token_id
        forecast_context_len frame frame_idx frame_index freq from_blocked_mask from_flax from_mask from_pt from_tf
        full_input_ids full_text_row_masked_out_mask future_observed_mask future_time_features future_values g g_values
        generate_speech generation_config generation_mode generation_step generation_steps generator gguf_file
        global_attention_mask global_hidden_states global_pointer gpu_id gradient_checkpointing grid_thw groups
        guidance_scale has_deletion headdim height hidden hidden_states high_freq_factor high_res_pixel_values
        high_resolution_features history_prompt hq_token_only igate ignore_metadata_errors ignore_mismatched_sizes image
        image_attention_mask image_embeddings image_embeds image_embeds_position_mask image_encoder_embeddings
        image_features image_grid_hw image_grid_thw image_grids image_hidden_states image_mask image_merge_sizes
        image_num_crops image_outputs image_patches image_patches_indices image_pixel_values image_position_ids
        image_positional_embeddings image_sizes image_sizes_videos image_text_alignment image_token_pooling
        image_token_type_idx images_per_sample in_chans index inference_session initial_reference_points initial_state
        initial_states initial_token_labels input_audio_features input_boxes input_boxes_labels input_dim
        input_dimensions input_embeds input_features input_features_generator input_features_mask input_ids
        input_ids_masked input_labels input_mask input_masks input_points input_pronunciation_ids input_shape_ids
        input_text_ids input_values input_values_cutoffs input_values_mask inputs inputs_embeds intermediate_embeddings
        interpolate_pos_encoding is_assistant is_decoder is_encoder_decoder is_first is_first_iteration is_impossible
        is_longer is_multilingual itm_labels kernel_config kernel_size key_hidden_states key_length key_mapping
        key_point_embedding key_value_states keys kwargs_call kwargs_depth_decoder label_lengths label_weights labels
        labels_attention_mask labels_input_ids labels_input_pronunciation_ids labels_input_shape_ids labels_mask
        labels_token_type_ids lang_id lang_ids langs language last_frame_pad_length last_hidden_state last_hidden_states
        latents layer_idx layer_past length_penalty lengths level_start_index lm_hidden_states load_in_4bit load_in_8bit
        load_weight_prefix local_attention local_files_only logit_lengths logits logits_processor logits_to_keep
        logits_warper long_factor loss loss_batch_weight loss_weighting loss_weights low_cpu_mem_usage low_freq_factor
        low_memory low_zero m_initial mamba_attention_mask map_location marks mask_feat mask_labels mask_query_head
        mask_time_indices masked_lm_labels masking_pattern masks_queries_logits matched_label max_cache_len max_distance
        max_length max_length_k max_length_q max_matching_ngram_size max_memory max_new_tokens max_patch_length
        max_seqlen max_seqlen_k max_seqlen_q max_seqlens max_time maxlenratio mc_labels mc_token_ids mel_spectrogram
        memory_key_padding_mask memory_mask mems merge_sizes merged_attention_mask metrics mim_labels min_eos_p
        min_length min_new_tokens min_p minlenratio mirror mlm_labels mm_encoder_outputs mm_token_type_ids mode model
        model_kwargs module_file moe_mm_token_type_ids mol_type moshi_audio_codes moshi_delay_pattern_mask
        moshi_input_values mrope_section msa msa_attention_mask msa_batch_mask msa_feats msa_kv_states mscale
        mscale_all_dim mstate mtp_cache multimask_output n_docs n_initial n_quantizers name
        negative_prompt_attention_mask negative_prompt_ids next_sentence_label next_sequence_length ngroups
        no_repeat_ngram_size noise noise_embeds noise_scheduler noise_sequence norm norm_before_gate nstate
        num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams num_channels num_classes
        num_delay_tokens num_diffusion_steps num_embeddings num_frames_per_video num_hashes num_items_in_batch
        num_local_patches num_lookahead_frames num_lookahead_tokens num_lookback_frames num_loops num_options
        num_patches num_quantizers num_recycles num_return_sequences num_steps numeric_values numeric_values_scale
        obj_labels object_queries object_queries_position_embeddings observed_mask offload_buffers offload_folder
        offload_state_dict offloading optimizer or_mask_function order_head original_hidden_states
        original_max_position_embeddings original_sizes out_channels out_indices outproj_bias outproj_weight
        output_a3_attentions output_attention_mask output_auxiliary_logits output_cross_attentions output_dense
        output_dim output_final_state output_hidden_states output_hidden_states_before_downsampling output_index_dims
        output_latents output_loading_info output_logits output_multivector output_num_channels output_retrieved
        output_router_logits output_scores output_segmentation output_stride outputs p_mask pad_to_max_mel_tokens
        pad_token_id padded_feature padding padding_cache padding_idx padding_mask_videos paddings pair_states params
        parsed_parameters partial_rotary_factor past past_buckets_states past_key_value past_key_values
        past_observed_mask past_time_features past_values past_values_padding patch_attention_mask patch_embeds
        patch_height patch_ids patch_input patch_lengths patch_offsets patch_size patch_width patches_grid penalty_alpha
        per_layer_inputs perceiver_embeddings perm_mask pitch_labels pixel_attention_mask pixel_mask pixel_position_ids
        pixel_shuffle_index pixel_values pixel_values_images pixel_values_local pixel_values_videos ple_input_ids
        point_embeddings pool_indices pooled_logits pooled_patches_idx pooler_output position_embeddings
        position_embeddings_global position_embeddings_local position_encoding_type position_ids predicted_corners
        prefill_chunk_size prefix_allowed_tokens_fn pretrained prev_topk_indices project_pos_dim projection_attentions
        prompt_cross_attn_mask prompt_depth prompt_feats prompt_features prompt_ids prompt_lookup_num_tokens prompt_mask
        prompt_masks prompt_pixel_values protein_attention_mask protein_batch_mask protein_input_ids protein_kv_states
        proxies prune_layers push_to_hub qformer_attention_mask qformer_input_ids qkv quantization_config quantized_code
        queries query_attn_mask query_embeds query_length query_point_embedding query_pos query_position_embeddings
        query_sine_embed query_states question_lengths question_positions question_type_ids recursive reduce_loss
        reduction reference_mel reference_points region_to_phrase_position rel_2d_pos rel_embeddings rel_pos
        relative_distance relative_pos relative_position_embeddings remove_invalid_values renormalize_logits
        repetition_penalty repo_id requirements_file res_type residual_codes residue_index resolution resume_download
        return_attentions return_audio return_audio_codes return_audio_waveforms return_base_image_embeds return_dict
        return_dict_in_generate return_final_states return_forecast_on_context return_intermediate_token_ids
        return_last_states return_legacy_cache return_logits return_loss return_output_lengths return_shared_kv_states
        return_timestamps return_token_timestamps return_unused_kwargs return_word_timestamp_logits returns_to_go
        reverse revision rewards rmsnorm_eps rmsnorm_weight rope_deltas rope_scaling rope_theta rope_type rotary_emb
        rotary_pos_emb router_labels run_eagerly run_mem_encoder sample sampled_negative_indices save_config
        save_on_this_rank scaling_factor second_per_grid_ts seed self_attn_mask self_conditioning_logits
        self_conditioning_mask semantic_generation_config sentence_image_labels sentence_order_label seq_idx seq_len
        sequence_bias sequence_id shared_kv_states shift_labels short_factor sinusoidal_pos skip_multimodal_encoder
        skip_predictor skip_unmasked_multimodal_encoder sliding_window_mask sparse_prompt_embeddings
        spatial_position_embeddings spatial_shapes spatial_shapes_list spatial_sizes speaker speaker_cache
        speaker_embedding speaker_embeddings speaker_id speaker_ids speaker_logits speaking_rate spectrogram
        spectrogram_labels speculation_type spkr_id start_positions state state_dict states static_categorical_features
        static_real_features steps_per_execution stop_labels stop_strings stopping_criteria streamer
        structure_batch_mask structure_feats structure_kv_states sub_sampled_lengths subfolder subsampled_output_points
        subsequent_token_labels suppress_tokens sway_coefficient sym_id synced_gpus t_cond table_mask tags
        talker_do_sample talker_eos_token_id talker_input_ids talker_max_new_tokens talker_repetition_penalty
        talker_temperature talker_top_k talker_top_p target_dtype target_embedding target_head_mask target_lookbehind
        target_mapping target_mask target_sizes target_sizes_videos target_values targets task task_features task_inputs
        task_mask task_type_ids tasks_attention_mask tasks_input_ids temperature temporal_merge_index tensor_key_mapping
        text_attention_mask text_cross_attn_mask text_embeds text_encoder text_encoder_attention_mask
        text_encoder_hidden_states text_encoder_inputs_embeds text_features text_inputs text_labels text_mask
        text_position_embedding text_position_ids text_self_attention_masks tf_to_pt_weight_rename tgt_lang
        thinker_eos_token_id thinker_max_new_tokens thinker_reply_part threshold tile_fine_mask time_step timestep
        timesteps to_blocked_mask to_dict to_diff_dict to_json_file to_json_string to_mask token token_bonds
        token_healing token_hidden_states token_index token_logits token_type_ids tokenizer top_h top_k top_p
        torch_dtype tp_plan tp_size tqdm_class trailing_text_hidden training transformer_hidden_states
        transformers_version trend truncate truncate_negative trust_remote_code tts_pad_embed typical_p
        use_audio_in_video use_auth_token use_bias use_cache use_decoder_cache use_image_text_matching_head use_itm_head
        use_kernels use_mems use_model_defaults use_mtp use_padding_cache use_pretrained_backbone
        use_qk_l2norm_in_kernel use_safetensors use_streaming use_timm_backbone use_vit_merger user_audio_codes
        user_delay_pattern_mask user_input_values valid_indices valid_ratios validate value_embeds value_hidden_states
        variant video_compression_mask video_grid_thw video_grids video_merge_sizes video_outputs video_plus_text_embeds
        video_position_ids video_second_per_grid video_token_pooling vision_aspect_ratio vision_attention_mask
        vision_cross_attn_mask vision_embeds vision_encoder_attention_mask vision_encoder_hidden_states
        vision_feature_layer vision_feature_layers vision_feature_select_strategy vision_features vision_mask
        vision_outputs vision_pos_embeds vision_pos_encoding vision_position_embedding visual_attention_mask visual_bbox
        visual_embeds visual_feats visual_pos visual_pos_masks visual_token_type_ids vocab_size vocoder
        watermarking_config waveform weight weighted_metrics weights_only width word_timestamp_logits x4_feat
        xpath_subs_seq xpath_tags_seq z zero_infinity
    """.split()
)
# end
