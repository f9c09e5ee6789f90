"""Notifications of alerts: their texts, and the task that sends them to webhooks, Slack and e-mail."""
