"""Each row of the HTTP checklist, each decision about requests and the server, each lesson of the field about files,
webhooks, streams and validation: the tests that would fail if it were not so.

The rows of three checklists have the same names. What stands below is HTTP's; ``W7`` in the name of another test is the
SDK's in ``tests/sdk`` and the worker's everywhere else.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from cog_trio.config.settings import Settings

ROOT = Path(__file__).parent.parent

ROWS = """
W1 scenarios/test_predictions.py::test_W1_500_back_to_back_on_one_connection_are_500_times_200
W1 tests/service/test_service.py::test_W1_the_terminal_state_waits_for_idle
W1 tests/service/test_service_streams.py::test_events_come_when_they_happen_and_the_end_when_the_slot_is_free
W1 tests/service/test_service_webhooks.py::test_W1_the_slot_is_free_when_the_terminal_webhook_comes
W1 tests/service/test_prediction_queue.py::test_W1_who_learns_of_an_end_meets_no_409_with_a_queue
W2 scenarios/test_slots.py::test_W2_as_many_as_there_are_slots_are_never_refused
W2 tests/service/test_service.py::test_W2_simultaneous_creates_use_every_slot
W3 scenarios/test_predictions.py::test_W3_a_second_post_with_a_running_id_is_refused_and_the_first_is_untouched
W3 scenarios/test_predictions.py::test_W3_two_puts_of_one_id_at_once_are_one_run
W3 tests/service/test_service.py::test_W3_simultaneous_creates_of_one_id_start_one
W3 tests/transport/http/test_routes.py::test_W3_post_with_a_running_id_is_409_with_its_own_text
W4 scenarios/test_files.py::test_W21_an_id_makes_no_folder
W4 tests/service/test_service.py::test_W22_the_runs_folder_is_removed_on_every_outcome
W4 tests/transport/http/test_routes.py::test_W4_bad_ids_in_bodies_are_422
W4 tests/transport/http/test_routes.py::test_W4_bad_ids_in_paths_are_422
W5 scenarios/test_files.py::test_W5_a_bad_id_costs_no_slot
W5 tests/orchestrator/test_permits.py::test_W5_a_permit_that_was_never_dispatched_is_its_own_proof
W5 tests/service/test_service.py::test_W5_a_cancel_while_spilling_gives_the_permit_back
W6 scenarios/test_crash.py::test_W6_worker_that_dies_fails_its_prediction_and_says_so
W6 tests/service/test_service.py::test_W16_when_the_last_slot_is_lost_the_service_is_defunct
W6 tests/service/test_service.py::test_W6_a_crash_fails_what_runs_and_health_is_defunct_first
W6 tests/service/test_service.py::test_a_crash_while_idle_is_defunct_at_once
W6 tests/orchestrator/test_supervisor.py::test_control_that_closes_without_an_exit
W6 tests/orchestrator/test_supervisor.py::test_what_breaks_the_control_channel
W7 scenarios/test_setup.py::test_W7_setup_that_ends_the_worker
W7 tests/service/test_service.py::test_W7_a_worker_that_ends_in_setup_is_a_failed_setup
W7 tests/orchestrator/test_spawn.py::test_an_interpreter_that_cannot_start_is_heard
W7 tests/orchestrator/test_supervisor_setup.py::test_W4_setup_timeout_counts_from_the_spawn
W8 scenarios/test_setup.py::test_W8_setup_that_raises_shows_its_logs_and_the_traceback
W8 tests/state/test_health.py::test_W8_a_failed_setup_keeps_its_logs_and_the_cause
W8 tests/service/test_service.py::test_W8_a_setup_that_fails_keeps_its_logs
W9 scenarios/test_http_rows.py::test_W9_setup_lines_are_whole
W9 scenarios/test_http_rows.py::test_W9_setup_lines_are_whole_where_errors_alone_are_logged
W10 scenarios/test_setup.py::test_setup_timeout_ends_the_worker
W10 tests/service/test_service.py::test_W10_a_setup_that_takes_too_long_is_killed
W10 tests/orchestrator/test_supervisor_setup.py::test_W5_setup_timeout_kills_then_reports
W11 scenarios/test_http_rows.py::test_W11_each_state_has_its_own_refusal_with_the_id
W11 tests/transport/http/test_routes.py::test_refusals_have_the_form_of_a_failed_prediction
W12 tests/transport/http/api/test_sse.py::test_W12_not_ready_comes_before_not_offered
W13 scenarios/test_shutdown.py::test_W13_W14_drain_lets_running_predictions_end_and_answers_meanwhile
W13 scenarios/test_webhooks.py::test_W13_terminal_webhooks_are_delivered_before_the_server_leaves
W13 scenarios/test_webhooks.py::test_W13_what_is_cancelled_by_the_drain_is_told_too
W13 tests/service/test_service.py::test_W13_in_flight_work_gets_the_grace
W13 tests/service/test_service_webhooks.py::test_W13_a_cancelled_embedder_still_tells
W13 tests/service/test_service_webhooks.py::test_W13_drain_delivers_within_the_grace
W13 tests/service/test_service_webhooks.py::test_W13_the_grace_counts_from_the_end_of_the_work
W13 tests/service/test_service_webhooks.py::test_W13_what_is_not_delivered_within_the_grace_is_told
W13 tests/service/test_webhook_sender.py::test_W13_an_outer_cancellation_leaves_the_terminal_webhook_alone
W13 tests/service/test_webhook_sender.py::test_W13_close_gives_up_and_says_so
W14 scenarios/test_shutdown.py::test_W14_end_of_the_grace_or_a_second_signal_cancels_the_rest
W14 tests/service/test_service.py::test_W14_what_does_not_finish_is_cancelled
W14 tests/service/test_service.py::test_W14_what_does_not_stop_is_killed
W14 tests/transport/http/test_routes.py::test_W14_creates_are_503_while_draining_and_joins_pass
W14 tests/transport/http/test_routes.py::test_W14_health_read_and_cancel_answer_while_draining
W15 scenarios/test_shutdown.py::test_W15_idle_server_leaves_with_0
W16 scenarios/test_command_line.py::test_D38_port_in_use_is_one_line_and_exit_1
W16 scenarios/test_webhooks.py::test_W16_token_that_no_header_can_carry
W16 tests/cli/test_options.py::test_W16_bare_flag_takes_a_truth_value_or_stands_alone
W16 tests/config/test_settings.py::test_D37_addresses_and_who_reads_PORT
W16 tests/config/test_settings.py::test_W16_token_that_no_header_can_carry_is_refused_and_not_shown
W16 tests/transport/http/protocol/test_server.py::test_W16_names_and_addresses
W17 scenarios/test_shutdown.py::test_W17_signal_to_the_whole_group_does_not_touch_the_worker
W18 tests/transport/http/api/test_access_control.py::test_D41_a_refused_create_reaches_nobody
W18 tests/transport/http/test_routes.py::test_W18_missing_content_type_with_a_body_is_json
W18 tests/transport/http/test_routes.py::test_no_body_and_no_type_means_no_input
W19 scenarios/test_validation.py::test_bad_bodies_are_refused_as_json
W19 tests/transport/http/test_routes.py::test_W19_W20_wrong_shapes_are_422_json
W19 tests/transport/http/test_routes.py::test_W19_other_types_are_415_json
W19 tests/transport/http/test_routes.py::test_W19_what_is_no_json_is_400_json
W19 tests/transport/http/test_routes.py::test_unknown_paths_are_404_json_W19
W19 tests/transport/http/test_routes.py::test_wrong_methods_are_405_json_with_allow_W19
W20 tests/transport/http/test_routes.py::test_W19_W20_wrong_shapes_are_422_json
W21 tests/transport/http/test_routes.py::test_W21_other_accepts_are_json
W21 tests/transport/http/test_routes.py::test_W21_other_preferences_are_sync
W21 tests/transport/http/test_routes.py::test_W21_respond_async_in_any_form
W21 tests/transport/http/test_routes.py::test_W21_sse_in_any_form_is_406
W21 tests/transport/http/api/test_sse.py::test_W21_accept_with_q_0_is_no_stream
W22 scenarios/test_webhooks.py::test_W22_sync_reply_is_the_terminal_webhook
W22 tests/state/test_prediction.py::test_W22_failed_and_canceled_keep_logs_and_partial_output
W22 tests/service/test_webhook_sender.py::test_W22_terminal_payload_is_the_sync_reply
W23 scenarios/test_http_rows.py::test_W23_W24_times_are_the_same_in_the_reply_and_when_read_later
W23 tests/state/test_prediction.py::test_W23_times_are_fixed_at_the_terminal_step
W24 scenarios/test_http_rows.py::test_W23_W24_times_are_the_same_in_the_reply_and_when_read_later
W24 tests/state/test_retention.py::test_the_bounds_always_hold
W24 tests/service/test_service.py::test_D6_a_finished_id_runs_anew
W24 tests/transport/http/test_routes.py::test_W24_get_shows_running_and_finished_with_input
W25 tests/transport/http/test_routes.py::test_discovery_object_is_complete_and_advertises_no_docs_W25
W26 scenarios/test_training.py::test_W26_each_family_runs_its_own_callable_with_its_own_inputs
W26 scenarios/test_training.py::test_W26_without_a_train_function_the_routes_say_so
W26 tests/service/test_training.py::test_W26_what_is_served_is_known_from_the_start
W26 tests/transport/http/api/test_route_families.py::test_W26_a_family_without_a_function_is_404_with_a_text
W26 tests/transport/http/api/test_route_families.py::test_discovery_names_what_is_served
W27 scenarios/test_healthcheck.py::test_W27_healthcheck_timeout_leaves_the_slots_alone
W27 tests/orchestrator/test_health_checks.py::test_W32_a_check_goes_beside_the_runs
W28 scenarios/test_healthcheck.py::test_W28_without_a_check_health_answers_while_the_interpreter_is_held
W28 tests/orchestrator/test_health_checks.py::test_W65_without_a_check_the_worker_is_not_asked
W28 tests/service/test_service.py::test_W28_without_a_check_the_worker_is_not_asked
W29 tests/state/test_health.py::test_W29_ready_and_the_setup_result_come_together
W29 tests/service/test_service.py::test_W29_ready_setup_and_admission_are_published_in_one_step
W30 scenarios/test_command_line.py::test_ready_file_is_there_while_ready
W30 tests/files/test_workspace.py::test_W30_the_readiness_file_follows_ready
W30 tests/files/test_workspace.py::test_W30_the_readiness_file_goes_at_exit
W30 tests/orchestrator/test_respawn.py::test_W30_the_readiness_file_goes_and_comes_back
W30 tests/service/test_service.py::test_W30_the_readiness_file
W31 scenarios/test_sse.py::test_W31_items_arrive_one_by_one
W32 scenarios/test_sse.py::test_W32_a_killed_client_comes_back_within_the_grace
W32 tests/transport/http/api/test_sse.py::test_W32_last_event_id_goes_on_without_gap_or_repeat
W32 tests/transport/http/api/test_sse.py::test_each_event_as_the_specification_has_it
W33 tests/state/test_event_log.py::test_W33_a_follower_that_is_far_behind_is_told_and_goes_on_with_what_is_there
W33 tests/state/test_event_log.py::test_the_end_is_never_lost
W33 tests/transport/http/api/test_sse.py::test_W33_a_late_reader_gets_one_error_and_then_what_is_kept
W33 tests/transport/websocket/test_conversation.py::test_W33_what_was_lost_is_told
W34 tests/files/test_output_files.py::test_W34_equal_names_become_distinct
W34 tests/files/test_output_files.py::test_W50_uploads_that_end_in_reverse_keep_their_order
W34 tests/state/test_event_log.py::test_W34_a_file_that_is_missing_at_the_end_leaves_no_hole
W34 tests/state/test_event_log.py::test_W34_output_events_come_in_the_order_of_the_model_whenever_files_are_read
W34 tests/files/test_upload.py::test_W34_names_are_distinct_and_a_unique_one_stays
W35 scenarios/test_http_rows.py::test_W35_an_output_file_that_is_missing_fails_and_is_named
W36 scenarios/test_webhooks.py::test_W36_W37_quick_receiver
W36 tests/service/test_webhook_sender.py::test_W36_slow_receiver_gets_one_request_at_a_time_with_all_there_is
W37 scenarios/test_webhooks.py::test_W36_W37_quick_receiver
W37 tests/service/test_webhook_sender.py::test_W37_a_log_line_within_the_interval_is_sent_when_it_ends
W38 tests/config/test_settings.py::test_wrong_variable_of_cogs_is_warned_of_once
W38 tests/service/test_webhook_sender.py::test_W38_start_is_sent_whatever_the_interval
W39 scenarios/test_webhooks.py::test_W39_other_redirects_are_failures
W39 scenarios/test_webhooks.py::test_W39_redirect_to_another_host_goes_without_the_token
W39 tests/service/test_webhook_sender.py::test_W39_followed_with_method_body_and_token
W39 tests/service/test_webhook_sender.py::test_W39_token_stays_at_home
W39 tests/service/test_webhook_sender.py::test_status_that_is_final
W39 tests/service/test_webhook_policy.py::test_W39_token_goes_to_the_same_host_only
W39 tests/service/test_webhook_policy.py::test_W39_token_never_leaves_tls
W40 tests/transport/http/test_routes.py::test_W40_a_webhook_must_be_an_absolute_http_url
W40 tests/transport/http/test_routes.py::test_W40_absolute_http_urls_pass
W41 scenarios/test_webhooks.py::test_W41_failures_are_tried_again_and_retry_after_is_heard
W41 tests/service/test_webhook_sender.py::test_W41_completed_is_tried_13_times
W41 tests/service/test_webhook_sender.py::test_W41_retry_after
W41 tests/service/test_webhook_policy.py::test_W41_numbers_of_the_reference_and_up_to_a_fifth_more
W41 tests/service/test_webhook_policy.py::test_W41_retry_after_raises_the_wait_of_429_and_503
W42 tests/state/test_prediction.py::test_W42_scalars_stay_scalars_and_lists_lists_in_flight
W42 tests/service/test_service.py::test_a_prediction_end_to_end
W42 tests/service/test_webhook_sender.py::test_W42_scalar_stays_a_scalar
W43 tests/inputs/test_validation.py::test_W43_null_passes_only_where_the_table_says_so
W43 tests/worker/model/test_load.py::test_D1_values_win_over_defaults_also_null
W44 scenarios/test_http_rows.py::test_W44_D15_whole_numbers_arrive_exactly
W45 scenarios/test_http_rows.py::test_W45_W46_faults_are_short_and_point_into_values
W45 tests/inputs/test_validation.py::test_W45_a_secret_is_never_shown
W45 tests/inputs/test_validation.py::test_W45_values_are_cut_to_100_characters
W46 scenarios/test_http_rows.py::test_W45_W46_faults_are_short_and_point_into_values
W47 tests/transport/http/protocol/test_connection.py::test_W47_a_stalled_body_gets_408_after_30_s_without_a_byte
W47 tests/transport/http/protocol/test_connection.py::test_a_half_sent_head_gets_408_after_30_s_from_its_first_byte
W47 tests/transport/http/protocol/test_http2.py::test_W47_a_stalled_body_ends_its_stream_after_30_s
W47 tests/transport/http/test_routes.py::test_W47_a_body_far_over_the_limit_closes_the_connection
W47 tests/transport/http/test_routes.py::test_W47_a_chunked_body_is_413_when_it_crosses_the_limit
W47 tests/transport/http/test_routes.py::test_W47_a_large_content_length_is_413_at_once
W47 tests/transport/http/test_routes.py::test_W47_the_limit_itself_passes
W47 tests/transport/http/protocol/test_server.py::test_W47_a_client_that_sends_all_before_it_reads_gets_its_413
W48 scenarios/test_cancel.py::test_D28_cancelled_code_that_never_stops_is_killed_after_the_grace
W48 scenarios/test_cancel.py::test_W48_cancel_right_after_acceptance_always_works
W48 tests/service/test_service.py::test_W48_cancelled_before_its_task_has_begun
W49 scenarios/test_http_rows.py::test_W49_a_cancel_never_hits_the_next_run_of_its_id
W50 scenarios/test_http_rows.py::test_W50_errors_have_one_form_and_the_traceback_is_in_the_logs
W51 scenarios/test_http_rows.py::test_W51_a_last_line_without_newline_belongs_to_its_own_run
"""

DECISIONS = """
D1 tests/inputs/test_validation.py::test_W43_null_passes_only_where_the_table_says_so
D1 tests/worker/model/test_load.py::test_D1_values_win_over_defaults_also_null
D2 scenarios/test_predictions.py::test_a_put_of_a_running_id_joins_it
D2 tests/transport/http/test_routes.py::test_D2_async_put_of_a_running_id_shows_its_state_and_input
D2 tests/transport/http/test_routes.py::test_D2_sync_put_of_a_running_id_waits_for_its_end
D2 tests/transport/http/test_routes.py::test_W14_creates_are_503_while_draining_and_joins_pass
D2 tests/transport/http/api/test_sse.py::test_D2_put_of_a_running_id_replays_and_follows
D3 tests/transport/http/test_routes.py::test_W3_post_with_a_running_id_is_409_with_its_own_text
D4 scenarios/test_disconnect.py::test_D4_disconnect_of_one_of_two_watchers_changes_nothing
D4 scenarios/test_disconnect.py::test_disconnect_never_ends_an_async_creation
D4 scenarios/test_disconnect.py::test_disconnect_of_the_only_watcher_cancels
D4 scenarios/test_sse.py::test_D4_a_dropped_stream_cancels_its_run
D4 tests/service/test_service.py::test_D4_an_async_prediction_is_never_cancelled_by_leaving
D4 tests/transport/http/api/test_sse.py::test_D4_a_waiter_keeps_it_alive_too
D4 tests/transport/http/api/test_sse.py::test_D4_the_last_follower_of_a_stream_cancels
D4 tests/transport/websocket/test_conversation.py::test_D4_closing_the_socket_cancels_what_it_started_and_nothing_else
D5 tests/service/test_prediction_queue.py::test_a_drain_empties_the_queue
D5 tests/service/test_prediction_queue.py::test_a_full_queue_refuses
D5 tests/service/test_prediction_queue.py::test_a_lost_worker_empties_the_queue
D5 tests/service/test_prediction_queue.py::test_a_queued_prediction_is_registered_and_starting
D5 tests/service/test_prediction_queue.py::test_cancel_leaves_the_queue_at_once
D5 tests/service/test_prediction_queue.py::test_without_a_queue_health_is_as_ever
D5 tests/transport/http/test_queue.py::test_a_join_of_a_queued_one_waits_with_it
D5 tests/transport/http/test_queue.py::test_a_request_that_waits_gets_409_when_its_time_is_over
D5 tests/transport/http/test_queue.py::test_a_stream_gets_409_when_its_time_is_over
D5 tests/transport/http/test_queue.py::test_async_is_accepted_and_fails_when_its_time_is_over
D6 tests/state/test_retention.py::test_age
D6 tests/state/test_retention.py::test_inputs_go_first_oldest_first
D6 tests/state/test_retention.py::test_the_bounds_always_hold
D6 tests/state/test_retention.py::test_the_last_so_many
D6 tests/state/test_retention.py::test_zero_keeps_none
D6 tests/service/test_service.py::test_D6_a_finished_id_runs_anew
D7 tests/service/test_service.py::test_D7_503_before_422_before_409
D7 tests/transport/http/api/test_route_families.py::test_D7_503_comes_before_406
D7 tests/transport/http/test_routes.py::test_D7_each_check_answers_before_the_next
D8 tests/inputs/test_validation.py::test_W26_unknown_names_pass_for_a_callable_that_takes_them
D8 tests/service/test_service.py::test_D8_D42_unknown_inputs_are_dropped_with_a_warning_and_secrets_masked
D9 tests/cli/test_log_output.py::test_D9_no_text_starts_a_line_of_its_own
D9 tests/files/test_output_files.py::test_headers_of_an_upload
D9 tests/transport/http/test_routes.py::test_W4_bad_ids_in_paths_are_422
D9 tests/transport/http/test_routes.py::test_ids_are_split_before_they_are_decoded_D9
D9 tests/transport/http/test_routes.py::test_names_of_routes_are_not_decoded
D10 tests/transport/http/test_routes.py::test_D10_get_waits_as_preferred
D10 tests/transport/http/test_routes.py::test_W21_other_preferences_are_sync
D11 scenarios/test_sse.py::test_D11_a_client_that_comes_back_after_the_end_gets_the_tail
D11 tests/transport/http/api/test_sse.py::test_D11_an_id_of_another_run_is_409
D11 tests/transport/http/api/test_sse.py::test_D11_get_follows_and_never_creates
D11 tests/transport/http/api/test_sse.py::test_D11_last_event_id_never_starts_a_run
D12 scenarios/test_sse.py::test_a_reader_that_never_reads_harms_nobody
D12 tests/state/test_event_log.py::test_D12_it_waits_no_longer_than_for_some_progress
D12 tests/state/test_event_log.py::test_D12_what_ends_the_slowing
D12 tests/state/test_event_log.py::test_other_followers_never_slow_a_run
D12 tests/service/test_prediction_stream.py::test_D12_a_slow_reader_slows_the_model_and_at_last_loses_events
D12 tests/transport/http/api/test_sse.py::test_a_reader_that_takes_nothing_is_closed_which_counts_as_leaving
D13 tests/service/test_webhook_sender.py::test_D13_first_output_at_once_then_one_an_interval_and_the_rest_before_the_end
D13 tests/service/test_webhook_sender.py::test_D13_first_output_is_not_kept_back_by_a_log_line
D13 tests/service/test_webhook_sender.py::test_D13_what_the_last_update_lacked_is_told_before_the_end
D14 scenarios/test_crash.py::test_W6_worker_that_dies_fails_its_prediction_and_says_so
D14 scenarios/test_http_rows.py::test_W50_errors_have_one_form_and_the_traceback_is_in_the_logs
D14 tests/orchestrator/test_supervisor.py::test_each_cause_is_one_line
D15 scenarios/test_http_rows.py::test_W44_D15_whole_numbers_arrive_exactly
D15 tests/sdk/test_scope.py::test_W60_numbers_that_json_lacks
D15 tests/bridge/test_json_value.py::test_D15_what_stands_beside_the_longest_integer_is_as_strict
D15 tests/worker/executors/test_sync_executor.py::test_D15_nan_becomes_null_with_one_warning
D16 tests/transport/http/test_routes.py::test_cancel_is_200_in_flight_and_404_with_an_empty_object_otherwise_D16
D17 scenarios/test_setup.py::test_setup_logs_show_while_it_runs_and_a_signal_ends_it
D17 tests/sdk/test_document.py::test_worked_example
D17 tests/transport/http/test_document.py::test_each_status_of_each_operation
D17 tests/transport/http/test_document.py::test_its_operations_are_those_of_the_router
D17 tests/transport/http/test_routes.py::test_openapi_is_503_until_described_D17
D18 scenarios/test_training.py::test_D18_sync_train_beside_async_run_is_a_failed_setup
D18 scenarios/test_training.py::test_trainings_answer_as_predictions_do
D18 tests/service/test_training.py::test_W26_what_is_served_is_known_from_the_start
D18 tests/transport/http/api/test_route_families.py::test_reads_joins_and_cancels_go_by_the_id_alone
D18 tests/transport/http/api/test_sse.py::test_trainings_do_not_stream
D36 tests/transport/http/protocol/test_connection.py::test_an_exception_in_the_protocol_is_contained_and_cancelled_passes
D36 tests/transport/http/protocol/test_fast_http1.py::test_mutated_inputs_are_answered_as_by_h11
D36 tests/transport/http/protocol/test_fast_http1.py::test_what_is_not_plain_is_left_to_h11
D37 tests/config/test_settings.py::test_D37_addresses_and_who_reads_PORT
D38 scenarios/test_command_line.py::test_D38_container_without_a_model_exits_1_and_with_a_missing_one_is_setup_failed
D38 scenarios/test_command_line.py::test_D38_port_in_use_is_one_line_and_exit_1
D38 scenarios/test_command_line.py::test_D38_wrong_start_is_one_line_and_exit_2
D38 scenarios/test_run.py::test_D38_words_come_as_they_are_said_and_an_interrupt_shows_the_clean_up
D38 scenarios/test_setup.py::test_import_error_is_a_failed_setup
D38 scenarios/test_setup.py::test_missing_class_is_a_failed_setup
D38 scenarios/test_shutdown.py::test_W15_idle_server_leaves_with_0
D38 tests/config/test_settings.py::test_wrong_variable_of_cogs_is_warned_of_once
D39 tests/state/test_health.py::test_D39_draining_stands_beside_the_status
D39 tests/transport/http/test_probes.py::test_D39_a_server_that_drains_is_alive_and_not_ready
D39 tests/transport/http/test_routes.py::test_W14_creates_are_503_while_draining_and_joins_pass
D40 scenarios/test_security.py::test_D40_token_and_TLS_from_the_first_request_to_the_last
D40 tests/transport/http/test_token.py::test_D40_a_websocket_brings_the_token_as_a_subprotocol_and_one_is_answered
D40 tests/transport/http/test_token.py::test_D40_probes_are_open
D40 tests/transport/http/test_token.py::test_D40_without_the_token_everything_but_probes_is_401
D41 tests/transport/http/api/test_access_control.py::test_D41_a_foreign_host_on_loopback_is_403
D41 tests/transport/http/api/test_access_control.py::test_D41_a_foreign_origin_is_403_on_what_changes
D41 tests/transport/http/api/test_access_control.py::test_D41_cors_origin_by_setting
D41 tests/transport/http/api/test_access_control.py::test_D41_our_own_origin_passes
D41 tests/transport/http/api/test_access_control.py::test_D41_reading_is_open_to_any_origin
D41 tests/transport/http/protocol/test_server.py::test_D41_the_service_is_served_and_loopback_is_told_from_the_bound_address
D42 scenarios/test_http_rows.py::test_D42_a_secret_is_masked_wherever_it_could_show
D42 tests/config/test_settings.py::test_D42_secrets_are_in_no_repr
D42 tests/transport/http/test_token.py::test_D42_the_token_is_in_no_line_of_the_log
D43 tests/cli/test_options.py::test_each_row_is_an_option_of_its_commands_and_says_its_variable
D43 tests/config/test_settings.py::test_page_holds_the_table
D44 scenarios/test_run_remote.py::test_D44_runs_cancels_and_a_server_that_dies
D45 tests/test_layers.py::test_D45_the_http_client_is_behind_one_module
D45 tests/test_package.py::test_D45_a_service_without_webhooks_and_uploads_loads_no_http_client
D46 tests/orchestrator/test_process.py::test_D46_a_cancelled_setup_leaves_nothing_behind
D46 tests/orchestrator/test_spawn.py::test_D46_leaving_the_block_kills_reaps_and_closes
D46 tests/orchestrator/test_spawn.py::test_spawn_needs_the_standard_library_only
D47 tests/test_layers.py::test_D47_a_shield_without_a_deadline_has_an_end
D47 tests/service/test_service.py::test_W33_code_that_does_not_stop_keeps_its_slot
"""  # noqa: E501

LESSONS = """
29 tests/inputs/test_validation.py::test_a_string_that_is_no_file_may_be_anything
30 tests/inputs/test_validation.py::test_W5_a_file_is_a_url
30 tests/inputs/test_validation.py::test_W6_files_in_a_list_one_by_one
31 tests/worker/runs/test_download.py::test_files_by_name_and_content
31 tests/worker/runs/test_download.py::test_names_are_at_most_200_bytes
32 tests/files/test_output_files.py::test_W50_files_stand_where_the_model_put_them
32 tests/files/test_output_files.py::test_W51_files_inside_a_value_are_uploaded_too
32 tests/worker/model/test_output_values.py::test_open_files_are_read_from_the_start
33 tests/files/test_output_files.py::test_W34_equal_names_become_distinct
34 tests/files/test_upload.py::test_W53_a_name_is_encoded_and_a_slash_makes_no_difference
34 tests/files/test_upload.py::test_W53_what_is_published
34 tests/files/test_upload.py::test_after_three_tries_it_has_failed
35 scenarios/test_files.py::test_W21_an_id_makes_no_folder
35 tests/service/test_service.py::test_W22_the_runs_folder_is_removed_on_every_outcome
36 tests/transport/http/test_routes.py::test_W47_a_large_content_length_is_413_at_once
37 scenarios/test_webhooks.py::test_W36_W37_quick_receiver
38 tests/service/test_webhook_sender.py::test_traffic_grows_with_time_and_size_not_with_chunks
39 scenarios/test_webhooks.py::test_slow_receiver_costs_neither_slot_nor_health
39 tests/service/test_webhook_sender.py::test_transport_errors_are_tried_again
40 scenarios/test_webhooks.py::test_W22_sync_reply_is_the_terminal_webhook
41 tests/service/test_webhook_sender.py::test_filter_is_decided_before_anything_is_built
41 tests/transport/http/test_routes.py::test_every_fault_of_the_envelope_is_listed
42 tests/files/test_output_files.py::test_headers_of_an_upload
42 tests/service/test_webhook_sender.py::test_headers
43 scenarios/test_webhooks.py::test_a_crash_of_the_worker_is_told
43 tests/transport/http/test_queue.py::test_async_is_accepted_and_fails_when_its_time_is_over
44 scenarios/test_sse.py::test_W31_items_arrive_one_by_one
45 scenarios/test_sse.py::test_exception_after_the_third_item
46 tests/transport/http/api/test_sse.py::test_other_refusals
47 tests/transport/http/api/test_sse.py::test_each_event_as_the_specification_has_it
47 tests/transport/http/api/test_sse.py::test_silence_is_filled_with_comments
48 tests/transport/http/api/test_sse.py::test_W33_a_late_reader_gets_one_error_and_then_what_is_kept
48 tests/transport/http/api/test_sse.py::test_without_history_attaching_starts_live
49 tests/transport/http/api/test_request_headers.py::test_preference
49 tests/transport/http/api/test_request_headers.py::test_wants_stream
50 scenarios/test_sse.py::test_a_reader_that_never_reads_harms_nobody
50 scenarios/test_sse.py::test_shutdown_does_not_wait_for_a_reader_that_never_reads
60 tests/inputs/test_validation.py::test_W43_null_passes_only_where_the_table_says_so
60 tests/inputs/test_validation.py::test_no_input_at_all
61 scenarios/test_http_rows.py::test_W44_D15_whole_numbers_arrive_exactly
61 tests/inputs/test_validation.py::test_words_of_a_refusal
62 tests/inputs/test_validation.py::test_W45_a_secret_is_never_shown
62 tests/inputs/test_validation.py::test_every_fault_in_the_order_of_the_signature
63 tests/worker/model/test_output_values.py::test_D15_not_finite_is_null_and_told
63 tests/worker/model/test_output_values.py::test_the_table
63 tests/worker/model/test_output_values.py::test_what_has_no_json_form
64 tests/sdk/test_document.py::test_documents_are_valid_openapi
64 tests/sdk/test_document.py::test_row_61_W17_both_halves_keep_their_choices
65 scenarios/test_http_rows.py::test_W50_errors_have_one_form_and_the_traceback_is_in_the_logs
65 tests/transport/http/protocol/test_connection.py::test_broken_request_line_is_400_and_closes
"""

NUMBERS = {  # of the checklist and the decisions; tests that count take them from the code
    "orchestrator.health_checks.LIMIT": 10.0,
    "bridge.protocol.MAX_FRAME": 8 * 2**20,
    "bridge.protocol.MAX_INLINE": 6 * 2**20,
    "bridge.protocol.MAX_LOG_LINE": 4 * 2**20,
    "inputs.compiled_schema.MAX_SHOWN": 100,
    "state.event_log.LAG": 4 * 2**20,
    "state.event_log.MAX_FOLLOWERS": 1024,
    "state.event_log.PATIENCE": 10.0,
    "orchestrator.supervisor.IDLE_LIMIT": 5.0,
    "transport.http.api.sse.SILENCE": 15.0,
    "transport.http.api.bodies.MAX_DEPTH": 127,
    "service.webhook_sender.TRY_LIMIT": 30.0,
    "service.webhook_policy.FIRST_BACKOFF": 0.2,
    "service.webhook_policy.LARGEST_BACKOFF": 102.4,
    "worker.model.healthcheck.LIMIT": 5.0,
}
DEFAULTS = {
    "body_limit": 104_857_600,
    "cancel_grace": None,
    "max_concurrency": None,
    "predict_timeout": None,
    "queue": 0,
    "retain": 256,
    "retain_age": 3600.0,
    "retain_bytes": 64 * 2**20,
    "setup_timeout": None,
    "stream_grace": 0.0,
    "stream_history": 1024,
    "throttle_interval": 0.5,
    "upload_timeout": 25.0,
    "webhook_grace": 10.0,
}
SHOWN = [line.split() for line in (ROWS + DECISIONS + LESSONS).splitlines() if line]


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (ROWS, [f"W{number}" for number in range(1, 52)]),
        (DECISIONS, [f"D{number}" for number in (*range(1, 19), *range(36, 48))]),
        (LESSONS, [str(number) for number in (*range(29, 51), *range(60, 66))]),
    ],
    ids=["rows", "decisions", "lessons"],
)
def test_each_is_shown_by_a_test(table: str, names: list[str]) -> None:
    assert list(dict.fromkeys(line.split()[0] for line in table.splitlines() if line)) == names


def test_what_is_said_to_show_it_is_there() -> None:
    found = {file: _tests(file) for file in {shown.partition("::")[0] for _, shown in SHOWN}}
    assert [shown for _, shown in SHOWN if shown.partition("::")[2] not in found[shown.partition("::")[0]]] == []


def test_all_tests_of_the_transport_that_name_a_row_are_in_the_table() -> None:
    told = set(map(tuple, SHOWN))
    for folder in ("tests/transport", "scenarios/test_http_rows.py", "scenarios/test_webhooks.py"):
        for file in [ROOT / folder, *(ROOT / folder).rglob("test_*.py")]:
            if file.is_file():
                place = file.relative_to(ROOT).as_posix()
                for test in _tests(place):
                    for row in re.findall(r"(?<=_)W\d+(?=_|$)", test):
                        assert (row, f"{place}::{test}") in told


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_checklist(name: str) -> None:
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"cog_trio.{module}"), constant) == NUMBERS[name]


def test_defaults_are_those_of_the_checklist() -> None:
    assert {name: getattr(Settings(), name) for name in DEFAULTS} == DEFAULTS


def _tests(file: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE))
