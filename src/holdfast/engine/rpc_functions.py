"""The SQL functions that can be called by RPC: who may call each, and how a call is recorded.

A function of the schema `holdfast` that is not in `RPC_FUNCTIONS` cannot be called by RPC. A service key
needs the scope `rpc` to call functions at all, and the scope of the function: that of the HTTP route which
does the same. A call that changes something writes an entry to the audit log, or `unaudited` says why not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model import Json

RPC_SCOPE = "rpc"
FOREIGN_CALL_ACTION = "rpc.call"  # for functions of other schemas; the target is the function
_ID_PATTERN = re.compile(r'"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"')
ENGINE_SCHEMA = "holdfast"
# Scopes for the functions of other schemas. Those of your own schemas need no scope but `rpc`.
SCOPE_BY_SCHEMA = {"pgmq_public": "queues", "pgmq": "queues"}
# Sending and consuming messages is not audited, as over HTTP. Creating and dropping queues is.
UNAUDITED_MESSAGE_FUNCTIONS = frozenset(
    {"send", "send_batch", "read", "read_with_poll", "pop", "archive", "delete", "set_vt"}
)


@dataclass(frozen=True)
class RpcRule:
    """Who may call a SQL function by RPC, and how a call is recorded.

    `scope` is the scope that a service key needs besides `rpc`. `users` is whether end users may call it,
    which is also its grant to the database role `authenticated`. `action` is the action in the audit log.
    `target` is the argument that names the target of the action; without one it is the result, if that is an
    id. `details` are the arguments that the entry keeps. `audit_users` records the calls of users too.
    """

    scope: str
    users: bool = False
    action: str | None = None
    target: str | None = None
    details: tuple[str, ...] = ()
    audit_users: bool = False
    unaudited: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether the function changes nothing."""
        return self.action is None and self.unaudited is None

    def choose_target(self, function: str, arguments: Mapping[str, Json], result: str | None) -> str | None:
        """Return the target of an audit entry. `result` is the result of the function as JSON text."""
        if self.action == FOREIGN_CALL_ACTION:
            return function
        if self.target is not None:
            value = arguments.get(self.target)
            return None if value is None else str(value)
        return result.strip('"') if result is not None and _ID_PATTERN.fullmatch(result) else None

    def build_details(self, arguments: Mapping[str, Json]) -> dict[str, Json] | None:
        """Return the details of an audit entry: the listed arguments that were passed."""
        details: dict[str, Json] = {
            name.removeprefix("p_"): arguments[name]
            for name in self.details
            if arguments.get(name) is not None
        }
        if isinstance(details.get("url"), str):
            details["url"] = str(details["url"]).partition("?")[0]  # the query may contain secrets
        return details or None


def _reads(scope: str, *names: str, users: bool = False) -> dict[str, RpcRule]:
    return {name: RpcRule(scope, users=users) for name in names}


def _unaudited(scope: str, reason: str, *names: str, users: bool = False) -> dict[str, RpcRule]:
    return {name: RpcRule(scope, users=users, unaudited=reason) for name in names}


def _action(scope: str, action: str, target: str | None, *details: str, **more: Any) -> RpcRule:
    return RpcRule(scope, action=action, target=target, details=details, **more)


RPC_FUNCTIONS: dict[str, RpcRule] = {
    # Jobs
    **_reads(
        "jobs", "get_job", "list_jobs", "list_jobs_page", "list_job_events", "explain_task",
        "list_task_attempts", "get_batch", "list_webhooks", "shard_of", users=True,
    ),
    **_reads(
        "jobs", "search_jobs", "count_jobs", "find_jobs_by_id_prefix", "find_jobs_by_short_id",
        "find_job_by_key", "list_error_groups", "get_error_group",
        "build_job_resubmission", "get_job_detail", "get_task_payload", "list_job_attempts",
        "get_rerun_links", "read_logs", "list_batches", "validate_task_args",
    ),
    **_unaudited(
        "jobs", "The job is the record.", "submit", "submit_many", "submit_uniform", users=True,
    ),
    **_unaudited("jobs", "The job is the record.", "submit_standalone"),
    **_unaudited("jobs", "The batch is the record.", "open_batch", "close_batch", users=True),
    "cancel_job": _action("jobs", "job.cancel", "p_id", "p_reason", users=True),
    "cancel_jobs": _action("jobs", "jobs.cancel", None, "p_filter", "p_reason", users=True),
    "cancel_jobs_chunk": _action("jobs", "jobs.cancel", None, "p_filter", "p_reason", users=True),
    "cancel_task": _action("jobs", "task.cancel", "p_id", "p_reason"),
    "retry_job": _action("jobs", "job.retry", "p_id", "p_from", "p_delay_s", users=True),
    "redrive": _action("jobs", "jobs.redrive", None, "p_filter", "p_limit", "p_dry_run"),
    "create_webhook": _action(
        "jobs", "webhook.create", None, "p_url", "p_events", "p_owner", users=True, audit_users=True
    ),
    "set_webhook_active": _action(
        "jobs", "webhook.set_active", "p_id", "p_enabled", "p_reason", users=True, audit_users=True
    ),
    "delete_webhook": _action("jobs", "webhook.delete", "p_id", users=True, audit_users=True),
    # Files
    **_reads("files", "get_artifact", "list_artifacts", "get_owner_usage", users=True),
    **_reads("files", "get_files_overview"),
    "delete_artifact": _action("files", "artifact.delete", "p_id", users=True),
    "regenerate_artifact": _action("files", "artifact.regenerate", "p_id", users=True),
    "set_artifact_ttl": _action("files", "artifact.keep", "p_id", "p_ttl_s"),
    # Messages
    **_reads(
        "queues", "peek_messages", "list_message_metrics", "get_message_policy", "message_queue_exists",
        "get_message_error",
    ),
    **_unaudited(
        "queues", "Consuming messages is not audited over HTTP either.", "read_messages", "archive_messages",
        "delete_messages", "set_message_vt", "fail_messages", "retry_messages", "move_to_dead_letters",
    ),
    "requeue_messages": _action("queues", "message.requeue", "p_queue", "p_from", "p_limit"),
    "put_message_policy": _action(
        "queues", "messages.policy", "p_queue", "p_max_reads", "p_dead_letter_queue", "p_archive_retention"
    ),
    # Workers in any language
    **_unaudited(
        "worker", "The lease and the attempts of the task are the record.", "claim_tasks", "heartbeat_task",
        "complete_task", "fail_task", "snooze_task", "release_task", "progress", "assert_lease", "add_tasks",
        "get_step_results", "save_step_result", "save_step_result_with_files", "write_logs", "stage_artifact",
        "record_artifact_upload", "reclaim_stale_tasks",
    ),
    **_unaudited(
        "worker", "The row of the worker is the record.", "heartbeat_worker", "mark_worker_stopped",
        "register_task_types",
    ),
    **_reads("worker", "find_artifact_by_name"),
    # Operators
    **_reads(
        "operate", "list_task_queues", "list_queue_names", "list_batch_activity", "list_limits",
        "list_limit_counters", "list_workers", "list_task_type_names",
        "list_running_tasks_of_worker", "list_task_types", "get_task_type", "list_schedules", "get_schedule",
        "preview_schedule", "list_next_run_times", "list_audit_entries",
        "list_audit_entries_of_target", "list_inbound_webhooks",
        "get_bulk_action", "list_bulk_actions", "list_bulk_action_jobs", "preview_bulk_action",
        "list_maintenance_problems", "get_database_health",
    ),
    "pause_queue": _action("operate", "queue.pause", "p_queue", "p_reason"),
    "pause_queue_until": _action("operate", "queue.pause", "p_queue", "p_until", "p_reason"),
    "resume_queue": _action("operate", "queue.resume", "p_queue"),
    "put_queue_settings": _action(
        "operate", "queue.settings", "p_queue", "p_keep_s", "p_keep_failed_s", "p_ageing_s"
    ),
    "set_fair_queue": _action("operate", "queue.fair", "p_queue", "p_owners"),
    "put_limit": _action(
        "operate", "limit.put", "p_name", "p_queue", "p_type", "p_per_key", "p_max_running", "p_rate",
        "p_burst",
    ),
    "delete_limit": _action("operate", "limit.delete", "p_name"),
    "put_quota": _action("operate", "quota.put", "p_owner", "p_bytes", "p_files", "p_operations"),
    "delete_quota": _action("operate", "quota.delete", "p_owner"),
    "put_artifact_retention_rule": _action("operate", "artifact.retention", "p_owner", "p_type", "p_ttl_s"),
    "put_schedule": _action("operate", "schedule.put", "p_name", "p_cron", "p_every_s", "p_timezone"),
    "create_schedule": _action("operate", "schedule.create", "p_name", "p_cron", "p_every_s", "p_timezone"),
    "register_schedules": _action("operate", "schedule.register", "p_source"),
    "pause_schedule": _action("operate", "schedule.pause", "p_name"),
    "resume_schedule": _action("operate", "schedule.resume", "p_name"),
    "run_schedule": _action("operate", "schedule.run", "p_name"),
    "delete_schedule": _action("operate", "schedule.delete", "p_name"),
    "set_worker_command": _action("operate", "worker.command", "p_worker", "p_command"),
    "delete_inbound_webhook": _action("operate", "hook.delete", "p_name"),
    "start_bulk_action": _action("operate", "bulk.start", None, "p_verb", "p_search", "p_reason"),
    "control_bulk_action": _action("operate", "bulk.control", "p_id", "p_verb"),
    "undo_bulk_action": _action("operate", "bulk.undo", "p_id"),
    **_reads("operate", "get_erasure"),
    **_unaudited("operate", "The function itself writes the entries.", "start_erasure", "advance_erasure"),
    # Alerts
    **_reads(
        "operate", "list_alerts", "get_alert", "list_alert_rules", "list_alert_silences",
        "list_alert_channels", "has_late_alert_notifications", "get_shard", "count_unfinished_work",
    ),
    "put_alert_rule": _action(
        "operate", "alert_rule.put", "p_name", "p_kind", "p_threshold", "p_clear_below", "p_subject",
        "p_severity", "p_enabled",
    ),
    "set_alert_rule_enabled": _action("operate", "alert_rule.set_enabled", "p_name", "p_enabled"),
    "delete_alert_rule": _action("operate", "alert_rule.delete", "p_name"),
    "set_alert_channel_enabled": _action("operate", "alert_channel.set_enabled", "p_name", "p_enabled"),
    "delete_alert_channel": _action("operate", "alert_channel.delete", "p_name"),
    "test_alert_channel": _action("operate", "alert_channel.test", "p_name"),
    "acknowledge_alert": _action("operate", "alert.acknowledge", "p_id", "p_note"),
    "silence_alerts": _action("operate", "alert.silence", None, "p_rule", "p_subject", "p_until", "p_reason"),
    "end_alert_silence": _action("operate", "alert.end_silence", "p_id"),
    "ignore_error_group": _action("operate", "error.ignore", "p_cause", "p_until", "p_reason"),
    "delete_unseen_task_types": _action("operate", "task_types.delete", None, "p_older_than_s"),
    **_unaudited(
        "operate", "Workers run the same maintenance.", "tick", "tick_artifacts", "tick_messages",
        "tick_operations", "tick_providers", "run_urgent_maintenance", "advance_bulk_actions",
        "tick_erasures", "tick_alerts", "evaluate_alerts",
    ),
    # Metrics
    **_reads(
        "metrics", "metrics", "count_desired_workers", "count_problems", "get_throughput_chart",
        "get_throughput_range", "get_throughput_histograms", "get_throughput_by_name", "get_task_type_stats",
    ),
    **_reads(
        "metrics", "get_provider_cost", "list_provider_usage", "list_job_provider_usage", users=True,
    ),
}  # fmt: skip

_CREDENTIALS = (
    "It creates, checks or ends credentials. The routes of the API check the rights of the caller first."
)
_SERVER = "The API and the dashboard call it after checks of their own."
_WORKER = "The Python worker calls it; its form may change with any version."
_HELPER = "It is a part of other functions."
_POLICY = "Row security policies call it."

# The functions that a role may call in SQL, but nobody by RPC, with the reason.
NOT_CALLABLE_BY_RPC: dict[str, str] = {
    **dict.fromkeys(
        (
            "create_service_key", "verify_service_key", "list_service_keys", "find_service_key",
            "revoke_service_key", "store_login_link", "redeem_login_link", "start_dashboard_session",
            "find_dashboard_session", "record_session_use", "end_dashboard_session", "end_dashboard_sessions",
            "list_dashboard_sessions", "list_ended_access", "issue_stream_ticket", "redeem_stream_ticket",
            "find_stream_pass", "start_user_session", "find_user_session", "end_user_session",
            "find_webhook_url_and_secret", "put_inbound_webhook", "get_inbound_webhook",
            "put_alert_channel", "find_alert_channel_target",
        ),
        _CREDENTIALS,
    ),
    **dict.fromkeys(
        (
            "record_audit_entry", "watch_jobs", "get_last_event_numbers", "list_watched_events",
            "check_unfinished_job_limit", "submit_within_job_limit", "submit_public_job", "submit_as_role",
            "submit_together", "submit_plain_jobs", "record_job_rerun",
            "list_saved_views", "put_saved_view", "delete_saved_view", "increment_artifact_downloads",
            "stage_artifact_without_task", "touch_artifact_upload", "get_installed_schema",
            "is_provided_by_extension", "list_secret_payloads", "list_erasure_objects",
        ),
        _SERVER,
    ),
    **dict.fromkeys(
        (
            "finish_and_claim", "heartbeat_tasks", "save_progress", "release_unreceived_tasks",
            "mark_worker_lost",
            "release_tasks_of_lost_worker",
            "register_job_waiter", "register_sleeping_reader", "wake_message_readers",
            "claim_artifact_deletions",
            "confirm_artifact_deletions", "find_orphaned_object_keys", "record_webhook_result",
            "record_alert_delivery", "keep_artifact", "record_provider_call", "start_scheduled_task",
        ),
        _WORKER,
    ),
    **dict.fromkeys(
        (
            "act_for_all_owners", "build_message_receipt", "build_receipt_condition",
            "parse_receipt_message_ids", "raise_for_stale_receipts", "get_message_table_names",
            "save_message_errors",
            "delete_message_errors", "enable_message_wakeups", "read_messages_ignoring_policy",
        ),
        _HELPER,
    ),
    **dict.fromkeys(("now", "get_user_id_from_jwt_claims", "get_user_uuid_from_jwt_claims"), _POLICY),
}  # fmt: skip


def find_rpc_rule(schema: str, name: str) -> RpcRule | None:
    """Return the rule of a function, or None if it cannot be called by RPC.

    The database decides which functions of other schemas users may call. A change by a service is recorded as
    `rpc.call`, because nobody knows what it means.
    """
    if schema == ENGINE_SCHEMA:
        return RPC_FUNCTIONS.get(name)
    scope = SCOPE_BY_SCHEMA.get(schema, RPC_SCOPE)
    if schema in SCOPE_BY_SCHEMA and name in UNAUDITED_MESSAGE_FUNCTIONS:
        return RpcRule(scope, users=True, unaudited="Consuming messages is not audited over HTTP either.")
    return RpcRule(scope, users=True, action=FOREIGN_CALL_ACTION)
